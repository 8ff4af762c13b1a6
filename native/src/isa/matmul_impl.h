// The matrix product, written once over an instruction set's 16-lane primitives. quantize_impl.h is its other half.
//
// Each source in isa/<name>/ defines a struct of primitives (`V` below) in an unnamed namespace and instantiates this for
// it. Nothing here has external linkage and nothing calls inline functions of other headers: code compiled for one
// instruction set must not be merged with, and called from, code for another.
//
// Order of operations of one result, the same in every tile and on every instruction set. For each group, ascending:
//   dot = sum of (code - zero_point) * activation code           (int32, exact)
//   y   = fma(float(dot), weight_scale * activation_scale, y)
//   y   = fma(weight_minimum, activation_scale * float(sum of activation codes), y)       (formats with minimums)
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../panels.h"
#include "matmul_formats.h"
#include "sojourn/matmul.h"

// Before including this a source defines SOJOURN_UNROLL: what stands before a loop over registers, which must be unrolled.

namespace sojourn {

// Scratch of the calling thread, at least `count` words; lives until the thread's next call.
std::uint32_t* matmul_scratch(std::size_t count);

namespace {

// Four activation codes as one word.
SOJOURN_INLINE std::int32_t load_word(const std::int8_t* p) {
  std::int32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// ---- tiles ------------------------------------------------------------------------------------------------------------

// Rows of activations as a tile reads them; strides in elements. `corrections` holds, for each row and group of weights,
// the dot product's start value (int32) or activation scale * sum of codes (float).
struct Rows {
  const std::int8_t* codes;
  const float* scales;
  const std::uint32_t* corrections;
  std::int64_t code_stride, scale_stride, correction_stride;
};

// Panels side by side, as many as the widest tile takes.
struct Strip {
  const std::uint8_t* panels[2];
  std::int64_t spans;
  bool prefetch;
  std::int64_t ahead[2];  // bytes from what a panel reads to what is worth prefetching meanwhile
};

// kRows rows by kPanels panels of an integer format. Partial sums live in registers while they fit, else in L1, where
// the fused multiply-add takes them from: the registers then hold the dot products of one group.
template <class V, class L, int kRows, int kPanels>
struct Tile {
  static constexpr int kSize = kRows * kPanels;
  static constexpr bool kInRegisters = 2 * kSize <= V::kTileRegisters;
  using Floats = typename V::Floats;

  struct Sums {
    Floats registers[kInRegisters ? kSize : 1];
    float memory[kInRegisters ? 1 : 16 * kSize];

    SOJOURN_INLINE Floats get(int i) const { return kInRegisters ? registers[kInRegisters ? i : 0] : V::load(memory + 16 * i); }
    SOJOURN_INLINE void set(int i, Floats value) {
      if constexpr (kInRegisters)
        registers[i] = value;
      else
        V::store(memory + 16 * i, value);
    }
  };

  template <int kGroup>
  static SOJOURN_INLINE void add_group(const std::uint8_t* const* header, const std::uint8_t* const* block, const Rows& rows,
                                       Sums& sums) {
    constexpr int kHalf = kGroup / L::kHalfGroups, kFirstLine = kGroup % L::kHalfGroups * L::kLines;
    using Dots = typename V::template Dots<L::kCodes>;
    Dots dots[kSize];
    SOJOURN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      dots[r * kPanels] = L::kStarts ? Dots::start(rows.corrections + r * rows.correction_stride + kGroup) : Dots::zero();
      SOJOURN_UNROLL
      for (int p = 1; p < kPanels; ++p) dots[r * kPanels + p] = dots[r * kPanels];
    }
    SOJOURN_UNROLL
    for (int s = kFirstLine; s < kFirstLine + L::kLines; ++s) {
      typename V::Bytes line[kPanels];
      SOJOURN_UNROLL
      for (int p = 0; p < kPanels; ++p) line[p] = L::Code::template line<kHalf>(block[p] + scale_bytes(L::kScales), s);
      SOJOURN_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const auto activations = V::four_codes(rows.codes + r * rows.code_stride + 32 * kHalf + 4 * s);
        SOJOURN_UNROLL
        for (int p = 0; p < kPanels; ++p) dots[r * kPanels + p].add(line[p], activations, s - kFirstLine);
      }
    }
    Floats scale[kPanels], minimum[kPanels];
    SOJOURN_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      scale[p] = L::Scale::scale(header[p], block[p], kGroup);
      if constexpr (kHalf == 1 && L::Code::kHighFactor != 1)
        scale[p] = V::mul(scale[p], V::broadcast(1.0f / L::Code::kHighFactor));
      minimum[p] = L::kMinimums ? L::Scale::minimum(header[p], block[p], kGroup) : V::zero();
    }
    SOJOURN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Floats row_scale = V::broadcast(rows.scales[r * rows.scale_stride + kHalf]);
      SOJOURN_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        const int i = r * kPanels + p;
        Floats sum = V::fma(V::to_floats(dots[i].finish(L::kLines)), V::mul(scale[p], row_scale), sums.get(i));
        if constexpr (L::kMinimums)
          sum = V::fma(minimum[p], V::broadcast_bits(rows.corrections + r * rows.correction_stride + kGroup), sum);
        sums.set(i, sum);
      }
    }
    if constexpr (!kInRegisters) V::keep_in_memory();
  }

  static SOJOURN_NOINLINE void run(const Strip& strip, Rows rows, float* y, std::int64_t ldy) {
    alignas(64) Sums sums;
    SOJOURN_UNROLL
    for (int i = 0; i < kSize; ++i) sums.set(i, V::zero());
    const std::uint8_t* header[kPanels];
    const std::uint8_t* block[kPanels];
    SOJOURN_UNROLL
    for (int p = 0; p < kPanels; ++p) header[p] = strip.panels[p];
    for (std::int64_t span = 0; span < strip.spans; ++span) {
      SOJOURN_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        block[p] = header[p] + header_bytes(L::kScales);
        if (has_header(L::kScales) && strip.prefetch) V::prefetch(header[p] + strip.ahead[p]);
      }
      for (int b = 0; b < blocks_per_span(L::kScales); ++b) {
        if (strip.prefetch) {
          SOJOURN_UNROLL
          for (int p = 0; p < kPanels; ++p)
            for (std::size_t at = 0; at < L::kBlockBytes; at += 64) V::prefetch(block[p] + strip.ahead[p] + at);
        }
        add_group<0>(header, block, rows, sums);
        add_group<1>(header, block, rows, sums);
        if constexpr (L::kGroups == 4) {
          add_group<2>(header, block, rows, sums);
          add_group<3>(header, block, rows, sums);
        }
        rows.codes += kBlockColumns;
        rows.scales += 2;
        if constexpr (L::kMinimums || L::kStarts) rows.corrections += L::kGroups;
        SOJOURN_UNROLL
        for (int p = 0; p < kPanels; ++p) block[p] += L::kBlockBytes;
      }
      SOJOURN_UNROLL
      for (int p = 0; p < kPanels; ++p) header[p] += 2 * L::kSpanBytes;
    }
    SOJOURN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      SOJOURN_UNROLL
      for (int p = 0; p < kPanels; ++p) V::store(y + r * ldy + 16 * p, sums.get(r * kPanels + p));
    }
  }
};

// Float weights: one chain of fused multiply-adds per result, k ascending.
template <class V, Codes kCodes, int kRows, int kPanels>
struct FloatTile {
  using Floats = typename V::Floats;

  template <int kColumn>
  static SOJOURN_INLINE void add_column(const std::uint8_t* const* weights, const float* x, std::int64_t ldx, Floats* sums) {
    Floats w[kPanels];
    SOJOURN_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      if constexpr (kCodes == Codes::Float32) w[p] = V::load(reinterpret_cast<const float*>(weights[p] + 64 * kColumn));
      if constexpr (kCodes == Codes::Float16) w[p] = V::from_half(weights[p] + 32 * kColumn);
      if constexpr (kCodes == Codes::BFloat16) w[p] = V::template from_bfloat16<kColumn>(weights[p]);
    }
    SOJOURN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Floats value = V::broadcast(x[r * ldx + kColumn]);
      SOJOURN_UNROLL
      for (int p = 0; p < kPanels; ++p) sums[r * kPanels + p] = V::fma(w[p], value, sums[r * kPanels + p]);
    }
  }

  static SOJOURN_NOINLINE void run(const Strip& strip, std::int64_t k, const float* x, std::int64_t ldx, float* y,
                                   std::int64_t ldy) {
    constexpr std::size_t kSpanBytes = span_bytes(kCodes, Scales::None);
    constexpr std::size_t kPairBytes = kSpanBytes / (kBlockColumns / 2);
    Floats sums[kRows * kPanels];
    SOJOURN_UNROLL
    for (int i = 0; i < kRows * kPanels; ++i) sums[i] = V::zero();
    const std::uint8_t* weights[kPanels];
    SOJOURN_UNROLL
    for (int p = 0; p < kPanels; ++p) weights[p] = strip.panels[p];
    for (std::int64_t column = 0; column + 1 < k; column += 2) {
      if (strip.prefetch) {
        SOJOURN_UNROLL
        for (int p = 0; p < kPanels; ++p)
          for (std::size_t at = 0; at < kPairBytes; at += 64) V::prefetch(weights[p] + strip.ahead[p] + at);
      }
      add_column<0>(weights, x + column, ldx, sums);
      add_column<1>(weights, x + column, ldx, sums);
      const std::size_t step = kPairBytes + (column % kBlockColumns == kBlockColumns - 2 ? kSpanBytes : 0);
      SOJOURN_UNROLL
      for (int p = 0; p < kPanels; ++p) weights[p] += step;
    }
    if (k % 2 != 0) add_column<0>(weights, x + k - 1, ldx, sums);
    SOJOURN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      SOJOURN_UNROLL
      for (int p = 0; p < kPanels; ++p) V::store(y + r * ldy + 16 * p, sums[r * kPanels + p]);
    }
  }
};

// ---- the product ------------------------------------------------------------------------------------------------------

// How many strips ahead a strip prefetches; 0: a fixed distance instead, since whole strips are too large. Where it has
// several tiles only the last one prefetches, the next strip.
template <class V>
std::int64_t strips_ahead(std::int64_t strip_bytes, std::int64_t tiles) {
  if (tiles > 1) return 1;
  if (strip_bytes > V::kLargeStrip) return 0;
  const std::int64_t fitting = V::kPrefetchAhead / strip_bytes;
  return fitting > 1 ? fitting : 1;
}

// What is worth asking for while a strip is computed: the strips that follow in this thread's range, and at its end those
// of `next`, so that the memory is busy while the thread waits for others.
template <class V>
std::int64_t distance_ahead(const Panels& w, const PanelRange& range, std::int64_t panel, std::int64_t strips,
                            std::int64_t wide) {
  if (strips == 0) return V::kPrefetchAhead;
  const std::int64_t wanted = panel + strips * wide;
  const std::uint8_t* place = w.panel(panel);
  if (wanted < range.end) place = w.panel(wanted);
  else if (range.next != nullptr) place = range.next + w.offset(wanted - range.end);
  return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(place) - reinterpret_cast<std::intptr_t>(w.panel(panel)));
}

// Calls run_tile(strip, rows in tile, first row, panels in strip, first panel) for every tile. Strips of panels are the
// outer loop, so weights come from memory once; the rows are split into tiles as equal as can be. The last tile of a
// strip prefetches.
template <class V, class RunTile>
void for_each_tile(const Panels& w, std::int64_t rows, const PanelRange& range, RunTile run_tile) {
  const std::int64_t tiles = (rows + V::kMaxRows - 1) / V::kMaxRows;
  const int wide = rows <= V::kFewRows ? V::kFewRowsPanels : V::kManyRowsPanels;
  const std::int64_t strip_bytes = wide * w.spans * static_cast<std::int64_t>(w.bytes_per_span);
  const std::int64_t strips = strips_ahead<V>(strip_bytes, tiles);
  for (std::int64_t panel = range.begin; panel < range.end;) {
    const int width = range.end - panel < wide ? static_cast<int>(range.end - panel) : wide;
    Strip strip{};
    strip.spans = w.spans;
    for (int p = 0; p < width; ++p) {
      strip.panels[p] = w.panel(panel + p);
      strip.ahead[p] = distance_ahead<V>(w, range, panel + p, strips, wide);
    }
    std::int64_t row = 0;
    for (std::int64_t t = 0; t < tiles; ++t) {
      const std::int64_t count = rows / tiles + (t < rows % tiles ? 1 : 0);
      strip.prefetch = t == tiles - 1;
      run_tile(strip, static_cast<int>(count), row, width, panel);
      row += count;
    }
    panel += width;
  }
}

// Start values or scaled sums of all rows, see Rows::corrections. Returns the stride.
template <class V, class L>
std::int64_t make_corrections(const QuantizedRows& x, std::int64_t rows, int zero_point, std::uint32_t* out) {
  const std::int64_t sums_per_row = x.padded_k / 16, groups = x.padded_k / group_columns(L::kScales);
  constexpr int kSums = group_columns(L::kScales) / 16;  // sums in a group
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int32_t* sums = x.sums + r * sums_per_row;
    const float* scales = x.scales + r * (x.padded_k / 32);
    std::uint32_t* row = out + r * groups;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int32_t sum = kSums == 1 ? sums[g] : sums[2 * g] + sums[2 * g + 1];
      const std::int64_t activation_group = kSums == 1 ? g / 2 : g;
      if constexpr (L::kMinimums) {
        const float scaled = scales[activation_group] * static_cast<float>(sum);
        std::memcpy(row + g, &scaled, 4);
      } else {
        const int factor = activation_group % 2 == 0 ? 1 : L::Code::kHighFactor;
        row[g] = static_cast<std::uint32_t>(-zero_point * factor * sum);
      }
    }
  }
  return groups;
}

using RunTile = void (*)(const Strip&, Rows, float*, std::int64_t);
using RunFloatTile = void (*)(const Strip&, std::int64_t, const float*, std::int64_t, float*, std::int64_t);

// Panels of the widest tile with kRows rows. Calls with more than kMaxRows rows have tiles of at least half of that.
template <class V, int kRows>
constexpr int widest_tile() {
  const int few = kRows <= V::kFewRows ? V::kFewRowsPanels : 1;
  const int many = kRows > V::kFewRows || 2 * kRows >= V::kMaxRows ? V::kManyRowsPanels : 1;
  return few > many ? few : many;
}

template <class V, class L, int kRows = 1, int kPanels = 1>
RunTile find_tile(int rows, int panels) {
  if constexpr (kPanels == 1 && kRows < V::kMaxRows)
    if (rows > kRows) return find_tile<V, L, kRows + 1, 1>(rows, panels);
  if constexpr (kPanels < widest_tile<V, kRows>())
    if (panels > kPanels) return find_tile<V, L, kRows, kPanels + 1>(rows, panels);
  return Tile<V, L, kRows, kPanels>::run;
}

template <class V, Codes kCodes, int kRows = 1, int kPanels = 1>
RunFloatTile find_float_tile(int rows, int panels) {
  if constexpr (kPanels == 1 && kRows < V::kMaxRows)
    if (rows > kRows) return find_float_tile<V, kCodes, kRows + 1, 1>(rows, panels);
  if constexpr (kPanels < widest_tile<V, kRows>())
    if (panels > kPanels) return find_float_tile<V, kCodes, kRows, kPanels + 1>(rows, panels);
  return FloatTile<V, kCodes, kRows, kPanels>::run;
}

template <Codes kCodes>
struct CodesConstant {
  static constexpr Codes value = kCodes;
};

template <class V, class L>
void integer_product(const Panels& w, const QuantizedRows& x, std::int64_t rows, const PanelRange& range, float* y,
                     std::int64_t ldy) {
  Rows all{};
  if constexpr (L::kMinimums || L::kStarts) {
    std::uint32_t* corrections = matmul_scratch(static_cast<std::size_t>(rows * (x.padded_k / group_columns(L::kScales))));
    all.correction_stride = make_corrections<V, L>(x, rows, w.layout.zero_point, corrections);
    all.corrections = corrections;
  }
  all.code_stride = x.padded_k;
  all.scale_stride = x.padded_k / 32;
  for_each_tile<V>(w, rows, range,
                   [&](const Strip& strip, int count, std::int64_t row, int width, std::int64_t panel) {
                     Rows tile = all;
                     tile.codes = x.codes + row * all.code_stride;
                     tile.scales = x.scales + row * all.scale_stride;
                     tile.corrections = all.corrections + row * all.correction_stride;
                     find_tile<V, L>(count, width)(strip, tile, y + row * ldy + 16 * panel, ldy);
                   });
}

template <class V, Codes kCodes>
void float_product(const Panels& w, const float* x, std::int64_t ldx, std::int64_t rows,
                   const PanelRange& range, float* y, std::int64_t ldy) {
  for_each_tile<V>(w, rows, range,
                   [&](const Strip& strip, int count, std::int64_t row, int width, std::int64_t panel) {
                     find_float_tile<V, kCodes>(count, width)(strip, w.k, x + row * ldx, ldx, y + row * ldy + 16 * panel, ldy);
                   });
}

template <class V>
void matmul(const PackedMatrix& packed, const QuantizedRows& x, const float* xf, std::int64_t ldx, std::int64_t rows,
            const PanelRange& range, float* y, std::int64_t ldy) {
  const Panels& w = static_cast<const Panels&>(packed);
  const auto product = [&](auto layout) {
    integer_product<V, decltype(layout)>(w, x, rows, range, y, ldy);
  };
  const auto halves = [&](auto codes) {
    if (w.layout.scales == Scales::HalfMin) return product(Layout<V, decltype(codes)::value, Scales::HalfMin>{});
    if (w.layout.scales == Scales::Half) return product(Layout<V, decltype(codes)::value, Scales::Half>{});
    product(Layout<V, decltype(codes)::value, Scales::Sub32Min>{});
  };
  switch (w.layout.codes) {
    case Codes::Float32: return float_product<V, Codes::Float32>(w, xf, ldx, rows, range, y, ldy);
    case Codes::Float16: return float_product<V, Codes::Float16>(w, xf, ldx, rows, range, y, ldy);
    case Codes::BFloat16: return float_product<V, Codes::BFloat16>(w, xf, ldx, rows, range, y, ldy);
    case Codes::NibbleTable: return product(Layout<V, Codes::NibbleTable, Scales::Half>{});
    case Codes::Byte: return product(Layout<V, Codes::Byte, Scales::Half>{});
    case Codes::SixBit: return product(Layout<V, Codes::SixBit, Scales::Sub16>{});
    case Codes::FiveBit: return halves(CodesConstant<Codes::FiveBit>{});
    case Codes::Nibble: break;
  }
  if (w.layout.scales == Scales::Sub16) return product(Layout<V, Codes::Nibble, Scales::Sub16>{});
  if (w.layout.scales == Scales::Sub16Min) return product(Layout<V, Codes::Nibble, Scales::Sub16Min>{});
  halves(CodesConstant<Codes::Nibble>{});
}

}  // namespace
}  // namespace sojourn
