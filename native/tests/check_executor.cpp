// The executor against itself: a small model's tokens one at a time on one thread, then all sequences in one step on
// three. The logits must be the same bits.
#include <cstring>
#include <memory>

#include "checks.h"
#include "sojourn/executor.h"

namespace checks {
namespace {

using namespace sojourn;

constexpr std::int64_t kWidth = 64, kHeads = 4, kKVHeads = 2, kDim = 16, kGated = 96, kVocabulary = 41;
constexpr std::int64_t kBlock = 16, kTableWidth = 20, kLayers = 2;

struct Sequence {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> table;
};

// Weights drawn from a fixed seed, so every copy is the same model.
class Model {
 public:
  Model(Isa isa, int threads, std::int64_t max_rows, std::int64_t num_blocks) : executor_(isa, threads, max_rows), numbers_(9) {
    const FormatInfo& format = *find_format("Q8_0");
    table_ = numbers_.blocks(format, kVocabulary * kWidth / 32);
    const BufferId x = executor_.add_buffer(kWidth), normed = executor_.add_buffer(kWidth);
    executor_.embed(x, {&format, table_.data(), kVocabulary, kWidth}, 0.02f);
    std::vector<double> frequencies;
    for (int i = 0; i < kDim / 2; ++i) frequencies.push_back(1.0 / (1 + i));
    const int rotation = executor_.add_rotation(frequencies.data(), kDim / 2, 1.0f);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) add_layer(x, normed, rotation, num_blocks, layer);
    hidden_ = x;
    const BufferId selected = executor_.add_buffer(kWidth);
    logits_ = executor_.add_buffer(kVocabulary);
    executor_.begin_head(selected);
    executor_.rms_norm(selected, selected, vector(kWidth), kWidth, 1e-5f, 0.0f);
    executor_.quantize(selected);
    executor_.matmul(selected, {matrix("Q6_K", kVocabulary, kWidth)}, {logits_}, {-1}, -1);
    executor_.softcap(logits_, 30.0f);
  }

  std::vector<float> forward(const StepInput& input) {
    std::vector<float> hidden(static_cast<std::size_t>(input.tokens * kWidth));
    executor_.forward(input, hidden_, hidden.data());
    return hidden;
  }

  // [rows, kVocabulary]; checks the fused arg-max on the way.
  std::vector<float> logits(const std::vector<float>& hidden) {
    const std::int64_t rows = static_cast<std::int64_t>(hidden.size()) / kWidth, stride = executor_.padded_width(logits_);
    std::vector<float> padded(static_cast<std::size_t>(rows * stride)), maxima(static_cast<std::size_t>(rows)), out;
    std::vector<std::int32_t> ids(maxima.size());
    executor_.head(hidden.data(), rows, logits_, padded.data(), stride);
    executor_.head_argmax(hidden.data(), rows, logits_, ids.data(), maxima.data());
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = padded.data() + r * stride;
      std::int32_t best = 0;
      for (std::int32_t i = 1; i < kVocabulary; ++i) best = row[i] > row[best] ? i : best;
      const auto at = static_cast<std::size_t>(r);
      expect(ids[at] == best && maxima[at] == row[best], "the fused arg-max is wrong", "executor");
      out.insert(out.end(), row, row + kVocabulary);
    }
    return out;
  }

 private:
  int vector(std::int64_t count) { return executor_.add_vector(numbers_.draw(count).data(), count); }

  int matrix(const char* name, std::int64_t n, std::int64_t k) {
    const FormatInfo* format = find_format(k % 256 == 0 ? name : "Q5_1");
    const auto data = numbers_.blocks(*format, n * k / static_cast<std::int64_t>(format->block_elements));
    return executor_.add_matrix(pack(format->format, data.data(), n, k, 1));
  }

  void add_layer(BufferId x, BufferId normed, int rotation, std::int64_t num_blocks, std::int64_t layer) {
    const BufferId q = executor_.add_buffer(kHeads * kDim), mixed = executor_.add_buffer(kHeads * kDim);
    const BufferId k = executor_.add_buffer(kKVHeads * kDim), v = executor_.add_buffer(kKVHeads * kDim);
    const BufferId gate = executor_.add_buffer(kGated), up = executor_.add_buffer(kGated);
    const int kv = executor_.add_kv_layer({kHeads, kKVHeads, kDim, kBlock, 0.25f, layer == 0 ? 0 : 40, 0.0f, KVType::F16}, num_blocks);
    executor_.rms_norm(x, normed, vector(kWidth), kWidth, 1e-5f, 0.0f);
    executor_.quantize(normed);
    executor_.matmul(normed, {matrix("Q4_0", kHeads * kDim, kWidth), matrix("Q4_0", kKVHeads * kDim, kWidth), matrix("Q4_0", kKVHeads * kDim, kWidth)},
                     {q, k, v}, {vector(kHeads * kDim), -1, vector(kKVHeads * kDim)}, -1);
    executor_.rope(q, kDim, rotation);
    executor_.rope(k, kDim, rotation);
    executor_.attention(q, k, v, mixed, kv);
    executor_.quantize(mixed);
    executor_.matmul(mixed, {matrix("Q4_0", kWidth, kHeads * kDim)}, {normed}, {-1}, -1);
    executor_.scale(normed, 1e-3f);
    executor_.add(x, normed, x);
    executor_.rms_norm(x, normed, vector(kWidth), kWidth, 1e-5f, 1.0f);
    executor_.quantize(normed);
    executor_.matmul(normed, {matrix("Q4_0", kGated, kWidth), matrix("Q4_0", kGated, kWidth)}, {gate, up}, {-1, -1}, -1);
    executor_.glu(gate, up, gate, Activation::Silu);
    executor_.quantize(gate);
    executor_.matmul(gate, {matrix("Q4_0", kWidth, kGated)}, {normed}, {-1}, x);
    executor_.scale(normed, 1e-3f);
    executor_.add(x, normed, x);
  }

  Executor executor_;
  Numbers numbers_;
  std::vector<std::uint8_t> table_;
  BufferId hidden_ = -1, logits_ = -1;
};

std::vector<float> one_by_one(Model& model, const Sequence& sequence) {
  std::vector<float> all;
  for (std::int32_t position = 0; position < static_cast<std::int32_t>(sequence.ids.size()); ++position) {
    const std::int32_t bounds[] = {0, 1};
    const auto logits = model.logits(model.forward({1, 1, kTableWidth, &sequence.ids[static_cast<std::size_t>(position)], &position, bounds, sequence.table.data()}));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

std::vector<float> together(Model& model, const std::vector<Sequence>& sequences) {
  std::vector<std::int32_t> ids, positions, bounds = {0}, tables;
  for (const Sequence& sequence : sequences) {
    ids.insert(ids.end(), sequence.ids.begin(), sequence.ids.end());
    for (std::size_t i = 0; i < sequence.ids.size(); ++i) positions.push_back(static_cast<std::int32_t>(i));
    bounds.push_back(static_cast<std::int32_t>(ids.size()));
    tables.insert(tables.end(), sequence.table.begin(), sequence.table.end());
  }
  return model.logits(model.forward({static_cast<std::int64_t>(ids.size()), static_cast<std::int64_t>(sequences.size()), kTableWidth, ids.data(), positions.data(), bounds.data(), tables.data()}));
}

}  // namespace

void check_executor(Isa isa) {
  Numbers numbers(5);
  std::vector<Sequence> sequences;
  std::int64_t tokens = 0;
  std::int32_t blocks = 0;
  for (const std::int64_t length : {5, 37, 1, 270}) {
    Sequence sequence;
    for (std::int64_t i = 0; i < length; ++i) sequence.ids.push_back(static_cast<std::int32_t>(numbers.bits() % kVocabulary));
    for (std::int64_t i = 0; i < kTableWidth; ++i) sequence.table.push_back(i * kBlock < length ? blocks++ : -1);
    sequences.push_back(sequence);
    tokens += length;
  }
  Model single(isa, 1, 1, blocks), many(isa, 3, tokens, blocks);
  std::vector<float> expected;
  for (const Sequence& sequence : sequences) {
    const auto logits = one_by_one(single, sequence);
    expected.insert(expected.end(), logits.begin(), logits.end());
  }
  const auto found = together(many, sequences);
  expect(found.size() == expected.size() && std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0,
         "a step of many sequences differs from one token at a time", "executor");
}

}  // namespace checks
