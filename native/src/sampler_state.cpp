// The request's part in its logits: what it forbids, favours and penalises.
#include "sampler_state.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace sojourn {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

void check_ids(const std::vector<std::int32_t>& ids, std::int64_t vocab_size) {
  for (const std::int32_t id : ids)
    if (id < 0 || id >= vocab_size) throw std::out_of_range("a token id outside the vocabulary");
}

}  // namespace

SlotState::SlotState(const SamplingRequest& request, std::int64_t vocab_size)
    : request_(request),
      vocab_size_(vocab_size),
      // The inverse of a subnormal temperature would be infinite, and that times a distance of 0 not a number.
      inverse_temperature_(std::min(1.0f / request.temperature, std::numeric_limits<float>::max())),
      repeats_(request.repetition_penalty != 1.0f),
      penalises_output_(request.penalises_output()),
      edits_logits_(request.edits_logits()) {
  for (const auto* ids : {&request.allowed_ids, &request.end_ids, &request.bias_ids, &request.prompt_ids, &request.output_ids})
    check_ids(*ids, vocab_size);
  for (const std::vector<std::int32_t>& sequence : request.banned) {
    if (sequence.empty()) throw std::out_of_range("a banned sequence without tokens");
    check_ids(sequence, vocab_size);
  }
  if (request.biases.size() != request.bias_ids.size()) throw std::out_of_range("one bias per biased id");
  if (repeats_) seen_.assign(static_cast<std::size_t>(vocab_size), 0);
  if (penalises_output_) counts_.assign(static_cast<std::size_t>(vocab_size), 0);
  for (const std::int32_t id : request.prompt_ids) see(id);
  for (const std::int32_t id : request.output_ids) see(id), count(id);
}

void SlotState::see(std::int32_t token_id) {
  if (!repeats_ || seen_[static_cast<std::size_t>(token_id)]) return;
  seen_[static_cast<std::size_t>(token_id)] = 1;
  seen_ids_.push_back(token_id);
}

void SlotState::count(std::int32_t token_id) {
  if (penalises_output_ && counts_[static_cast<std::size_t>(token_id)]++ == 0) counted_ids_.push_back(token_id);
}

void SlotState::append(std::int32_t token_id) {
  if (!edits_logits_) return;
  request_.output_ids.push_back(token_id);
  see(token_id);
  count(token_id);
}

bool SlotState::ends_with(const std::vector<std::int32_t>& banned) const {
  const std::vector<std::int32_t>& output = request_.output_ids;
  return output.size() >= banned.size() - 1 && std::equal(banned.begin(), banned.end() - 1, output.end() - static_cast<std::ptrdiff_t>(banned.size() - 1));
}

void SlotState::edit(float* row, float* scratch) const {
  if (request_.restricted) {
    const std::vector<std::int32_t>& allowed = request_.allowed_ids;
    for (std::size_t i = 0; i < allowed.size(); ++i) scratch[i] = row[allowed[i]];
    std::fill(row, row + vocab_size_, kForbidden);
    for (std::size_t i = 0; i < allowed.size(); ++i) row[allowed[i]] = scratch[i];
  }
  for (const std::vector<std::int32_t>& banned : request_.banned)
    if (ends_with(banned)) row[banned.back()] = kForbidden;
  if (static_cast<std::int64_t>(request_.output_ids.size()) < request_.min_tokens)
    for (const std::int32_t id : request_.end_ids) row[id] = kForbidden;
  for (std::size_t i = 0; i < request_.bias_ids.size(); ++i) row[request_.bias_ids[i]] += request_.biases[i];
  penalise(row);
}

void SlotState::penalise(float* row) const {
  const float penalty = request_.repetition_penalty;
  for (const std::int32_t id : seen_ids_) row[id] = row[id] > 0.0f ? row[id] / penalty : row[id] * penalty;
  for (const std::int32_t id : counted_ids_) {
    const auto times = static_cast<float>(counts_[static_cast<std::size_t>(id)]);
    row[id] -= times * request_.frequency_penalty + request_.presence_penalty;
  }
}

}  // namespace sojourn
