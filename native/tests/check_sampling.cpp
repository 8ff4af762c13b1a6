// The sampler over vocabularies of any length: logprobs, ranks and the most likely tokens against plain loops in double,
// tokens against what the request allows, and a batch on three threads against each row alone.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>

#include "checks.h"
#include "sojourn/sampler.h"

namespace checks {
namespace {

using sojourn::Sampler;
using sojourn::SamplingRequest;

constexpr std::int64_t kTop = 5, kPad = 3;

std::vector<SamplingRequest> requests(std::int32_t vocab) {
  SamplingRequest plain;
  plain.seed = 11;
  std::vector<SamplingRequest> all(10, plain);
  all[0].temperature = 0.0f;
  all[1].temperature = 0.7f, all[1].top_k = 3;
  all[2].top_p = 0.5;
  all[3].top_p = 0.999, all[3].temperature = 2.0f;
  all[4].min_p = 0.2f;
  all[5].top_k = 40, all[5].top_p = 0.9, all[5].min_p = 0.01f;
  all[6].restricted = true, all[6].allowed_ids = {0, vocab / 2, vocab - 1};
  all[7].repetition_penalty = 1.3f, all[7].prompt_ids = {0, 1 % vocab, vocab - 1}, all[7].presence_penalty = 0.5f;
  all[8].min_tokens = 9, all[8].end_ids = {vocab - 1}, all[8].banned = {{0}}, all[8].bias_ids = {1 % vocab}, all[8].biases = {5.0f};
  for (SamplingRequest& request : all) request.logprobs = true, request.top_logprobs = std::min<std::int64_t>(kTop, vocab);
  return all;
}

struct Results {
  std::vector<std::int32_t> tokens, top_ids;
  std::unique_ptr<bool[]> valid;
  std::vector<double> totals;
  std::vector<float> highest, logits, top_logits;
  std::vector<std::int64_t> ranks;

  explicit Results(std::size_t rows) : tokens(rows), top_ids(rows * kTop), valid(new bool[rows]()), totals(rows), highest(rows), logits(rows), top_logits(rows * kTop), ranks(rows) {}
  sojourn::LogprobRows rows() {
    return {valid.get(), totals.data(), highest.data(), logits.data(), ranks.data(), top_ids.data(), top_logits.data(), kTop};
  }
};

// Rows [first, last) of `logits`, one per request, in one call.
Results sample(Sampler& sampler, sojourn::ThreadPool& pool, std::vector<float> logits, std::int64_t stride, std::size_t first, std::size_t last) {
  Results results(last - first);
  std::vector<std::int32_t> slots(last - first), positions(last - first, 17);
  std::iota(slots.begin(), slots.end(), static_cast<std::int32_t>(first));
  sampler.sample(pool, logits.data() + static_cast<std::int64_t>(first) * stride, stride, static_cast<std::int64_t>(last - first), slots.data(), positions.data(), results.tokens.data(), results.rows());
  return results;
}

void check_logprobs(const Results& results, std::size_t row, const float* logits, std::int64_t vocab, std::string_view where) {
  const std::int32_t token = results.tokens[row];
  expect(token >= 0 && token < vocab && results.valid[row], "no token was sampled", where);
  if (token < 0) return;
  const float highest = *std::max_element(logits, logits + vocab);
  double total = 0;
  std::int64_t rank = 1;
  for (std::int64_t i = 0; i < vocab; ++i) {
    total += std::exp(static_cast<double>(logits[i]) - highest);
    rank += logits[i] > logits[token];
  }
  expect(std::fabs(results.totals[row] - total) < 1e-5 * total && results.highest[row] == highest, "a sum of weights is wrong", where);
  expect(results.ranks[row] == rank && results.logits[row] == logits[token], "a rank is wrong", where);
  std::vector<std::int32_t> order(static_cast<std::size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
  for (std::size_t i = 0; i < static_cast<std::size_t>(std::min(kTop, vocab)); ++i)
    expect(results.top_ids[row * kTop + i] == order[i], "the most likely tokens are wrong", where);
  if (row == 0) expect(token == order[0], "the arg-max is wrong", where);
  if (row == 1) expect(results.ranks[row] <= 3, "top_k is not kept", where);
  if (row == 4) expect(logits[token] - highest >= std::log(0.2f) - 1e-5f, "min_p is not kept", where);
  if (row == 6) expect(token == 0 || token == vocab / 2 || token == vocab - 1, "allowed ids are not kept", where);
  if (row == 8) expect(token != 0 && token != vocab - 1, "a ban is not kept", where);
}

}  // namespace

std::uint64_t check_sampling(sojourn::Isa isa) {
  Numbers numbers(6);
  Digest digest;
  sojourn::ThreadPool one(1), three(3);
  for (const std::int32_t vocab : {7, 16, 1000, 1041, 3000}) {
    const auto asked = requests(vocab);
    const std::int64_t stride = vocab + kPad;
    auto logits = numbers.draw(static_cast<std::int64_t>(asked.size()) * stride, 6.0f);
    logits[static_cast<std::size_t>(9 * stride + vocab / 2)] = std::nanf("");
    Sampler alone(isa, vocab, static_cast<std::int64_t>(asked.size()), true), together(isa, vocab, static_cast<std::int64_t>(asked.size()), true);
    for (std::size_t slot = 0; slot < asked.size(); ++slot) {
      alone.admit(static_cast<std::int64_t>(slot), asked[slot]);
      together.admit(static_cast<std::int64_t>(slot), asked[slot]);
    }
    const std::string where = "vocabulary of " + std::to_string(vocab);
    const Results batch = sample(together, three, logits, stride, 0, asked.size());
    for (std::size_t row = 0; row + 1 < asked.size(); ++row) {
      check_logprobs(batch, row, logits.data() + static_cast<std::int64_t>(row) * stride, vocab, where);
      const Results single = sample(alone, one, logits, stride, row, row + 1);
      expect(single.tokens[0] == batch.tokens[row] && single.totals[0] == batch.totals[row], "a row depends on the batch", where);
      digest.add({static_cast<float>(batch.tokens[row]), static_cast<float>(batch.totals[row]), static_cast<float>(batch.ranks[row])});
    }
    expect(batch.tokens.back() == -1 && !batch.valid[asked.size() - 1], "a row with a NaN gave a token", where);
  }
  return digest.value();
}

}  // namespace checks
