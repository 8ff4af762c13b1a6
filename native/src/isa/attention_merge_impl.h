// Joins what attention computed of each chunk, in ascending order of chunks. Included by attention_impl.h only.
#pragma once

#include <limits>

#include "simd.h"

namespace sojourn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// exp(x) of one non-positive number.
float exp_one(float x) {
  float lanes[kLanes];
  store(lanes, exp_nonpositive(broadcast(x)));
  return lanes[0];
}

// Partials that are joined together, so that sums stay in registers from one to the next.
struct Joined {
  static constexpr std::int64_t kMost = 64;
  const float* partial[kMost];
  float factor[kMost];
  std::int64_t count = 0;
};

// Adds kColumns times sixteen dimensions of all, from `dim` on, to `out`; the first ones start it.
template <int kColumns>
SOJOURN_INLINE void join(const Joined& joined, std::int64_t dim, bool first, float* out) {
  F32x16 acc[kColumns];
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) acc[c] = first ? broadcast(0.0f) : load(out + dim + c * kLanes);
  for (std::int64_t i = 0; i < joined.count; ++i) {
    const F32x16 factor = broadcast(joined.factor[i]);
    const float* output = joined.partial[i] + 2 + dim;
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) acc[c] = fma(factor, load(output + c * kLanes), acc[c]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) store(out + dim + c * kLanes, acc[c]);
}

void merge(const float* partials, std::int64_t chunks, std::int64_t head_dim, float* out) {
  const std::int64_t stride = head_dim + 2;
  float largest = -kInfinity, total = 0.0f;
  for (std::int64_t c = 0; c < chunks; ++c) largest = partials[c * stride] > largest ? partials[c * stride] : largest;
  for (std::int64_t begin = 0; begin < chunks; begin += Joined::kMost) {
    Joined joined;
    for (std::int64_t c = begin; c < chunks && c < begin + Joined::kMost; ++c) {
      const float* partial = partials + c * stride;
      if (partial[1] == 0.0f) continue;  // nothing seen
      const float factor = exp_one(partial[0] - largest);
      joined.partial[joined.count] = partial;
      joined.factor[joined.count++] = factor;
      total += factor * partial[1];
    }
    std::int64_t d = 0;
    for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes) join<4>(joined, d, begin == 0, out);
    for (; d < head_dim; d += kLanes) join<1>(joined, d, begin == 0, out);
  }
  if (total == 0.0f) return;
  for (std::int64_t d = 0; d < head_dim; d += kLanes) store(out + d, load(out + d) / broadcast(total));
}

}  // namespace
}  // namespace sojourn
