// Matrix products with AVX2, FMA and F16C: 16 lanes are two registers.
#include <immintrin.h>

#define SOJOURN_UNROLL _Pragma("GCC unroll 32")
#include "../matmul_impl.h"
#include "../quantize_impl.h"

namespace sojourn {
namespace {

struct Pair {
  __m256i low, high;
};

template <class Function>
SOJOURN_INLINE Pair both(const Pair& a, Function function) {
  return {function(a.low), function(a.high)};
}

template <class Function>
SOJOURN_INLINE Pair both(const Pair& a, const Pair& b, Function function) {
  return {function(a.low, b.low), function(a.high, b.high)};
}

SOJOURN_INLINE __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
SOJOURN_INLINE __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

// Products of 64 unsigned codes and 4 activations, summed in pairs: 32 sums of 16 bits. The caller knows that they fit.
SOJOURN_INLINE Pair multiply(const Pair& codes, __m256i activations) {
  return both(codes, [&](__m256i c) { return _mm256_maddubs_epi16(c, activations); });
}
SOJOURN_INLINE Pair add_16(const Pair& a, const Pair& b) {
  return both(a, b, [](__m256i u, __m256i v) { return _mm256_add_epi16(u, v); });
}
SOJOURN_INLINE Pair add_32(const Pair& a, const Pair& b) {
  return both(a, b, [](__m256i u, __m256i v) { return _mm256_add_epi32(u, v); });
}
SOJOURN_INLINE Pair widen(const Pair& sums) {
  return both(sums, [](__m256i s) { return _mm256_madd_epi16(s, _mm256_set1_epi16(1)); });
}
SOJOURN_INLINE Pair zero_pair() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
SOJOURN_INLINE Pair broadcast_pair(const std::uint32_t* p) {
  const __m256i value = _mm256_set1_epi32(static_cast<int>(*p));
  return {value, value};
}

// Codes below 2^kBits: kLines lines add up in 16 bits, (2^kBits - 1) * 127 * 2 * kLines < 2^15, before they are widened.
template <int kBits>
struct UnsignedDots {
  static constexpr bool kSigned = false;
  static constexpr int kLines = 32767 / (((1 << kBits) - 1) * 127 * 2);
  Pair sum, narrow;
  static SOJOURN_INLINE UnsignedDots zero() { return {zero_pair(), zero_pair()}; }
  static SOJOURN_INLINE UnsignedDots start(const std::uint32_t* value) { return {broadcast_pair(value), zero_pair()}; }
  SOJOURN_INLINE void add(const Pair& codes, __m256i activations, int line) {
    const Pair products = multiply(codes, activations);
    narrow = line % kLines == 0 ? products : add_16(narrow, products);
    if (line % kLines == kLines - 1) sum = add_32(sum, widen(narrow));
  }
  SOJOURN_INLINE Pair finish(int lines) const { return lines % kLines == 0 ? sum : add_32(sum, widen(narrow)); }
};

// Codes of 8 bits around 128: the sign moves to the activation, so that |code| * activation * 2 <= 128 * 127 * 2 < 2^15.
struct SignedDots {
  static constexpr bool kSigned = true;
  Pair sum;
  static SOJOURN_INLINE SignedDots zero() { return {zero_pair()}; }
  static SOJOURN_INLINE SignedDots start(const std::uint32_t* value) { return {broadcast_pair(value)}; }
  SOJOURN_INLINE void add(const Pair& codes, __m256i activations, int) {
    sum = add_32(sum, widen(both(codes, [&](__m256i c) {
                   const __m256i value = _mm256_xor_si256(c, _mm256_set1_epi8(static_cast<char>(0x80)));
                   return _mm256_maddubs_epi16(_mm256_abs_epi8(value), _mm256_sign_epi8(activations, value));
                 })));
  }
  SOJOURN_INLINE Pair finish(int) const { return sum; }
};

template <Codes kCodes>
struct DotsOf {
  using Type = SignedDots;
};
template <>
struct DotsOf<Codes::Nibble> {
  using Type = UnsignedDots<4>;
};
template <>
struct DotsOf<Codes::FiveBit> {
  using Type = UnsignedDots<5>;
};
template <>
struct DotsOf<Codes::SixBit> {
  using Type = UnsignedDots<6>;
};

struct Avx2 {
  struct Floats {
    __m256 low, high;
  };
  using Ints = Pair;
  using Bytes = Pair;
  template <Codes kCodes>
  using Dots = typename DotsOf<kCodes>::Type;

  static constexpr int kMaxRows = 4;
  static constexpr int kFewRows = 2;
  static constexpr int kFewRowsPanels = 2;
  static constexpr int kManyRowsPanels = 1;
  static constexpr int kTileRegisters = 4;
  static constexpr std::int64_t kPrefetchAhead = 24576;
  static constexpr std::int64_t kLargeStrip = 65536;
  static constexpr int kGroupsTogether = 1;
  static constexpr bool kMasksHighNibbles = false;

  static SOJOURN_INLINE Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static SOJOURN_INLINE Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static SOJOURN_INLINE void store(float* p, const Floats& v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
  }
  static SOJOURN_INLINE Floats broadcast(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
  static SOJOURN_INLINE Floats broadcast_bits(const std::uint32_t* p) {
    const __m256 value = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(*p)));
    return {value, value};
  }
  static SOJOURN_INLINE Floats mul(const Floats& a, const Floats& b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static SOJOURN_INLINE Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static SOJOURN_INLINE Floats to_floats(const Ints& v) { return {_mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high)}; }
  static SOJOURN_INLINE Floats from_half(const std::uint8_t* p) {
    return {_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 16))};
  }
  static SOJOURN_INLINE Floats from_int8(const std::uint8_t* p) {
    const __m128i values = load_128(p);
    return to_floats({_mm256_cvtepi8_epi32(values), _mm256_cvtepi8_epi32(_mm_srli_si128(values, 8))});
  }
  // Line of two columns, the even one in the low half of each word.
  template <int kColumn>
  static SOJOURN_INLINE Floats from_bfloat16(const std::uint8_t* line) {
    const Pair words = both(bytes(line), [](__m256i v) {
      return kColumn == 0 ? _mm256_slli_epi32(v, 16) : _mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
    });
    return {_mm256_castsi256_ps(words.low), _mm256_castsi256_ps(words.high)};
  }
  // To the second-level cache: it has more misses under way than the first, twice the bandwidth on Zen 4.
  static SOJOURN_INLINE void prefetch(const std::uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
  // Without this g++ keeps partial sums in registers that it does not have.
  static SOJOURN_INLINE void keep_in_memory() { asm volatile("" ::: "memory"); }

  static SOJOURN_INLINE Bytes bytes(const std::uint8_t* line) { return {load_256(line), load_256(line + 32)}; }
  template <int kHalf>
  static SOJOURN_INLINE Bytes nibbles(const std::uint8_t* line) {
    return both(bytes(line), [](__m256i v) {
      return _mm256_and_si256(kHalf == 0 ? v : _mm256_srli_epi16(v, 4), _mm256_set1_epi8(0x0f));
    });
  }
  static SOJOURN_INLINE Bytes low_nibbles(const std::uint8_t* line) { return nibbles<0>(line); }
  static SOJOURN_INLINE Bytes high_nibbles(const std::uint8_t* line) { return nibbles<1>(line); }

  // 16 in every byte whose bit is set in 32 bits.
  static SOJOURN_INLINE __m256i fifth_bits(const std::uint8_t* mask) {
    const __m256i byte_of_lane = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,  //
                                                  2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit_of_lane = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
    const __m256i bits = _mm256_set1_epi32(load_word(reinterpret_cast<const std::int8_t*>(mask)));
    const __m256i spread = _mm256_shuffle_epi8(bits, byte_of_lane);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of_lane), bit_of_lane);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
  }
  template <int kHalf>
  static SOJOURN_INLINE Bytes five_bits(const std::uint8_t* line, const std::uint8_t* mask) {
    const Bytes four = nibbles<kHalf>(line);
    return {_mm256_or_si256(four.low, fifth_bits(mask)), _mm256_or_si256(four.high, fifth_bits(mask + 4))};
  }
  // Two bits of each byte of `high`, those from bit 2 * place on, moved to bits 4 and 5. `place` is a constant to the
  // optimizer, a shift by immediate wants one always.
  static SOJOURN_INLINE __m256i aligned(__m256i high, int place) {
    switch (place) {
      case 0: return _mm256_slli_epi16(high, 4);
      case 1: return _mm256_slli_epi16(high, 2);
      case 2: return high;
      default: return _mm256_srli_epi16(high, 2);
    }
  }
  template <int kHalf>
  static SOJOURN_INLINE Bytes six_bits(const std::uint8_t* line, const std::uint8_t* high, int place) {
    return both(nibbles<kHalf>(line), bytes(high), [&](__m256i four, __m256i two) {
      return _mm256_or_si256(four, _mm256_and_si256(aligned(two, place), _mm256_set1_epi8(0x30)));
    });
  }
  template <int kHalf>
  static SOJOURN_INLINE Bytes table_values(const std::uint8_t* line) {
    const __m256i values = _mm256_broadcastsi128_si256(load_128(kTableValues));
    return both(nibbles<kHalf>(line), [&](__m256i codes) { return _mm256_shuffle_epi8(values, codes); });
  }
  static SOJOURN_INLINE __m256i four_codes(const std::int8_t* p) { return _mm256_set1_epi32(load_word(p)); }

  static SOJOURN_INLINE __m256i magnitudes(const float* x) {
    return _mm256_and_si256(load_256(x), _mm256_set1_epi32(0x7fffffff));
  }
  // Largest magnitude of 32 values, as bits: finite, infinite and NaN in ascending order.
  static SOJOURN_INLINE std::uint32_t largest_magnitude(const float* x) {
    const __m256i eight = _mm256_max_epi32(_mm256_max_epi32(magnitudes(x), magnitudes(x + 8)),
                                           _mm256_max_epi32(magnitudes(x + 16), magnitudes(x + 24)));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
  }
  // 16 values times `factor`, rounded to the nearest even, and their sum.
  static SOJOURN_INLINE std::int32_t quantize(const float* x, float factor, std::int8_t* codes) {
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(factor)));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), _mm256_set1_ps(factor)));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes),
                     _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    const __m256i eight = _mm256_add_epi32(low, high);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
  }
};

}  // namespace

extern const MatmulKernels kAvx2Matmul;
const MatmulKernels kAvx2Matmul = {quantize_rows<Avx2>, matmul<Avx2>};

}  // namespace sojourn
