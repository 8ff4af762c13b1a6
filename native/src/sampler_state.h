// What the sampler remembers of one request while it holds a slot. The twin of src/sojourn/executor/sampler_state.py.
#pragma once

#include <cstdint>
#include <vector>

#include "sojourn/sampler.h"

namespace sojourn {

class SlotState {
 public:
  // std::out_of_range: an id outside the vocabulary.
  SlotState(const SamplingRequest& request, std::int64_t vocab_size);

  const SamplingRequest& request() const { return request_; }
  float inverse_temperature() const { return inverse_temperature_; }
  bool edits_logits() const { return edits_logits_; }

  // Changes a row in place: allowed ids, bans, min_tokens, bias, penalties. `scratch` has room for the vocabulary.
  void edit(float* row, float* scratch) const;
  void append(std::int32_t token_id);

 private:
  void count(std::int32_t token_id);
  void see(std::int32_t token_id);
  bool ends_with(const std::vector<std::int32_t>& banned) const;
  void penalise(float* row) const;

  SamplingRequest request_;  // output_ids grows
  std::int64_t vocab_size_;
  float inverse_temperature_;
  bool repeats_, penalises_output_, edits_logits_;
  std::vector<std::uint8_t> seen_;        // [vocab], where repetition is penalised
  std::vector<std::int32_t> seen_ids_;    // those of it that are set
  std::vector<std::int32_t> counts_;      // [vocab], where output tokens are penalised
  std::vector<std::int32_t> counted_ids_;  // those of it above 0
};

}  // namespace sojourn
