// Logits to tokens, a row at a time, the rows shared out among workers. Owns the sampling state of every slot.
//
// The fast twin of src/sojourn/executor/sampler.py, which says what each step means: same tokens, same logprobs, whatever
// the batch, the threads and the instruction set.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sojourn/isa.h"
#include "sojourn/sampling_kernels.h"
#include "sojourn/thread_pool.h"

namespace sojourn {

// What one request asks of the sampler; names and meanings are those of records.SamplingParams.
struct SamplingRequest {
  float temperature = 1.0f;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f, presence_penalty = 0.0f, frequency_penalty = 0.0f;
  std::int64_t min_tokens = 0;
  bool logprobs = false;
  std::int64_t top_logprobs = 0;
  std::uint64_t seed = 0;
  bool restricted = false;  // to allowed_ids
  std::vector<std::int32_t> allowed_ids, end_ids, bias_ids, prompt_ids, output_ids;
  std::vector<float> biases;  // of bias_ids
  std::vector<std::vector<std::int32_t>> banned;  // sequences

  bool penalises_output() const { return presence_penalty != 0.0f || frequency_penalty != 0.0f; }
  bool edits_logits() const {
    return restricted || !banned.empty() || min_tokens > 0 || !bias_ids.empty() || repetition_penalty != 1.0f ||
           penalises_output();
  }
};

// What a logprob is computed from: the caller takes the logarithm, so that both twins take the same one. An entry of
// `valid` is false, and the rest of its row unset, for a row that failed or wanted none.
struct LogprobRows {
  bool* valid;           // [rows]
  double* totals;        // [rows] sum of exp(logit - highest)
  float* highest;        // [rows]
  float* logits;         // [rows] of the token
  std::int64_t* ranks;   // [rows] of the token, 1 for the most likely
  std::int32_t* top_ids;  // [rows, width]
  float* top_logits;     // [rows, width]
  std::int64_t width;
};

class SlotState;
struct SamplingScratch;

class Sampler {
 public:
  // `raw`: logprobs are those of the model's own logits, not of the edited ones.
  Sampler(Isa isa, std::int64_t vocab_size, std::int64_t slots, bool raw);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // A request takes a slot. std::out_of_range: no such slot, or an id outside the vocabulary.
  void admit(std::int64_t slot, const SamplingRequest& request);

  // Chooses a token for each row, -1 for one that fails; positions are those that the tokens will have. Overwrites logits
  // [rows, stride]. std::out_of_range: a slot that was never admitted, that has two rows, or more top logprobs than fit.
  void sample(ThreadPool& pool, float* logits, std::int64_t stride, std::int64_t rows, const std::int32_t* slots,
              const std::int32_t* positions, std::int32_t* token_ids, const LogprobRows& logprobs);

  // Of one given token per row, with `logprobs.width` most likely ones.
  void logprobs_of(ThreadPool& pool, const float* logits, std::int64_t stride, std::int64_t rows,
                   const std::int32_t* token_ids, const LogprobRows& logprobs);

  std::int64_t vocab_size() const { return vocab_size_; }

 private:
  std::int32_t choose(float* row, const SlotState& state, std::int64_t position, SamplingScratch& scratch) const;
  std::int32_t draw(const float* row, float highest, const SlotState& state, std::int64_t position,
                    SamplingScratch& scratch) const;
  void logprobs_of_row(const float* row, std::int32_t token_id, std::int64_t top, const LogprobRows& out,
                       std::int64_t index, SamplingScratch& scratch) const;
  void prepare_scratch(int workers);

  const SamplingKernels& kernels_;
  std::int64_t vocab_size_;
  bool raw_;
  std::vector<std::unique_ptr<SlotState>> slots_;
  std::vector<std::unique_ptr<SamplingScratch>> scratch_;  // one per worker
};

}  // namespace sojourn
