// How a line of codes and a group's scales are read, for every format, over an instruction set's primitives. As in
// matmul_impl.h nothing here has external linkage.
#pragma once

#include <cstdint>

#include "../panels.h"

#if defined(__GNUC__)
#define SOJOURN_INLINE inline __attribute__((always_inline))
#define SOJOURN_NOINLINE __attribute__((noinline))
#else
#define SOJOURN_INLINE __forceinline
#define SOJOURN_NOINLINE __declspec(noinline)
#endif

namespace sojourn {
namespace {

// A code set gives lines of 64 unsigned codes. kHighFactor: codes of columns 32-63 come out this many times too large,
// which saves a shift; the scale of those groups is divided by it, which is exact.
template <class V, Codes kCodes>
struct CodeSet;

template <class V>
struct CodeSet<V, Codes::Nibble> {
  static constexpr int kHighFactor = V::kMasksHighNibbles ? 16 : 1;
  template <int kHalf>
  static typename V::Bytes line(const std::uint8_t* codes, int s) {
    return kHalf == 0 ? V::low_nibbles(codes + 64 * s) : V::high_nibbles(codes + 64 * s);
  }
};

// IQ4_NL's values plus 128.
alignas(16) constexpr std::uint8_t kTableValues[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

template <class V>
struct CodeSet<V, Codes::NibbleTable> {
  static constexpr int kHighFactor = 1;
  template <int kHalf>
  static typename V::Bytes line(const std::uint8_t* codes, int s) {
    return V::template table_values<kHalf>(codes + 64 * s);
  }
};

template <class V>
struct CodeSet<V, Codes::FiveBit> {
  static constexpr int kHighFactor = 1;
  template <int kHalf>
  static typename V::Bytes line(const std::uint8_t* codes, int s) {
    return V::template five_bits<kHalf>(codes + 64 * s, codes + 512 + 64 * kHalf + 8 * s);
  }
};

template <class V>
struct CodeSet<V, Codes::Byte> {
  static constexpr int kHighFactor = 1;
  template <int kHalf>
  static typename V::Bytes line(const std::uint8_t* codes, int s) {
    return V::bytes(codes + 512 * kHalf + 64 * s);
  }
};

template <class V>
struct CodeSet<V, Codes::SixBit> {
  static constexpr int kHighFactor = 1;
  template <int kHalf>
  static typename V::Bytes line(const std::uint8_t* codes, int s) {
    return V::template six_bits<kHalf>(codes + 64 * s, codes + 512 + 128 * kHalf + s / 4 * 64, s % 4);
  }
};

// Scale and minimum of group g of a block, in float32 and exact.
template <class V, Scales kScales>
struct ScaleSet {
  static typename V::Floats scale(const std::uint8_t* header, const std::uint8_t* block, int g) {
    if constexpr (has_header(kScales))
      return V::mul(V::from_half(header), V::from_int8(block + 16 * g));
    else
      return V::from_half(block + 32 * g);
  }
  static typename V::Floats minimum(const std::uint8_t* header, const std::uint8_t* block, int g) {
    constexpr int kGroups = kBlockColumns / group_columns(kScales);
    if constexpr (has_header(kScales))
      return V::mul(V::from_half(header + 32), V::from_int8(block + 16 * (kGroups + g)));
    else
      return V::from_half(block + 64 + 32 * g);
  }
};

template <class V, Codes kCodesOf, Scales kScalesOf>
struct Layout {
  static constexpr Codes kCodes = kCodesOf;
  static constexpr Scales kScales = kScalesOf;
  static constexpr int kGroups = kBlockColumns / group_columns(kScales);  // of a block: 2 or 4
  static constexpr int kHalfGroups = kGroups / 2;
  static constexpr int kLines = 8 / kHalfGroups;  // lines of a group
  static constexpr std::size_t kSpanBytes = span_bytes(kCodes, kScales);
  static constexpr std::size_t kBlockBytes = block_bytes(kCodes, kScales);
  static constexpr bool kMinimums = has_minimums(kScales);
  using Code = CodeSet<V, kCodes>;
  using Scale = ScaleSet<V, kScales>;
  // Zero points enter as the dot products' start value, unless the instruction set dots these codes as signed numbers.
  static constexpr bool kStarts = !kMinimums && !V::template Dots<kCodes>::kSigned;
};

}  // namespace
}  // namespace sojourn
