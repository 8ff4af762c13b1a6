// The lanes of a register joined in the tree that all instruction sets share: 8 apart, 4 apart, 2 apart, neighbours.
// Included by the x86 sets, for the steps after the first.
#pragma once

namespace sojourn {
namespace {

SOJOURN_INLINE float sum(__m256 a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Of two lanes the later one where either is NaN.
SOJOURN_INLINE float maximum(__m256 a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace
}  // namespace sojourn
