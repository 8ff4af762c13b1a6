// Activations to int8 codes, written once over an instruction set's primitives; see matmul_impl.h for what applies to both.
#pragma once

#include <cstdint>
#include <cstring>

#include "sojourn/matmul.h"

namespace sojourn {
namespace {

// Smaller groups count as zeros: the reciprocal of their scale would not be finite.
constexpr float kSmallestMaximum = 0x1p-112f;

void set_bits(float* out, std::uint32_t bits) { std::memcpy(out, &bits, 4); }

// Scale, codes and two sums of 32 activations. Infinities and NaN cannot be coded: they make the scale NaN, and with it
// every result of the row.
template <class V>
void quantize_group(const float* x, std::int8_t* codes, float* scale, std::int32_t* sums) {
  const std::uint32_t bits = V::largest_magnitude(x);
  float maximum;
  set_bits(&maximum, bits);
  const bool finite = bits < 0x7f800000u;
  if (finite && maximum >= kSmallestMaximum) {
    *scale = maximum / 127.0f;
    const float factor = 127.0f / maximum;
    for (int i = 0; i < 2; ++i) sums[i] = V::quantize(x + 16 * i, factor, codes + 16 * i);
    return;
  }
  set_bits(scale, finite ? 0 : 0x7fc00000u);
  for (int i = 0; i < kActivationGroup; ++i) codes[i] = 0;
  sums[0] = sums[1] = 0;
}

template <class V>
void quantize_rows(const float* x, std::int64_t ldx, std::int64_t k, std::int64_t row_begin, std::int64_t row_end,
                   const QuantizedRows& out) {
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    const float* row = x + r * ldx;
    std::int8_t* codes = out.codes + r * out.padded_k;
    float* scales = out.scales + r * (out.padded_k / kActivationGroup);
    std::int32_t* sums = out.sums + r * (out.padded_k / 16);
    std::int64_t first = 0;
    if constexpr (V::kGroupsTogether > 1) {
      constexpr std::int64_t kTogether = V::kGroupsTogether * kActivationGroup;
      for (; first + kTogether <= k; first += kTogether)
        V::quantize_groups(row + first, kSmallestMaximum, codes + first, scales + first / kActivationGroup, sums + first / 16);
    }
    for (; first < out.padded_k; first += kActivationGroup) {
      alignas(64) float padded[kActivationGroup] = {};
      const float* group = row + first;
      if (first + kActivationGroup > k) {
        for (std::int64_t i = first; i < k; ++i) padded[i - first] = row[i];
        group = padded;
      }
      quantize_group<V>(group, codes + first, scales + first / kActivationGroup, sums + first / 16);
    }
  }
}

}  // namespace
}  // namespace sojourn
