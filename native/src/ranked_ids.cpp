// A row is ranked in bands: a threshold that enough of the lane maxima reach, hence enough entries, then one pass that
// collects what lies between it and the band before, then a sort of these few.
#include "ranked_ids.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace sojourn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kBisections = 6;
constexpr std::int64_t kFewKeys = 512;  // up to here a comparison sort is faster
constexpr int kDigitBits = 11;

// Ascending integers for descending floats; both zeros are one value.
std::uint32_t descending(float value) {
  value += 0.0f;
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

// Sorts by the upper halves; equal ones keep their order. Returns which of the two arrays holds the result.
std::uint64_t* radix_sort(std::uint64_t* keys, std::uint64_t* other, std::int64_t count) {
  for (int shift = 32; shift < 64; shift += kDigitBits) {
    std::int64_t places[1 << kDigitBits] = {};
    const auto digit = [shift](std::uint64_t key) { return (key >> shift) & ((1u << kDigitBits) - 1u); };
    for (std::int64_t i = 0; i < count; ++i) ++places[digit(keys[i])];
    if (places[digit(keys[0])] == count) continue;
    std::int64_t place = 0;
    for (std::int64_t& entry : places) {
      const std::int64_t found = entry;
      entry = place;
      place += found;
    }
    for (std::int64_t i = 0; i < count; ++i) other[places[digit(keys[i])]++] = keys[i];
    std::swap(keys, other);
  }
  return keys;
}

}  // namespace

RankedIds::RankedIds(const SamplingKernels& kernels, const float* row, std::int64_t count, const float* lane_maxima,
                     float highest, const RankingMemory& memory)
    : kernels_(kernels),
      row_(row),
      count_(count),
      lane_maxima_(lane_maxima),
      num_maxima_(runs_of(count) * kSumLanes),
      highest_(highest),
      below_(kInfinity),
      memory_(memory) {}

void RankedIds::extend(std::int64_t wanted) {
  wanted = std::min(wanted, count_);
  if (size_ >= wanted) return;
  const float cut = cut_for(wanted);
  const std::int64_t found = kernels_.collect(row_, count_, cut, below_, memory_.ids + size_);
  sort_band(memory_.ids + size_, found);
  size_ += found;
  below_ = cut;
}

// A value that at least `wanted` entries reach, and not many more where it can be helped.
float RankedIds::cut_for(std::int64_t wanted) const {
  if (wanted > num_maxima_) return -kInfinity;
  const auto reached = [this](float value) { return kernels_.count_at_least(lane_maxima_, num_maxima_, value); };
  float gap = 1.0f;
  while (reached(highest_ - gap) < wanted) gap *= 2.0f;  // ends at minus infinity, which all reach
  float low = highest_ - gap, high = gap == 1.0f ? highest_ : highest_ - gap / 2.0f;
  if (low == -kInfinity) return low;
  for (int i = 0; i < kBisections; ++i) {
    const float middle = low + (high - low) / 2.0f;
    const std::int64_t found = reached(middle);
    (found >= wanted ? low : high) = middle;
    if (found >= wanted && found <= 2 * wanted) break;
  }
  return low;
}

void RankedIds::sort_band(std::int32_t* ids, std::int64_t count) {
  std::uint64_t* keys = memory_.keys;
  for (std::int64_t i = 0; i < count; ++i)
    keys[i] = std::uint64_t{descending(row_[ids[i]])} << 32 | static_cast<std::uint32_t>(ids[i]);
  if (count > kFewKeys) keys = radix_sort(keys, memory_.sorted_keys, count);
  else std::sort(keys, keys + count);
  for (std::int64_t i = 0; i < count; ++i) ids[i] = static_cast<std::int32_t>(keys[i] & 0xffffffffu);
}

}  // namespace sojourn
