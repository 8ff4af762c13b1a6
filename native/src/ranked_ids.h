// The ids of a row of logits from the most likely down, sorted only as far as somebody looks.
#pragma once

#include <cstdint>

#include "sojourn/sampling_kernels.h"

namespace sojourn {

// Memory of a RankedIds, reused from row to row; every array has room for the vocabulary.
struct RankingMemory {
  std::int32_t* ids;
  std::uint64_t *keys, *sorted_keys;
};

class RankedIds {
 public:
  // `lane_maxima` as `scan` left them for this row.
  RankedIds(const SamplingKernels& kernels, const float* row, std::int64_t count, const float* lane_maxima, float highest,
            const RankingMemory& memory);

  // Ranks at least the `wanted` largest entries (all, if there are fewer); of equal ones the lowest id comes first.
  void extend(std::int64_t wanted);
  std::int64_t size() const { return size_; }
  std::int32_t operator[](std::int64_t rank) const { return memory_.ids[rank]; }
  const std::int32_t* data() const { return memory_.ids; }

 private:
  float cut_for(std::int64_t wanted) const;
  void sort_band(std::int32_t* ids, std::int64_t count);

  const SamplingKernels& kernels_;
  const float* row_;
  std::int64_t count_;
  const float* lane_maxima_;
  std::int64_t num_maxima_;
  float highest_, below_;  // entries of at least `below_` are ranked
  RankingMemory memory_;
  std::int64_t size_ = 0;
};

}  // namespace sojourn
