// The storage formats of weights: their names, block shapes and byte layouts. No arithmetic but the two 16-bit floats.
//
// A tensor row is a sequence of blocks; every block holds `block_elements` weights in `block_bytes` bytes, little-endian.
// The layouts are those of GGUF. src/sojourn/weights/dequantize.py describes them in words and is the slow twin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace sojourn {

enum class Format { F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL };

struct FormatInfo {
  Format format;
  std::string_view name;
  std::size_t block_elements;
  std::size_t block_bytes;
};

inline constexpr std::size_t kSmallBlock = 32;   // Q4_0 ... Q8_0, IQ4_NL
inline constexpr std::size_t kSuperBlock = 256;  // the K formats

// All fields are bytes, so a block may lie at any address and has no padding.
struct Half { std::uint8_t bytes[2]; };
struct BlockQ4_0 { Half d; std::uint8_t qs[16]; };
struct BlockQ4_1 { Half d, m; std::uint8_t qs[16]; };
struct BlockQ5_0 { Half d; std::uint8_t qh[4]; std::uint8_t qs[16]; };
struct BlockQ5_1 { Half d, m; std::uint8_t qh[4]; std::uint8_t qs[16]; };
struct BlockQ8_0 { Half d; std::int8_t qs[32]; };
struct BlockQ2_K { std::uint8_t scales[16]; std::uint8_t qs[64]; Half d, dmin; };
struct BlockQ3_K { std::uint8_t hmask[32]; std::uint8_t qs[64]; std::uint8_t scales[12]; Half d; };
struct BlockQ4_K { Half d, dmin; std::uint8_t scales[12]; std::uint8_t qs[128]; };
struct BlockQ5_K { Half d, dmin; std::uint8_t scales[12]; std::uint8_t qh[32]; std::uint8_t qs[128]; };
struct BlockQ6_K { std::uint8_t ql[128]; std::uint8_t qh[64]; std::int8_t scales[16]; Half d; };
struct BlockIQ4_NL { Half d; std::uint8_t qs[16]; };

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210 && sizeof(BlockIQ4_NL) == 18);

// The sixteen values of IQ4_NL's codebook.
inline constexpr std::int8_t kIQ4NLValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

inline float float_from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t load_u16(const std::uint8_t* p) { return static_cast<std::uint32_t>(p[0] | (p[1] << 8)); }

inline std::uint32_t load_u32(const std::uint8_t* p) { return load_u16(p) | (load_u16(p + 2) << 16); }

// IEEE half to float, exact. Subnormals are built from an integer, so a process that flushes denormals gets them right too.
inline float half_to_float(std::uint32_t h) {
  const std::uint32_t sign = (h & 0x8000u) << 16;
  const std::uint32_t exponent = h & 0x7c00u;
  const std::uint32_t mantissa = h & 0x03ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 0x7c00u ? 0x7f800000u : (exponent << 13) + 0x38000000u;
  return float_from_bits(sign | wide | (mantissa << 13));
}

inline float to_float(Half h) { return half_to_float(load_u16(h.bytes)); }

inline float bfloat16_to_float(std::uint32_t b) { return float_from_bits(b << 16); }

// Row of the format table, or nullptr when no format has this name.
const FormatInfo* find_format(std::string_view name);

// The table itself, `count` rows.
const FormatInfo* all_formats(std::size_t* count);

}  // namespace sojourn
