// Matrix products with AVX-512 VNNI: 16 lanes are one register.
#include <immintrin.h>

#define SOJOURN_UNROLL _Pragma("GCC unroll 32")
#include "../matmul_impl.h"
#include "../quantize_impl.h"

namespace sojourn {
namespace {

struct Avx512 {
  using Floats = __m512;
  using Ints = __m512i;
  using Bytes = __m512i;

  // A pair of panels is one stream of memory, and 8 x 2 is as fast as 8 x 3, 6 x 4 and 12 x 2 or faster on Zen 4.
  static constexpr int kMaxRows = 8;
  static constexpr int kFewRows = 8;
  static constexpr int kFewRowsPanels = 2;
  static constexpr int kManyRowsPanels = 2;
  static constexpr int kTileRegisters = 16;
  static constexpr std::int64_t kPrefetchAhead = 24576;
  static constexpr std::int64_t kLargeStrip = 65536;
  static constexpr bool kMasksHighNibbles = true;

  static SOJOURN_INLINE Floats zero() { return _mm512_setzero_ps(); }
  static SOJOURN_INLINE Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static SOJOURN_INLINE void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
  static SOJOURN_INLINE Floats broadcast(float v) { return _mm512_set1_ps(v); }
  static SOJOURN_INLINE Floats broadcast_bits(const std::uint32_t* p) {
    return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(*p)));
  }
  static SOJOURN_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static SOJOURN_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static SOJOURN_INLINE Floats to_floats(Ints v) { return _mm512_cvtepi32_ps(v); }
  static SOJOURN_INLINE Floats from_half(const std::uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static SOJOURN_INLINE Floats from_int8(const std::uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  // Line of two columns, the even one in the low half of each word.
  template <int kColumn>
  static SOJOURN_INLINE Floats from_bfloat16(const std::uint8_t* line) {
    const __m512i words = raw(line);
    return _mm512_castsi512_ps(kColumn == 0 ? _mm512_slli_epi32(words, 16)
                                            : _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  // To the second-level cache: it has more misses under way than the first, twice the bandwidth on Zen 4.
  static SOJOURN_INLINE void prefetch(const std::uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
  // Without this g++ keeps partial sums in registers that it does not have.
  static SOJOURN_INLINE void keep_in_memory() { asm volatile("" ::: "memory"); }

  static SOJOURN_INLINE __m512i raw(const std::uint8_t* line) { return _mm512_loadu_si512(line); }
  static SOJOURN_INLINE Bytes bytes(const std::uint8_t* line) { return raw(line); }
  static SOJOURN_INLINE Bytes low_nibbles(const std::uint8_t* line) {
    return _mm512_and_si512(raw(line), _mm512_set1_epi8(0x0f));
  }
  static SOJOURN_INLINE Bytes high_nibbles(const std::uint8_t* line) {  // times 16
    return _mm512_and_si512(raw(line), _mm512_set1_epi8(static_cast<char>(0xf0)));
  }
  template <int kHalf>
  static SOJOURN_INLINE Bytes nibbles(const std::uint8_t* line) {
    const __m512i both = raw(line);
    return _mm512_and_si512(kHalf == 0 ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi8(0x0f));
  }
  static SOJOURN_INLINE __mmask64 load_mask(const std::uint8_t* p) {
    __mmask64 mask;
    std::memcpy(&mask, p, sizeof mask);
    return mask;
  }
  template <int kHalf>
  static SOJOURN_INLINE Bytes five_bits(const std::uint8_t* line, const std::uint8_t* mask) {
    const Bytes four = nibbles<kHalf>(line);
    return _mm512_mask_add_epi8(four, load_mask(mask), four, _mm512_set1_epi8(16));
  }
  // Two bits of each byte of `high`, those from bit 2 * place on, moved to bits 4 and 5. `place` is a constant to the
  // optimizer, a shift by immediate wants one always.
  static SOJOURN_INLINE __m512i aligned(__m512i high, int place) {
    switch (place) {
      case 0: return _mm512_slli_epi16(high, 4);
      case 1: return _mm512_slli_epi16(high, 2);
      case 2: return high;
      default: return _mm512_srli_epi16(high, 2);
    }
  }
  template <int kHalf>
  static SOJOURN_INLINE Bytes six_bits(const std::uint8_t* line, const std::uint8_t* high, int place) {
    constexpr int kOrAnd = 0xf8;  // truth table of a | (b & c)
    return _mm512_ternarylogic_epi32(nibbles<kHalf>(line), aligned(raw(high), place), _mm512_set1_epi8(0x30), kOrAnd);
  }
  template <int kHalf>
  static SOJOURN_INLINE Bytes table_values(const std::uint8_t* line) {  // IQ4_NL's values plus 128
    const __m512i values = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kTableValues)));
    return _mm512_shuffle_epi8(values, nibbles<kHalf>(line));
  }
  static SOJOURN_INLINE Ints four_codes(const std::int8_t* p) { return _mm512_set1_epi32(load_word(p)); }

  // Every code set is dotted as unsigned bytes.
  template <Codes>
  struct Dots {
    static constexpr bool kSigned = false;
    Ints sum;
    static SOJOURN_INLINE Dots zero() { return {_mm512_setzero_si512()}; }
    static SOJOURN_INLINE Dots start(const std::uint32_t* value) { return {_mm512_set1_epi32(static_cast<int>(*value))}; }
    SOJOURN_INLINE void add(Bytes codes, Ints activations, int) { sum = _mm512_dpbusd_epi32(sum, codes, activations); }
    SOJOURN_INLINE Ints finish(int) const { return sum; }
  };

  // Largest magnitude of 32 values, as bits: finite, infinite and NaN in ascending order.
  static SOJOURN_INLINE std::uint32_t largest_magnitude(const float* x) {
    const __m512i sign_cleared = _mm512_set1_epi32(0x7fffffff);
    const __m512i a = _mm512_and_si512(_mm512_castps_si512(load(x)), sign_cleared);
    const __m512i b = _mm512_and_si512(_mm512_castps_si512(load(x + 16)), sign_cleared);
    return static_cast<std::uint32_t>(_mm512_reduce_max_epi32(_mm512_max_epi32(a, b)));
  }
  // 16 values times `factor`, rounded to the nearest even, and their sum.
  static SOJOURN_INLINE std::int32_t quantize(const float* x, float factor, std::int8_t* codes) {
    const __m512i rounded = _mm512_cvtps_epi32(mul(load(x), broadcast(factor)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm512_cvtepi32_epi8(rounded));
    return _mm512_reduce_add_epi32(rounded);
  }

  // Lane i: op over all lanes of v[i]. Each stage halves the lanes that a vector takes, and puts two vectors into one.
  template <class Op>
  static SOJOURN_INLINE __m512i over_lanes(__m512i* v, Op op) {
    SOJOURN_UNROLL
    for (int i = 0; i < 8; ++i)
      v[i] = op(_mm512_shuffle_i32x4(v[i], v[i + 8], 0x44), _mm512_shuffle_i32x4(v[i], v[i + 8], 0xee));
    SOJOURN_UNROLL
    for (int i = 0; i < 4; ++i)
      v[i] = op(_mm512_shuffle_i32x4(v[i], v[i + 4], 0x88), _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd));
    SOJOURN_UNROLL
    for (int i = 0; i < 2; ++i) v[i] = op(_mm512_unpacklo_epi64(v[i], v[i + 2]), _mm512_unpackhi_epi64(v[i], v[i + 2]));
    const __m512 a = _mm512_castsi512_ps(v[0]), b = _mm512_castsi512_ps(v[1]);
    const __m512i mixed = op(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)), _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return _mm512_permutexvar_epi32(order, mixed);
  }

  // What quantize_group does, for sixteen groups side by side: their scales are one division, their sums one tree.
  static constexpr int kGroupsTogether = 16;
  static SOJOURN_INLINE void quantize_groups(const float* x, float smallest, std::int8_t* codes, float* scales,
                                             std::int32_t* sums) {
    const __m512i sign_cleared = _mm512_set1_epi32(0x7fffffff);
    __m512i v[16];
    SOJOURN_UNROLL
    for (int g = 0; g < 16; ++g)
      v[g] = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(load(x + 32 * g)), sign_cleared),
                              _mm512_and_si512(_mm512_castps_si512(load(x + 32 * g + 16)), sign_cleared));
    const __m512i bits = over_lanes(v, [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); });
    const __m512 maximum = _mm512_castsi512_ps(bits), levels = _mm512_set1_ps(127.0f);
    const __mmask16 finite = _mm512_cmplt_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    const __mmask16 coded = _mm512_mask_cmp_ps_mask(finite, maximum, _mm512_set1_ps(smallest), _CMP_GE_OQ);
    const __m512 uncoded = _mm512_castsi512_ps(_mm512_maskz_set1_epi32(static_cast<__mmask16>(~finite), 0x7fc00000));
    store(scales, _mm512_mask_div_ps(uncoded, coded, maximum, levels));
    alignas(64) float factors[16];
    store(factors, _mm512_maskz_div_ps(coded, levels, maximum));
    __m512i sum[2];
    for (int half = 0; half < 2; ++half) {
      SOJOURN_UNROLL
      for (int g = 0; g < 16; ++g) {
        const int at = 32 * g + 16 * half;
        v[g] = _mm512_cvtps_epi32(mul(load(x + at), broadcast(factors[g])));  // 0 times NaN or infinity has the code 0
        _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + at), _mm512_cvtepi32_epi8(v[g]));
      }
      sum[half] = _mm512_maskz_mov_epi32(coded, over_lanes(v, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }));
    }
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    _mm512_storeu_si512(sums, _mm512_permutex2var_epi32(sum[0], low, sum[1]));
    _mm512_storeu_si512(sums + 16, _mm512_permutex2var_epi32(sum[0], high, sum[1]));
  }
};

}  // namespace

extern const MatmulKernels kAvx512VnniMatmul;
const MatmulKernels kAvx512VnniMatmul = {quantize_rows<Avx512>, matmul<Avx512>};

}  // namespace sojourn
