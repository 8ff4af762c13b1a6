// Norms, rotation, gates and sums, written once on sixteen lanes; each instruction set's vector.cpp includes this file.
//
// Columns beyond the last sixteen go through the same operations in a padded buffer, so an element's bits depend on its
// operands alone and never on where it lies.
#pragma once

#include "attention_impl.h"
#include "simd.h"
#include "vector_tables.h"

namespace sojourn {
namespace {

SOJOURN_INLINE F32x16 load_upto(const float* p, std::int64_t count) {
  return count >= kLanes ? load(p) : load_part(p, count);
}

SOJOURN_INLINE void store_upto(float* p, std::int64_t count, F32x16 a) {
  if (count >= kLanes) store(p, a);
  else store_part(p, count, a);
}

// Column i goes to sum (i / 16) % 4: four chains, for one alone waits on its own latency.
float sum_of_squares(const float* x, std::int64_t count) {
  F32x16 squares[4];
  for (F32x16& chain : squares) chain = broadcast(0.0f);
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const F32x16 v = load(x + i + c * kLanes);
      squares[c] = fma(v, v, squares[c]);
    }
  }
  for (int c = 0; i < count; i += kLanes, ++c) {
    const F32x16 v = load_upto(x + i, count - i);
    squares[c] = fma(v, v, squares[c]);
  }
  return sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
}

void rms_norm_group(const float* x, std::int64_t group, const float* weight, float eps, float offset, float* out) {
  const float mean = sum_of_squares(x, group) / static_cast<float>(group);
  const F32x16 inverse = broadcast(1.0f / __builtin_sqrtf(mean + eps)), shift = broadcast(offset);
  for (std::int64_t i = 0; i < group; i += kLanes) {
    const std::int64_t count = group - i;
    store_upto(out + i, count, load_upto(x + i, count) * inverse * (load_upto(weight + i, count) + shift));
  }
}

void rms_norm(const float* x, std::int64_t rows, std::int64_t width, std::int64_t group, const float* weight, float eps,
              float offset, float* out) {
  const std::int64_t groups = rows * (width / group);
  for (std::int64_t g = 0; g < groups; ++g) rms_norm_group(x + g * group, group, weight, eps, offset, out + g * group);
}

void rope(float* x, std::int64_t ldx, std::int64_t rows, std::int64_t heads, std::int64_t head_dim, const float* cos,
          const float* sin) {
  const std::int64_t half = head_dim / 2;
  for (std::int64_t row = 0; row < rows; ++row, x += ldx, cos += half, sin += half) {
    for (std::int64_t head = 0; head < heads; ++head) {
      float* first = x + head * head_dim;
      float* second = first + half;
      for (std::int64_t i = 0; i < half; i += kLanes) {
        const std::int64_t count = half - i;
        const F32x16 a = load_upto(first + i, count), b = load_upto(second + i, count);
        const F32x16 c = load_upto(cos + i, count), s = load_upto(sin + i, count);
        store_upto(first + i, count, a * c - b * s);
        store_upto(second + i, count, b * c + a * s);
      }
    }
  }
}

SOJOURN_INLINE F32x16 silu(F32x16 x) { return times_sigmoid(x, x); }

// Its tanh form, arXiv 1606.08415: x * (1 + tanh(u)) / 2, which is x times the logistic function of 2u.
SOJOURN_INLINE F32x16 gelu_tanh(F32x16 x) {
  const F32x16 inner = fma(x * x, broadcast(0.044715f), broadcast(1.0f)) * x;
  return times_sigmoid(x, inner * broadcast(1.59576912f));  // 2 sqrt(2 / pi)
}

template <typename Function>
SOJOURN_INLINE void glu_rows(const float* gate, const float* up, std::int64_t rows, std::int64_t begin,
                             std::int64_t end, std::int64_t ld, float* out, Function activate) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = begin; i < end; i += kLanes) {
      const std::int64_t at = row * ld + i, count = end - i;
      store_upto(out + at, count, activate(load_upto(gate + at, count)) * load_upto(up + at, count));
    }
  }
}

void glu(const float* gate, const float* up, std::int64_t rows, std::int64_t begin, std::int64_t end, std::int64_t ld,
         Activation activation, float* out) {
  if (activation == Activation::Silu) glu_rows(gate, up, rows, begin, end, ld, out, [](F32x16 x) { return silu(x); });
  else glu_rows(gate, up, rows, begin, end, ld, out, [](F32x16 x) { return gelu_tanh(x); });
}

void add(float* a, const float* b, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes)
    store_upto(a + i, count - i, load_upto(a + i, count - i) + load_upto(b + i, count - i));
}

void scale(float* a, float factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes)
    store_upto(a + i, count - i, load_upto(a + i, count - i) * broadcast(factor));
}

void softcap(float* a, float cap, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes)
    store_upto(a + i, count - i, capped(load_upto(a + i, count - i), broadcast(cap)));
}

constexpr VectorKernels kVectorKernels = {rms_norm, rope, glu, add, scale, softcap, write_kv, attend, merge};

}  // namespace
}  // namespace sojourn
