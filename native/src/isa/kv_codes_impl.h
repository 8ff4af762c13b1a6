// K and V as 8-bit codes, each row of one token and head with its own scale. Included by attention_impl.h only.
//
// A few dimensions of K are many times larger than the others, and a scale that fits them leaves little of the rest.
// What is constant in them, the layer's centre, is subtracted first: it moves all scores of a query alike, which the
// softmax does not see. Then keys are turned by a Hadamard matrix, which spreads what is large over all dimensions;
// queries are turned alike, and being orthogonal the matrix cancels out of their products. A row's codes depend on that
// row alone. graph/kv_codes.py is the same in NumPy, bit for bit.
#pragma once

#include <limits>
#include <type_traits>

#include "simd.h"
#include "sojourn/vector_ops.h"

namespace sojourn {
namespace {

// Whether pages with elements of type T hold codes, and so have scales.
template <typename T>
constexpr bool kCoded = std::is_same_v<T, std::int8_t>;

// Rows that are smaller throughout count as zeros: the reciprocal of their scale would not be finite.
constexpr float kSmallestRow = 0x1p-112f;

// a, b -> a + b, a - b, elementwise.
SOJOURN_INLINE void butterflies(float* a, float* b, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const F32x16 x = load(a + i), y = load(b + i);
    store(a + i, x + y);
    store(b + i, x - y);
  }
  for (; i < count; ++i) {
    const float x = a[i], y = b[i];
    a[i] = x + y;
    b[i] = x - y;
  }
}

// Turns `width` vectors, interleaved as x [dim][width], in place. The matrix is orthogonal and of the largest order that
// divides dim; it repeats along the diagonal.
void hadamard(float* x, std::int64_t dim, std::int64_t width) {
  const std::int64_t order = dim & -dim, count = dim * width;
  for (std::int64_t half = width; half < order * width; half *= 2)
    for (std::int64_t at = 0; at < count; at += 2 * half) butterflies(x + at, x + at + half, half);
  const F32x16 norm = broadcast(1.0f / __builtin_sqrtf(static_cast<float>(order)));
  for (std::int64_t i = 0; i < count; i += kLanes) store(x + i, load(x + i) * norm);
}

// Codes of a row; returns what they are multiples of. Infinities and NaN cannot be coded: they make the scale NaN.
float encode(const float* row, std::int64_t dim, std::int8_t* codes) {
  F32x16 largest = broadcast(0.0f), poison = broadcast(0.0f);
  for (std::int64_t d = 0; d < dim; d += kLanes) {
    const F32x16 x = load(row + d);
    largest = max(absolute(x), largest);
    poison = poison + (x - x);
  }
  const float maximum_magnitude = maximum(largest);
  const bool finite = sum(poison) == 0.0f, usable = finite && maximum_magnitude >= kSmallestRow;
  const F32x16 factor = broadcast(usable ? 127.0f / maximum_magnitude : 0.0f);
  for (std::int64_t d = 0; d < dim; d += kLanes) store(codes + d, usable ? load(row + d) * factor : factor);
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  return usable ? maximum_magnitude / 127.0f : 0.0f;
}

// The same for a key; `center` may be null.
float encode_key(const float* row, const float* center, std::int64_t dim, std::int8_t* codes) {
  alignas(64) float turned[kMaxHeadDim];
  for (std::int64_t d = 0; d < dim; d += kLanes)
    store(turned + d, center == nullptr ? load(row + d) : load(row + d) - load(center + d));
  hadamard(turned, dim, 1);
  return encode(turned, dim, codes);
}

}  // namespace
}  // namespace sojourn
