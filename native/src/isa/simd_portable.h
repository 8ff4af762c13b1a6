// Sixteen floats in four vectors of four, in the compiler's own vector types: SSE2, NEON, or scalar code. Included by
// simd.h only.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace sojourn {
namespace {

#if defined(__aarch64__)
constexpr int kTileQueries = 6;  // attention: query vectors of one register tile,
constexpr int kTileVectors = 6;  // and its accumulators: 24 of the 32 registers
#else
constexpr int kTileQueries = 8;  // more than there are registers for: widening a half is dearer than a spilled sum
constexpr int kTileVectors = 4;
#endif

typedef float F4 __attribute__((vector_size(16)));
typedef std::uint32_t U4 __attribute__((vector_size(16)));
typedef std::int32_t I4 __attribute__((vector_size(16)));
typedef std::uint16_t H4 __attribute__((vector_size(8)));
typedef std::int8_t B4 __attribute__((vector_size(4)));

struct F32x16 {
  F4 v[4];
};

SOJOURN_INLINE U4 bits(F4 a) { return reinterpret_cast<U4>(a); }
SOJOURN_INLINE F4 floats(U4 a) { return reinterpret_cast<F4>(a); }
SOJOURN_INLINE F4 four(float x) { return F4{x, x, x, x}; }
SOJOURN_INLINE U4 four(std::uint32_t x) { return U4{x, x, x, x}; }
SOJOURN_INLINE U4 choose(U4 mask, U4 x, U4 y) { return (mask & x) | (~mask & y); }
SOJOURN_INLINE U4 less(F4 a, F4 b) { return reinterpret_cast<U4>(a < b); }

SOJOURN_INLINE F4 fma(F4 a, F4 b, F4 c) {
#if defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

// IEEE half to float, exact; no step meets a subnormal float, so a process that flushes those gets it right too.
SOJOURN_INLINE F4 widen(const std::uint16_t* p) {
  H4 half;
  std::memcpy(&half, p, sizeof half);
#if defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(half));
#else
  const U4 h = __builtin_convertvector(half, U4);
  const U4 magnitude = (h & 0x7fffu) << 13;
  const I4 order = reinterpret_cast<I4>(magnitude);                            // SSE2 compares signed numbers only
  const U4 special = reinterpret_cast<U4>(order >= 0x0f800000) & 0x38000000u;  // infinity and NaN: all exponent bits
  const U4 normal = magnitude + 0x38000000u + special;
  const U4 subnormal = bits(floats(magnitude + 0x38800000u) - four(0x1p-14f));
  return floats(choose(reinterpret_cast<U4>(order < 0x00800000), subnormal, normal) | (h & 0x8000u) << 16);
#endif
}

SOJOURN_INLINE F4 widen(const std::int8_t* p) {
  B4 codes;
  std::memcpy(&codes, p, sizeof codes);
  return __builtin_convertvector(__builtin_convertvector(codes, I4), F4);
}

// Float to IEEE half, to nearest even.
SOJOURN_INLINE std::uint16_t narrow(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  const std::uint32_t sign = u >> 16 & 0x8000u;
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (u >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and more
  if (u < 0x38800000u) {  // below 2^-14: 0.5 + x has the half's last place
    float magnitude;
    std::memcpy(&magnitude, &u, sizeof magnitude);
    magnitude += 0.5f;
    std::memcpy(&u, &magnitude, sizeof u);
    return static_cast<std::uint16_t>(sign | (u - 0x3f000000u));
  }
  return static_cast<std::uint16_t>(sign | ((u - 0x38000000u + 0x0fffu + (u >> 13 & 1)) >> 13));
}

#define SOJOURN_FOUR(expression)                          \
  F32x16 result;                                          \
  for (int i = 0; i < 4; ++i) result.v[i] = (expression); \
  return result

SOJOURN_INLINE F32x16 broadcast(float x) { SOJOURN_FOUR(four(x)); }
SOJOURN_INLINE F32x16 load(const float* p) {
  F32x16 result;
  std::memcpy(&result, p, sizeof result);
  return result;
}
SOJOURN_INLINE F32x16 load(const std::uint16_t* p) { SOJOURN_FOUR(widen(p + 4 * i)); }
SOJOURN_INLINE F32x16 load(const std::int8_t* p) { SOJOURN_FOUR(widen(p + 4 * i)); }
SOJOURN_INLINE void store(float* p, F32x16 a) { std::memcpy(p, &a, sizeof a); }
SOJOURN_INLINE void store(std::uint16_t* p, F32x16 a) {
  for (int i = 0; i < 16; ++i) p[i] = narrow(a.v[i / 4][i % 4]);
}
// To nearest even; for numbers from -128 to 127.
SOJOURN_INLINE void store(std::int8_t* p, F32x16 a) {
  for (int i = 0; i < 4; ++i) {
    const F4 integers = (a.v[i] + four(0x1.8p23f)) - four(0x1.8p23f);
    const B4 codes = __builtin_convertvector(__builtin_convertvector(integers, I4), B4);
    std::memcpy(p + 4 * i, &codes, sizeof codes);
  }
}

SOJOURN_INLINE F32x16 operator+(F32x16 a, F32x16 b) { SOJOURN_FOUR(a.v[i] + b.v[i]); }
SOJOURN_INLINE F32x16 operator-(F32x16 a, F32x16 b) { SOJOURN_FOUR(a.v[i] - b.v[i]); }
SOJOURN_INLINE F32x16 operator*(F32x16 a, F32x16 b) { SOJOURN_FOUR(a.v[i] * b.v[i]); }
SOJOURN_INLINE F32x16 operator/(F32x16 a, F32x16 b) { SOJOURN_FOUR(a.v[i] / b.v[i]); }
SOJOURN_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { SOJOURN_FOUR(fma(a.v[i], b.v[i], c.v[i])); }
// b where either is NaN.
SOJOURN_INLINE F32x16 max(F32x16 a, F32x16 b) {
  SOJOURN_FOUR(floats(choose(less(b.v[i], a.v[i]), bits(a.v[i]), bits(b.v[i]))));
}
SOJOURN_INLINE F32x16 min(F32x16 a, F32x16 b) {
  SOJOURN_FOUR(floats(choose(less(a.v[i], b.v[i]), bits(a.v[i]), bits(b.v[i]))));
}
// a < b ? x : y.
SOJOURN_INLINE F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  SOJOURN_FOUR(floats(choose(less(a.v[i], b.v[i]), bits(x.v[i]), bits(y.v[i]))));
}
// Bit i: a < b in lane i.
SOJOURN_INLINE std::uint32_t less_bits(F32x16 a, F32x16 b) {
  std::uint32_t bits = 0;
  for (std::uint32_t i = 0; i < 16; ++i) bits |= static_cast<std::uint32_t>(a.v[i / 4][i % 4] < b.v[i / 4][i % 4]) << i;
  return bits;
}
SOJOURN_INLINE F32x16 absolute(F32x16 a) { SOJOURN_FOUR(floats(bits(a.v[i]) & 0x7fffffffu)); }
SOJOURN_INLINE F32x16 with_sign(F32x16 magnitude, F32x16 sign) {
  SOJOURN_FOUR(floats(bits(magnitude.v[i]) | (bits(sign.v[i]) & 0x80000000u)));
}
// 2^n for the integer n in the low bits of `a`, which is 1.5 * 2^23 + n.
SOJOURN_INLINE F32x16 power_of_two(F32x16 a) { SOJOURN_FOUR(floats((bits(a.v[i]) << 23) + (127u << 23))); }

// Sixteen doubles, to add floats to.
typedef double D2 __attribute__((vector_size(16)));
struct F64x16 {
  D2 v[8];
};

SOJOURN_INLINE F64x16 zero_doubles() { return {}; }
SOJOURN_INLINE F64x16 operator+(F64x16 a, F32x16 b) {
  for (int i = 0; i < 8; ++i) a.v[i] += D2{b.v[i / 2][2 * (i % 2)], b.v[i / 2][2 * (i % 2) + 1]};
  return a;
}
SOJOURN_INLINE void store(double* p, F64x16 a) { std::memcpy(p, &a, sizeof a); }

// The lanes joined in a fixed tree: 8 apart, 4 apart, 2 apart, neighbours.
template <typename Join>
SOJOURN_INLINE float reduce(F32x16 a, Join join) {
  alignas(64) float lanes[16];
  store(lanes, a);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = join(lanes[i], lanes[i + half]);
  return lanes[0];
}
SOJOURN_INLINE float sum(F32x16 a) {
  return reduce(a, [](float x, float y) { return x + y; });
}
SOJOURN_INLINE float maximum(F32x16 a) {
  return reduce(a, [](float x, float y) { return x > y ? x : y; });
}

#undef SOJOURN_FOUR

}  // namespace
}  // namespace sojourn
