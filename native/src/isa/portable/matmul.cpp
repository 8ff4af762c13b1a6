// Matrix products in plain C++: 16 lanes are an array, which compilers turn into whatever vectors the target has.
#include <cmath>
#include <cstring>

#define SOJOURN_UNROLL  // arrays are no registers: plain loops compile fast and are vectorized
#include "../matmul_impl.h"
#include "../quantize_impl.h"
#include "sojourn/formats.h"

namespace sojourn {
namespace {

struct Portable {
  struct Floats { float v[16]; };
  struct Ints { std::int32_t v[16]; };
  struct Bytes { std::uint8_t v[64]; };
  struct FourCodes { std::int8_t v[4]; };

  static constexpr int kMaxRows = 4;
  static constexpr int kFewRows = 1;
  static constexpr int kFewRowsPanels = 1;
  static constexpr int kManyRowsPanels = 1;
  static constexpr int kTileRegisters = 16;
  static constexpr std::int64_t kPrefetchAhead = 0;
  static constexpr std::int64_t kLargeStrip = 0;
  static constexpr int kGroupsTogether = 1;
  static constexpr bool kMasksHighNibbles = false;

  template <class Function>
  static SOJOURN_INLINE Floats each(Function lane) {
    Floats result;
    for (int i = 0; i < 16; ++i) result.v[i] = lane(i);
    return result;
  }
  template <class Function>
  static SOJOURN_INLINE Bytes each_byte(Function lane) {
    Bytes result;
    for (int i = 0; i < 64; ++i) result.v[i] = static_cast<std::uint8_t>(lane(i));
    return result;
  }

  static SOJOURN_INLINE Floats zero() { return Floats{}; }
  static SOJOURN_INLINE Floats load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static SOJOURN_INLINE void store(float* p, const Floats& v) { std::memcpy(p, v.v, sizeof v.v); }
  static SOJOURN_INLINE Floats broadcast(float value) {
    return each([&](int) { return value; });
  }
  static SOJOURN_INLINE Floats broadcast_bits(const std::uint32_t* p) { return broadcast(float_from_bits(*p)); }
  static SOJOURN_INLINE Floats mul(const Floats& a, const Floats& b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
  }
  static SOJOURN_INLINE Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  static SOJOURN_INLINE Floats to_floats(const Ints& v) {
    return each([&](int i) { return static_cast<float>(v.v[i]); });
  }
  static SOJOURN_INLINE Floats from_half(const std::uint8_t* p) {
    return each([&](int i) { return half_to_float(load_u16(p + 2 * i)); });
  }
  static SOJOURN_INLINE Floats from_int8(const std::uint8_t* p) {
    return each([&](int i) { return static_cast<float>(static_cast<std::int8_t>(p[i])); });
  }
  template <int kColumn>
  static SOJOURN_INLINE Floats from_bfloat16(const std::uint8_t* line) {
    return each([&](int i) { return bfloat16_to_float(load_u16(line + 4 * i + 2 * kColumn)); });
  }
  static SOJOURN_INLINE void prefetch(const std::uint8_t*) {}
  static SOJOURN_INLINE void keep_in_memory() {}

  static SOJOURN_INLINE Bytes bytes(const std::uint8_t* line) {
    return each_byte([&](int i) { return line[i]; });
  }
  static SOJOURN_INLINE Bytes low_nibbles(const std::uint8_t* line) {
    return each_byte([&](int i) { return line[i] & 15; });
  }
  static SOJOURN_INLINE Bytes high_nibbles(const std::uint8_t* line) {
    return each_byte([&](int i) { return line[i] >> 4; });
  }
  template <int kHalf>
  static SOJOURN_INLINE Bytes five_bits(const std::uint8_t* line, const std::uint8_t* mask) {
    return each_byte([&](int i) { return (line[i] >> (4 * kHalf) & 15) | (mask[i / 8] >> (i % 8) & 1) << 4; });
  }
  template <int kHalf>
  static SOJOURN_INLINE Bytes six_bits(const std::uint8_t* line, const std::uint8_t* high, int place) {
    return each_byte([&](int i) { return (line[i] >> (4 * kHalf) & 15) | (high[i] >> (2 * place) & 3) << 4; });
  }
  template <int kHalf>
  static SOJOURN_INLINE Bytes table_values(const std::uint8_t* line) {
    return each_byte([&](int i) { return kTableValues[line[i] >> (4 * kHalf) & 15]; });
  }
  static SOJOURN_INLINE FourCodes four_codes(const std::int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }

  template <Codes>
  struct Dots {
    static constexpr bool kSigned = false;
    Ints sum;
    static SOJOURN_INLINE Dots zero() { return Dots{}; }
    static SOJOURN_INLINE Dots start(const std::uint32_t* value) {
      Dots dots;
      for (int i = 0; i < 16; ++i) dots.sum.v[i] = static_cast<std::int32_t>(*value);
      return dots;
    }
    SOJOURN_INLINE void add(const Bytes& codes, const FourCodes& activations, int) {
      for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 4; ++j) sum.v[i] += static_cast<std::int32_t>(codes.v[4 * i + j]) * activations.v[j];
    }
    SOJOURN_INLINE const Ints& finish(int) const { return sum; }
  };

  static std::uint32_t largest_magnitude(const float* x) {
    std::uint32_t largest = 0;
    for (int i = 0; i < kActivationGroup; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, x + i, sizeof bits);
      bits &= 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
    return largest;
  }
  static std::int32_t quantize(const float* x, float factor, std::int8_t* codes) {
    // Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the low bits.
    constexpr float kRounder = 0x1.8p23f;
    std::int32_t sum = 0;
    for (int i = 0; i < 16; ++i) {
      const float rounded = (x[i] * factor + kRounder) - kRounder;
      codes[i] = static_cast<std::int8_t>(rounded);
      sum += codes[i];
    }
    return sum;
  }
};

}  // namespace

extern const MatmulKernels kPortableMatmul;
const MatmulKernels kPortableMatmul = {quantize_rows<Portable>, matmul<Portable>};

}  // namespace sojourn
