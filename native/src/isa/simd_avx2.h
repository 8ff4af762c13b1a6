// Sixteen floats in two ymm registers (AVX2, FMA, F16C). Included by simd.h only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd_tree.h"

namespace sojourn {
namespace {

constexpr int kTileQueries = 6;  // attention: query vectors of one register tile,
constexpr int kTileVectors = 6;  // and its accumulators: 12 of the 16 registers

struct F32x16 {
  __m256 lo, hi;
};

SOJOURN_INLINE F32x16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
SOJOURN_INLINE F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SOJOURN_INLINE F32x16 load(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
SOJOURN_INLINE F32x16 load(const std::int8_t* p) {
  const auto eight = [](const std::int8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  };
  return {eight(p), eight(p + 8)};
}
SOJOURN_INLINE void store(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
SOJOURN_INLINE void store(std::uint16_t* p, F32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
// To nearest even; for numbers from -128 to 127.
SOJOURN_INLINE void store(std::int8_t* p, F32x16 a) {
  const __m256i mixed = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  const __m256i words = _mm256_permute4x64_epi64(mixed, 0xd8);  // packing works within halves of a register
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

SOJOURN_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
SOJOURN_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
SOJOURN_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
SOJOURN_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
// a * b + c, rounded once.
SOJOURN_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// b where either is NaN.
SOJOURN_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
SOJOURN_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
// a < b ? x : y.
SOJOURN_INLINE F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
// Bit i: a < b in lane i.
SOJOURN_INLINE std::uint32_t less_bits(F32x16 a, F32x16 b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ));
  return static_cast<std::uint32_t>(lo | _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)) << 8);
}
SOJOURN_INLINE F32x16 absolute(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
SOJOURN_INLINE F32x16 with_sign(F32x16 magnitude, F32x16 sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(magnitude.lo, _mm256_and_ps(bit, sign.lo)),
          _mm256_or_ps(magnitude.hi, _mm256_and_ps(bit, sign.hi))};
}
SOJOURN_INLINE __m256 power_of_two(__m256 a) {
  const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(a), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(shifted, _mm256_set1_epi32(127 << 23)));
}
// 2^n for the integer n in the low bits of `a`, which is 1.5 * 2^23 + n.
SOJOURN_INLINE F32x16 power_of_two(F32x16 a) { return {power_of_two(a.lo), power_of_two(a.hi)}; }
SOJOURN_INLINE float sum(F32x16 a) { return sum(_mm256_add_ps(a.lo, a.hi)); }
SOJOURN_INLINE float maximum(F32x16 a) { return maximum(_mm256_max_ps(a.lo, a.hi)); }

// Sixteen doubles, to add floats to.
struct F64x16 {
  __m256d v[4];
};

SOJOURN_INLINE F64x16 zero_doubles() {
  const __m256d zero = _mm256_setzero_pd();
  return {{zero, zero, zero, zero}};
}
SOJOURN_INLINE F64x16 operator+(F64x16 a, F32x16 b) {
  return {{_mm256_add_pd(a.v[0], _mm256_cvtps_pd(_mm256_castps256_ps128(b.lo))),
           _mm256_add_pd(a.v[1], _mm256_cvtps_pd(_mm256_extractf128_ps(b.lo, 1))),
           _mm256_add_pd(a.v[2], _mm256_cvtps_pd(_mm256_castps256_ps128(b.hi))),
           _mm256_add_pd(a.v[3], _mm256_cvtps_pd(_mm256_extractf128_ps(b.hi, 1)))}};
}
SOJOURN_INLINE void store(double* p, F64x16 a) {
  for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, a.v[i]);
}

}  // namespace
}  // namespace sojourn
