// Sixteen floats in one zmm register. Included by simd.h only.
#pragma once

// GCC 12 takes the deliberately undefined vectors of its own header for mistakes (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

#include "simd_tree.h"

namespace sojourn {
namespace {

constexpr int kTileQueries = 12;  // attention: query vectors of one register tile,
constexpr int kTileVectors = 24;  // and its accumulators, so that operands still find registers

struct F32x16 {
  __m512 v;
};

SOJOURN_INLINE F32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
SOJOURN_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
SOJOURN_INLINE F32x16 load(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
SOJOURN_INLINE F32x16 load(const std::int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
SOJOURN_INLINE void store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
SOJOURN_INLINE void store(std::uint16_t* p, F32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// To nearest even; for numbers from -128 to 127.
SOJOURN_INLINE void store(std::int8_t* p, F32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

SOJOURN_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
SOJOURN_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
SOJOURN_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
SOJOURN_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c, rounded once.
SOJOURN_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// b where either is NaN.
SOJOURN_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
SOJOURN_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
// a < b ? x : y.
SOJOURN_INLINE F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
// Bit i: a < b in lane i.
SOJOURN_INLINE std::uint32_t less_bits(F32x16 a, F32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
SOJOURN_INLINE F32x16 absolute(F32x16 a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)}; }
SOJOURN_INLINE F32x16 with_sign(F32x16 magnitude, F32x16 sign) {
  return {_mm512_or_ps(magnitude.v, _mm512_and_ps(_mm512_set1_ps(-0.0f), sign.v))};
}
// 2^n for the integer n in the low bits of `a`, which is 1.5 * 2^23 + n.
SOJOURN_INLINE F32x16 power_of_two(F32x16 a) {
  const __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(a.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(127 << 23)))};
}
SOJOURN_INLINE float sum(F32x16 a) {
  return sum(_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
SOJOURN_INLINE float maximum(F32x16 a) {
  return maximum(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}

// Sixteen doubles, to add floats to.
struct F64x16 {
  __m512d lo, hi;
};

SOJOURN_INLINE F64x16 zero_doubles() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
SOJOURN_INLINE F64x16 operator+(F64x16 a, F32x16 b) {
  return {_mm512_add_pd(a.lo, _mm512_cvtps_pd(_mm512_castps512_ps256(b.v))),
          _mm512_add_pd(a.hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(b.v, 1)))};
}
SOJOURN_INLINE void store(double* p, F64x16 a) {
  _mm512_storeu_pd(p, a.lo);
  _mm512_storeu_pd(p + 8, a.hi);
}

}  // namespace
}  // namespace sojourn
