// Passes over rows of logits, written once on sixteen lanes; each instruction set's sampling.cpp includes this file.
#pragma once

#include <limits>

#include "simd.h"
#include "sojourn/sampling_kernels.h"

namespace sojourn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Entries [i, i + 16) of a row of `count`; minus infinity beyond its end.
SOJOURN_INLINE F32x16 load_entries(const float* row, std::int64_t i, std::int64_t count) {
  if (count - i >= kLanes) return load(row + i);
  alignas(64) float lanes[kLanes];
  for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = i + lane < count ? row[i + lane] : -kInfinity;
  return load(lanes);
}

// Which of the lanes of entries [i, i + 16) lie inside the row.
SOJOURN_INLINE std::uint32_t inside(std::int64_t i, std::int64_t count) {
  return count - i >= kLanes ? 0xffffu : (1u << (count - i)) - 1u;
}

// Vectors whose exponentials are computed side by side, since each alone is one long chain of dependent operations.
#if defined(__AVX512F__)
constexpr int kTogether = 4;
#else
constexpr int kTogether = 2;  // half the registers and half the width
#endif

// x = exp(x) for x <= 0, operation for operation that of src/sojourn/executor/exponential.py: range reduction after Cody
// and Waite, the polynomial of the Cephes library (expf), no fused multiply-add. What is below the range gives anything
// on the way and 0 in the end.
template <int N>
SOJOURN_INLINE void unfused_exp(F32x16 (&x)[N]) {
  constexpr float kPolynomial[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  const F32x16 magic = broadcast(0x1.8p23f);  // adding it rounds to an integer
  F32x16 power[N], r[N], p[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) power[i] = x[i] * broadcast(1.44269504f) + magic;
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    const F32x16 n = power[i] - magic;
    r[i] = (x[i] - n * broadcast(0.693359375f)) - n * broadcast(-2.12194440e-4f);
  }
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) p[i] = broadcast(1.9875691500e-4f);
#pragma GCC unroll 5
  for (const float coefficient : kPolynomial)
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) p[i] = p[i] * r[i] + broadcast(coefficient);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) p[i] = (p[i] * (r[i] * r[i]) + r[i]) + broadcast(1.0f);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i)
    x[i] = select_less(x[i], broadcast(kLowestExponent), broadcast(0.0f), p[i] * power_of_two(power[i]));
}

// Weights of logits; HasMinimum: whether the function's min_weight is above 0.
template <bool HasMinimum>
class Weigh {
 public:
  explicit Weigh(const WeightFunction& function)
      : highest_(broadcast(function.highest)),
        inverse_(broadcast(function.inverse_temperature)),
        lowest_(broadcast(function.min_weight)) {}

  // In place.
  template <int N>
  SOJOURN_INLINE void operator()(F32x16 (&x)[N]) const {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) x[i] = (x[i] - highest_) * inverse_;
    unfused_exp(x);
    if (HasMinimum)
      for (int i = 0; i < N; ++i) x[i] = select_less(x[i], lowest_, broadcast(0.0f), x[i]);
  }

  SOJOURN_INLINE F32x16 operator()(F32x16 logits) const {
    F32x16 one[] = {logits};
    (*this)(one);
    return one[0];
  }

 private:
  F32x16 highest_, inverse_, lowest_;
};

float scan(const float* row, std::int64_t count, float* lane_maxima) {
  const F32x16 infinity = broadcast(kInfinity);
  std::uint32_t valid = 0xffffu;  // neither NaN nor infinity
  F32x16 highest = broadcast(-kInfinity);
  for (std::int64_t first = 0; first < count; first += kRun, lane_maxima += kLanes) {
    const std::int64_t last = first + kRun < count ? first + kRun : count;
    F32x16 best = broadcast(-kInfinity);
    for (std::int64_t i = first; i < last; i += kLanes) {
      const F32x16 entries = load_entries(row, i, count);
      valid &= less_bits(entries, infinity);
      best = max(best, entries);
    }
    store(lane_maxima, best);
    highest = max(highest, best);
  }
  return valid == 0xffffu ? maximum(highest) : std::numeric_limits<float>::quiet_NaN();
}

template <bool HasMinimum>
void weigh_row(const float* row, std::int64_t count, const Weigh<HasMinimum>& weigh, float* out) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const F32x16 found = weigh(load_entries(row, i, count));
    if (count - i >= kLanes) store(out + i, found);
    else store_part(out + i, count - i, found);
  }
}

void weights(const float* row, std::int64_t count, const WeightFunction& function, float* out) {
  if (function.min_weight > 0.0f) weigh_row(row, count, Weigh<true>(function), out);
  else weigh_row(row, count, Weigh<false>(function), out);
}

template <bool HasMinimum>
void sum_weighed_runs(const float* row, std::int64_t count, const Weigh<HasMinimum>& weigh, double* sums) {
  for (std::int64_t first = 0; first < count; first += kRun) {
    const std::int64_t last = first + kRun < count ? first + kRun : count;
    F64x16 lane_sums = zero_doubles();
    std::int64_t i = first;
    for (; i + kTogether * kLanes <= last; i += kTogether * kLanes) {
      F32x16 entries[kTogether];
#pragma GCC unroll 4
      for (int k = 0; k < kTogether; ++k) entries[k] = load(row + i + k * kLanes);
      weigh(entries);
#pragma GCC unroll 4
      for (int k = 0; k < kTogether; ++k) lane_sums = lane_sums + entries[k];
    }
    for (; i < last; i += kLanes) lane_sums = lane_sums + weigh(load_entries(row, i, count));
    double lanes[kLanes];
    store(lanes, lane_sums);
    double total = lanes[0];
    for (int lane = 1; lane < kLanes; ++lane) total += lanes[lane];
    *sums++ = total;
  }
}

void sum_runs(const float* row, std::int64_t count, const WeightFunction& function, double* sums) {
  if (function.min_weight > 0.0f) sum_weighed_runs(row, count, Weigh<true>(function), sums);
  else sum_weighed_runs(row, count, Weigh<false>(function), sums);
}

std::int64_t count_above(const float* row, std::int64_t count, float value) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += kLanes)  // minus infinity beyond the end is above nothing
    found += __builtin_popcount(less_bits(broadcast(value), load_entries(row, i, count)));
  return found;
}

std::int64_t count_at_least(const float* row, std::int64_t count, float value) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += kLanes)
    found += __builtin_popcount(~less_bits(load_entries(row, i, count), broadcast(value)) & inside(i, count));
  return found;
}

std::int64_t collect(const float* row, std::int64_t count, float lowest, float below, std::int32_t* indices) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const F32x16 entries = load_entries(row, i, count);
    std::uint32_t bits = ~less_bits(entries, broadcast(lowest)) & inside(i, count);
    if (bits != 0) bits &= less_bits(entries, broadcast(below));
    for (; bits != 0; bits &= bits - 1) indices[found++] = static_cast<std::int32_t>(i + __builtin_ctz(bits));
  }
  return found;
}

constexpr SamplingKernels kSamplingKernels = {scan, weights, sum_runs, count_above, count_at_least, collect};

}  // namespace
}  // namespace sojourn
