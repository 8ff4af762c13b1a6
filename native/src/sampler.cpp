// Each row goes through the pipeline that src/sojourn/executor/sampler.py describes, by itself and on one worker.
#include "sojourn/sampler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>

#include "isa/sampling_tables.h"
#include "philox.h"
#include "ranked_ids.h"
#include "sampler_state.h"

namespace sojourn {

const SamplingKernels& sampling_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512Vnni) return kSamplingAvx512;
  if (isa == Isa::Avx2) return kSamplingAvx2;
#endif
  static_cast<void>(isa);
  return kSamplingPortable;
}

namespace {

constexpr std::int64_t kFirstCandidates = 16;  // how many of the best a nucleus is first looked for in

// Not initialised: memory that no row needs is never touched.
template <class T>
std::unique_ptr<T[]> uninitialised(std::int64_t count) {
  return std::unique_ptr<T[]>(new T[static_cast<std::size_t>(count)]);
}

// The first entry above the target or, if rounding left none, the first that reaches the end: never one of weight 0.
std::int64_t first_above(const double* cumulative, std::int64_t count, double target) {
  const double* end = cumulative + count;
  const double* found = std::upper_bound(cumulative, end, target);
  return std::min(found, std::lower_bound(cumulative, end, end[-1])) - cumulative;
}

// The sum of weights in the order of `sum_runs`, run after run.
double total_of(const float* weights, std::int64_t count) {
  double total = 0.0;
  for (std::int64_t first = 0; first < count; first += kRun) {
    double lanes[kSumLanes] = {};
    for (std::int64_t i = first; i < std::min(first + kRun, count); ++i) lanes[(i - first) % kSumLanes] += weights[i];
    double sum = lanes[0];
    for (int lane = 1; lane < kSumLanes; ++lane) sum += lanes[lane];
    total += sum;
  }
  return total;
}

}  // namespace

struct SamplingScratch {
  explicit SamplingScratch(std::int64_t vocab)
      : lane_maxima(uninitialised<float>(runs_of(vocab) * kSumLanes)),
        run_sums(uninitialised<double>(runs_of(vocab))),
        shown(uninitialised<float>(vocab)),
        logits(uninitialised<float>(vocab)),
        weights(uninitialised<float>(vocab)),
        cumulative(uninitialised<double>(std::max(vocab, kRun))),
        ids(uninitialised<std::int32_t>(vocab)),
        keys(uninitialised<std::uint64_t>(vocab)),
        sorted_keys(uninitialised<std::uint64_t>(vocab)) {}

  RankingMemory ranking() const { return {ids.get(), keys.get(), sorted_keys.get()}; }

  std::unique_ptr<float[]> lane_maxima;
  std::unique_ptr<double[]> run_sums;
  std::unique_ptr<float[]> shown;  // the model's own logits, where they are edited and logprobs wanted
  std::unique_ptr<float[]> logits, weights;  // of some ranked ids, or of a run
  std::unique_ptr<double[]> cumulative;
  std::unique_ptr<std::int32_t[]> ids;
  std::unique_ptr<std::uint64_t[]> keys, sorted_keys;
};

namespace {

// Cumulative weights of the most likely tokens, best first, as far as one asks.
class Candidates {
 public:
  Candidates(const SamplingKernels& kernels, RankedIds& ranked, const float* row, const WeightFunction& function,
             SamplingScratch& scratch)
      : kernels_(kernels), ranked_(ranked), row_(row), function_(function), scratch_(scratch) {}

  // Weighs the first `count` ranked tokens. -> how many of them reach `wanted`, or `count` if they don't.
  std::int64_t weigh(std::int64_t count, double wanted) {
    for (std::int64_t i = weighed_; i < count; ++i) scratch_.logits[i] = row_[ranked_[i]];
    kernels_.weights(scratch_.logits.get() + weighed_, count - weighed_, function_, scratch_.weights.get() + weighed_);
    for (; weighed_ < count; ++weighed_) {
      const double before = weighed_ > 0 ? scratch_.cumulative[weighed_ - 1] : 0.0;
      scratch_.cumulative[weighed_] = before + static_cast<double>(scratch_.weights[weighed_]);
    }
    const double* cumulative = scratch_.cumulative.get();
    return std::min(count, std::lower_bound(cumulative, cumulative + count, wanted) - cumulative + 1);
  }

 private:
  const SamplingKernels& kernels_;
  RankedIds& ranked_;
  const float* row_;
  const WeightFunction& function_;
  SamplingScratch& scratch_;
  std::int64_t weighed_ = 0;
};

}  // namespace

Sampler::Sampler(Isa isa, std::int64_t vocab_size, std::int64_t slots, bool raw)
    : kernels_(sampling_kernels(isa)), vocab_size_(vocab_size), raw_(raw), slots_(static_cast<std::size_t>(slots)) {
  if (!has_isa(isa)) throw std::invalid_argument(std::string(isa_name(isa)) + " is not available on this machine");
}

Sampler::~Sampler() = default;

void Sampler::admit(std::int64_t slot, const SamplingRequest& request) {
  slots_.at(static_cast<std::size_t>(slot)) = std::make_unique<SlotState>(request, vocab_size_);
}

void Sampler::prepare_scratch(int workers) {
  while (scratch_.size() < static_cast<std::size_t>(workers))
    scratch_.push_back(std::make_unique<SamplingScratch>(vocab_size_));
}

namespace {

// Runs work(row, worker) for every row; workers take the next row when they are done with one.
void for_each_row(ThreadPool& pool, std::int64_t rows, const std::function<void(std::int64_t, int)>& work) {
  if (rows < 2 || pool.size() < 2) {  // waking the others costs more than a row
    for (std::int64_t row = 0; row < rows; ++row) work(row, 0);
    return;
  }
  std::atomic<std::int64_t> next{0};
  pool.run([&](int worker) {
    for (std::int64_t row; (row = next.fetch_add(1, std::memory_order_relaxed)) < rows;) work(row, worker);
  });
}

}  // namespace

void Sampler::sample(ThreadPool& pool, float* logits, std::int64_t stride, std::int64_t rows, const std::int32_t* slots,
                     const std::int32_t* positions, std::int32_t* token_ids, const LogprobRows& logprobs) {
  std::vector<SlotState*> states(static_cast<std::size_t>(rows));
  for (std::int64_t r = 0; r < rows; ++r) {
    SlotState* state = slots_.at(static_cast<std::size_t>(slots[r])).get();
    if (state == nullptr || std::find(states.begin(), states.begin() + r, state) != states.begin() + r)
      throw std::out_of_range("a slot without a request, or with two rows");
    if (state->request().logprobs && state->request().top_logprobs > logprobs.width)
      throw std::out_of_range("more top logprobs than there is room for");
    states[static_cast<std::size_t>(r)] = state;
  }
  prepare_scratch(pool.size());
  for_each_row(pool, rows, [&](std::int64_t r, int worker) {
    const SlotState& state = *states[static_cast<std::size_t>(r)];
    SamplingScratch& scratch = *scratch_[static_cast<std::size_t>(worker)];
    float* row = logits + r * stride;
    const float* shown = row;
    const bool wanted = state.request().logprobs;
    if (wanted && raw_ && state.edits_logits()) {
      std::memcpy(scratch.shown.get(), row, static_cast<std::size_t>(vocab_size_) * sizeof(float));
      shown = scratch.shown.get();
    }
    token_ids[r] = choose(row, state, positions[r], scratch);
    logprobs.valid[r] = false;
    if (wanted && token_ids[r] >= 0)
      logprobs_of_row(shown, token_ids[r], state.request().top_logprobs, logprobs, r, scratch);
  });
  for (std::int64_t r = 0; r < rows; ++r)
    if (token_ids[r] >= 0) states[static_cast<std::size_t>(r)]->append(token_ids[r]);
}

void Sampler::logprobs_of(ThreadPool& pool, const float* logits, std::int64_t stride, std::int64_t rows,
                          const std::int32_t* token_ids, const LogprobRows& logprobs) {
  for (std::int64_t r = 0; r < rows; ++r)
    if (token_ids[r] < 0 || token_ids[r] >= vocab_size_) throw std::out_of_range("a token id outside the vocabulary");
  prepare_scratch(pool.size());
  for_each_row(pool, rows, [&](std::int64_t r, int worker) {
    logprobs_of_row(logits + r * stride, token_ids[r], logprobs.width, logprobs, r,
                    *scratch_[static_cast<std::size_t>(worker)]);
  });
}

std::int32_t Sampler::choose(float* row, const SlotState& state, std::int64_t position, SamplingScratch& scratch) const {
  float highest = kernels_.scan(row, vocab_size_, scratch.lane_maxima.get());
  if (!std::isfinite(highest)) return -1;
  if (state.edits_logits()) {
    state.edit(row, scratch.logits.get());
    highest = kernels_.scan(row, vocab_size_, scratch.lane_maxima.get());
    if (!std::isfinite(highest)) return -1;
  }
  if (state.request().temperature > 0.0f) return draw(row, highest, state, position, scratch);
  return static_cast<std::int32_t>(std::find(row, row + vocab_size_, highest) - row);
}

std::int32_t Sampler::draw(const float* row, float highest, const SlotState& state, std::int64_t position,
                           SamplingScratch& scratch) const {
  const SamplingRequest& request = state.request();
  const WeightFunction function{highest, state.inverse_temperature(), request.min_p};
  const double random = uniform(request.seed, static_cast<std::uint64_t>(position));
  double* cumulative = scratch.cumulative.get();
  RankedIds ranked(kernels_, row, vocab_size_, scratch.lane_maxima.get(), highest, scratch.ranking());
  Candidates candidates(kernels_, ranked, row, function, scratch);
  if (request.top_k > 0 && request.top_k < vocab_size_) {
    std::int64_t count = request.top_k;
    ranked.extend(count);
    candidates.weigh(count, 0.0);
    if (request.top_p < 1.0) count = candidates.weigh(count, request.top_p * total_of(scratch.weights.get(), count));
    return ranked[first_above(cumulative, count, random * cumulative[count - 1])];
  }
  const std::int64_t runs = runs_of(vocab_size_);
  double* sums = scratch.run_sums.get();
  kernels_.sum_runs(row, vocab_size_, function, sums);
  for (std::int64_t run = 1; run < runs; ++run) sums[run] += sums[run - 1];
  if (request.top_p < 1.0) {
    const double wanted = request.top_p * sums[runs - 1];
    std::int64_t count = 0, looked_at = kFirstCandidates;
    do {
      ranked.extend(looked_at);
      count = candidates.weigh(ranked.size(), wanted);
      looked_at *= 8;
    } while (cumulative[count - 1] < wanted && count < vocab_size_);
    return ranked[first_above(cumulative, count, random * cumulative[count - 1])];
  }
  const double target = random * sums[runs - 1];
  const std::int64_t run = first_above(sums, runs, target), first = run * kRun;
  const std::int64_t count = std::min(kRun, vocab_size_ - first);
  kernels_.weights(row + first, count, function, scratch.weights.get());
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) cumulative[i] = sum += static_cast<double>(scratch.weights[i]);
  const double before = run > 0 ? sums[run - 1] : 0.0;
  return static_cast<std::int32_t>(first + first_above(cumulative, count, target - before));
}

void Sampler::logprobs_of_row(const float* row, std::int32_t token_id, std::int64_t top, const LogprobRows& out,
                              std::int64_t index, SamplingScratch& scratch) const {
  const float highest = kernels_.scan(row, vocab_size_, scratch.lane_maxima.get());
  out.valid[index] = std::isfinite(highest);
  if (!out.valid[index]) return;
  double* sums = scratch.run_sums.get();
  kernels_.sum_runs(row, vocab_size_, {highest, 1.0f, 0.0f}, sums);
  double total = 0.0;
  for (std::int64_t run = 0; run < runs_of(vocab_size_); ++run) total += sums[run];
  out.totals[index] = total;
  out.highest[index] = highest;
  out.logits[index] = row[token_id];
  out.ranks[index] = 1 + kernels_.count_above(row, vocab_size_, row[token_id]);
  RankedIds ranked(kernels_, row, vocab_size_, scratch.lane_maxima.get(), highest, scratch.ranking());
  ranked.extend(top);
  for (std::int64_t i = 0; i < std::min(top, vocab_size_); ++i) {
    out.top_ids[index * out.width + i] = ranked[i];
    out.top_logits[index * out.width + i] = row[ranked[i]];
  }
}

}  // namespace sojourn
