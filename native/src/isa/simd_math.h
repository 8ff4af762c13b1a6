// Functions of sixteen floats made of the operations of the instruction set, so equal wherever those are. Included by
// simd.h only.
#pragma once

#include <cstdint>
#include <limits>

namespace sojourn {
namespace {

constexpr std::int64_t kLanes = 16;

// The first `count` floats, zero in the other lanes.
SOJOURN_INLINE F32x16 load_part(const float* p, std::int64_t count) {
  alignas(64) float lanes[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i] = p[i];
  return load(lanes);
}

SOJOURN_INLINE void store_part(float* p, std::int64_t count, F32x16 a) {
  alignas(64) float lanes[kLanes];
  store(lanes, a);
  for (std::int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}

constexpr float kLowestExponent = -87.0f;  // below, exp would be subnormal: it is 0

// exp for kLowestExponent <= x <= 89. x = n ln 2 + r after Cody and Waite, exp(r) by the polynomial of the Cephes
// library (expf).
SOJOURN_INLINE F32x16 exp_in_range(F32x16 x) {
  const F32x16 magic = broadcast(0x1.8p23f);  // adding it rounds to an integer
  const F32x16 shifted = fma(x, broadcast(1.44269504f), magic);
  const F32x16 n = shifted - magic;
  F32x16 r = fma(n, broadcast(-0.693359375f), x);
  r = fma(n, broadcast(2.12194440e-4f), r);
  F32x16 p = fma(broadcast(1.9875691500e-4f), r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r) + broadcast(1.0f);
  return p * power_of_two(shifted);
}

// exp(x) for x <= 0: exactly 1 at 0, exactly 0 below kLowestExponent (also at minus infinity), NaN of NaN.
SOJOURN_INLINE F32x16 exp_nonpositive(F32x16 x) {
  const F32x16 lowest = broadcast(kLowestExponent);
  return select_less(x, lowest, broadcast(0.0f), exp_in_range(max(lowest, x)));
}

// exp(x), infinity above about 88.4.
SOJOURN_INLINE F32x16 exp(F32x16 x) { return exp_nonpositive(min(broadcast(89.0f), x)); }

// x / (1 + exp(-y)): x times the logistic function of y.
SOJOURN_INLINE F32x16 times_sigmoid(F32x16 x, F32x16 y) { return x / (broadcast(1.0f) + exp(broadcast(0.0f) - y)); }

// By the exponential, and near 0, where that cancels, by the polynomial of the Cephes library (tanhf).
SOJOURN_INLINE F32x16 tanh(F32x16 x) {
  const F32x16 magnitude = absolute(x), one = broadcast(1.0f);
  const F32x16 large = one - broadcast(2.0f) / (exp(magnitude + magnitude) + one);
  const F32x16 z = x * x;
  F32x16 p = fma(broadcast(-5.70498872745e-3f), z, broadcast(2.06390887954e-2f));
  p = fma(p, z, broadcast(-5.37397155531e-2f));
  p = fma(p, z, broadcast(1.33314422036e-1f));
  p = fma(p, z, broadcast(-3.33332819422e-1f));
  const F32x16 small = fma(p * z, x, x);
  return select_less(magnitude, broadcast(0.625f), small, with_sign(large, x));
}

}  // namespace
}  // namespace sojourn
