// What sampling does to whole rows of logits: one pass each, on one thread.
//
// Without fused multiply-adds, so that every instruction set, the portable one too, and NumPy give the same bits.
#pragma once

#include <cstdint>

namespace sojourn {

// A row is summed in runs of this many entries, each in 16 lanes.
inline constexpr std::int64_t kRun = 1024;
inline constexpr std::int64_t kSumLanes = 16;

inline std::int64_t runs_of(std::int64_t count) { return (count + kRun - 1) / kRun; }

// The weight (unnormalised probability) of a logit x: exp((x - highest) * inverse_temperature), and 0 if that is below
// min_weight. x is at most `highest`.
struct WeightFunction {
  float highest, inverse_temperature, min_weight;
};

struct SamplingKernels {
  // The largest entry; NaN if an entry is NaN or infinity. lane_maxima [16 * runs]: the largest of each lane of each run,
  // minus infinity for a lane without entries.
  float (*scan)(const float* row, std::int64_t count, float* lane_maxima);
  void (*weights)(const float* row, std::int64_t count, const WeightFunction& function, float* out);
  // The float64 sum of the weights of each run: each lane in order, then lane by lane.
  void (*sum_runs)(const float* row, std::int64_t count, const WeightFunction& function, double* sums);
  std::int64_t (*count_above)(const float* row, std::int64_t count, float value);
  std::int64_t (*count_at_least)(const float* row, std::int64_t count, float value);
  // Indices of the entries with lowest <= x < below, ascending; returns how many.
  std::int64_t (*collect)(const float* row, std::int64_t count, float lowest, float below, std::int32_t* indices);
};

}  // namespace sojourn
