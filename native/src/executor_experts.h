// A mixture of experts in the executor: its weights, and what its ops keep while a step is computed.
#pragma once

#include <memory>
#include <vector>

#include "executor_parts.h"

namespace sojourn {

// An entry is a row together with one expert it chose. Entries are numbered by row, then by rank; they are computed in
// places, which are ordered by expert, then by row. All layers of one shape share this memory.
struct Executor::ExpertMemory {
  ExpertMemory(std::int64_t max_rows, std::int64_t num_experts, std::int64_t top_k, std::int64_t width,
               std::int64_t intermediate);

  std::size_t bytes() const { return x.bytes(entries) + gate.bytes(entries) + up.bytes(entries) + out.bytes(entries); }

  std::int64_t entries, num_experts, top_k;
  std::vector<std::int32_t> chosen;       // [entries] expert
  std::vector<float> mixing, softmax;     // [entries] weight; [max_rows, experts]
  std::vector<std::int32_t> place, row;   // of an entry; of a place
  std::vector<std::int64_t> first_place;  // [experts + 1]
  Buffer x, gate, up, out;                // [places, ...], x and gate with quantized copies
  PaddedCounter next_inward, next_outward;  // matrix work nobody has claimed yet
};

struct Executor::Experts {
  ExpertWeights weights;
  bool normalize;
  Activation activation;
  std::shared_ptr<ExpertMemory> memory;
};

}  // namespace sojourn
