// Repacks stored weights into the panels of panels.h. Codes and scales are moved, never recomputed.
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "panels.h"
#include "weight_memory.h"

namespace sojourn {
namespace {

constexpr int kRows = static_cast<int>(kPanelRows);
constexpr int kGroups = 16;  // of a span, at most

// One weight row's share of one span, widened. A value-initialized one stands for absent weights: its scales are 0.
struct SpanRow {
  std::uint8_t codes[kSuperBlock];
  std::uint16_t scale[2], minimum[2];  // f16: of each half of a block, or [0] only: of the header
  std::uint8_t sub_scale[kGroups], sub_minimum[kGroups];
};

std::uint16_t bits(Half h) { return static_cast<std::uint16_t>(load_u16(h.bytes)); }
std::uint16_t negated(Half h) { return static_cast<std::uint16_t>(bits(h) ^ 0x8000u); }

// read(): one stored block into its part of the row. `half` is 0 or 1 where a span holds two stored blocks.

void read_nibbles(const std::uint8_t* qs, std::uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = qs[i] & 15;
    codes[i + 16] = qs[i] >> 4;
  }
}

void add_fifth_bits(const std::uint8_t* qh, std::uint8_t* codes) {
  const std::uint32_t mask = load_u32(qh);
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<std::uint8_t>(codes[i] | (mask >> i & 1) << 4);
}

void read(const BlockQ4_0& b, int half, SpanRow& row) {
  row.scale[half] = bits(b.d);
  read_nibbles(b.qs, row.codes + 32 * half);
}

void read(const BlockIQ4_NL& b, int half, SpanRow& row) {
  row.scale[half] = bits(b.d);
  read_nibbles(b.qs, row.codes + 32 * half);
}

void read(const BlockQ4_1& b, int half, SpanRow& row) {
  row.scale[half] = bits(b.d);
  row.minimum[half] = bits(b.m);
  read_nibbles(b.qs, row.codes + 32 * half);
}

void read(const BlockQ5_0& b, int half, SpanRow& row) {
  row.scale[half] = bits(b.d);
  read_nibbles(b.qs, row.codes + 32 * half);
  add_fifth_bits(b.qh, row.codes + 32 * half);
}

void read(const BlockQ5_1& b, int half, SpanRow& row) {
  row.scale[half] = bits(b.d);
  row.minimum[half] = bits(b.m);
  read_nibbles(b.qs, row.codes + 32 * half);
  add_fifth_bits(b.qh, row.codes + 32 * half);
}

void read(const BlockQ8_0& b, int half, SpanRow& row) {
  row.scale[half] = bits(b.d);
  for (int i = 0; i < 32; ++i) row.codes[32 * half + i] = static_cast<std::uint8_t>(b.qs[i] ^ 0x80);
}

// Two bits of each weight: weight 128h + 32s + i has them at 2s of qs[32h + i].
void read_crumbs(const std::uint8_t* qs, std::uint8_t* codes) {
  for (int strand = 0; strand < 8; ++strand)
    for (int i = 0; i < 32; ++i)
      codes[32 * strand + i] = qs[32 * (strand / 4) + i] >> (2 * (strand % 4)) & 3;
}

void read(const BlockQ2_K& b, int, SpanRow& row) {
  row.scale[0] = bits(b.d);
  row.minimum[0] = negated(b.dmin);
  for (int g = 0; g < 16; ++g) {
    row.sub_scale[g] = b.scales[g] & 15;
    row.sub_minimum[g] = b.scales[g] >> 4;
  }
  read_crumbs(b.qs, row.codes);
}

void read(const BlockQ3_K& b, int, SpanRow& row) {
  row.scale[0] = bits(b.d);
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? b.scales[g] & 15 : b.scales[g - 8] >> 4;
    const int high = b.scales[8 + g % 4] >> (2 * (g / 4)) & 3;
    row.sub_scale[g] = static_cast<std::uint8_t>((low | high << 4) - 32);
  }
  read_crumbs(b.qs, row.codes);
  for (int strand = 0; strand < 8; ++strand)
    for (int i = 0; i < 32; ++i)
      row.codes[32 * strand + i] = static_cast<std::uint8_t>(row.codes[32 * strand + i] | (b.hmask[i] >> strand & 1) << 2);
}

void read_sub_scales(const std::uint8_t* packed, SpanRow& row) {
  for (int g = 0; g < 4; ++g) {
    row.sub_scale[g] = packed[g] & 63;
    row.sub_minimum[g] = packed[g + 4] & 63;
    row.sub_scale[g + 4] = static_cast<std::uint8_t>((packed[g + 8] & 15) | (packed[g] >> 6) << 4);
    row.sub_minimum[g + 4] = static_cast<std::uint8_t>((packed[g + 8] >> 4) | (packed[g + 4] >> 6) << 4);
  }
}

// Groups 2k and 2k + 1 are the low and high nibbles of qs[32k .. 32k + 31].
void read_nibble_groups(const std::uint8_t* qs, std::uint8_t* codes) {
  for (int pair = 0; pair < 4; ++pair)
    for (int i = 0; i < 32; ++i) {
      codes[64 * pair + i] = qs[32 * pair + i] & 15;
      codes[64 * pair + 32 + i] = qs[32 * pair + i] >> 4;
    }
}

void read(const BlockQ4_K& b, int, SpanRow& row) {
  row.scale[0] = bits(b.d);
  row.minimum[0] = negated(b.dmin);
  read_sub_scales(b.scales, row);
  read_nibble_groups(b.qs, row.codes);
}

void read(const BlockQ5_K& b, int, SpanRow& row) {
  row.scale[0] = bits(b.d);
  row.minimum[0] = negated(b.dmin);
  read_sub_scales(b.scales, row);
  read_nibble_groups(b.qs, row.codes);
  for (int g = 0; g < 8; ++g)
    for (int i = 0; i < 32; ++i)
      row.codes[32 * g + i] = static_cast<std::uint8_t>(row.codes[32 * g + i] | (b.qh[i] >> g & 1) << 4);
}

// Weight 128h + 32s + i: low nibble from ql[64h + 32(s % 2) + i], two high bits at 2s of qh[32h + i].
void read(const BlockQ6_K& b, int, SpanRow& row) {
  row.scale[0] = bits(b.d);
  for (int g = 0; g < 16; ++g) row.sub_scale[g] = static_cast<std::uint8_t>(b.scales[g]);
  read_crumbs(b.qh, row.codes);
  for (int strand = 0; strand < 8; ++strand)
    for (int i = 0; i < 32; ++i) {
      const std::uint8_t low = b.ql[64 * (strand / 4) + 32 * (strand % 2) + i] >> (4 * (strand % 4 / 2)) & 15;
      row.codes[32 * strand + i] = static_cast<std::uint8_t>(row.codes[32 * strand + i] << 4 | low);
    }
}

// The 4 codes at `column` as one word, so that a line of 16 rows is 16 words.
std::uint32_t word(const SpanRow& row, int column) {
  std::uint32_t value;
  std::memcpy(&value, row.codes + column, sizeof value);
  return value;
}

void write_codes(Codes codes, const SpanRow* rows, int column, std::uint8_t* out) {
  for (int c = 0; c < kRows; ++c)
    for (int s = 0; s < 8; ++s) {
      const std::uint32_t low = word(rows[c], column + 4 * s), high = word(rows[c], column + 32 + 4 * s);
      std::uint8_t* place = out + 64 * s + 4 * c;
      if (codes == Codes::Byte) {
        std::memcpy(place, &low, 4);
        std::memcpy(place + 512, &high, 4);
      } else {
        const std::uint32_t both = (low & 0x0f0f0f0fu) | (high & 0x0f0f0f0fu) << 4;
        std::memcpy(place, &both, 4);
      }
    }
}

// Two rows share a byte of a mask, 4 bits each.
void write_fifth_bits(const SpanRow* rows, int column, std::uint8_t* out) {
  const auto four_bits = [&](int c, int at) {
    const std::uint32_t fifth = word(rows[c], at) >> 4 & 0x01010101u;
    return (fifth | fifth >> 7 | fifth >> 14 | fifth >> 21) & 15u;
  };
  for (int mask = 0; mask < 16; ++mask)
    for (int c = 0; c < kRows; c += 2)
      out[8 * mask + c / 2] =
          static_cast<std::uint8_t>(four_bits(c, column + 4 * mask) | four_bits(c + 1, column + 4 * mask) << 4);
}

void write_sixth_bits(const SpanRow* rows, int column, std::uint8_t* out) {
  for (int line = 0; line < 4; ++line)
    for (int c = 0; c < kRows; ++c) {
      std::uint32_t bits = 0;
      for (int i = 0; i < 4; ++i) bits |= (word(rows[c], column + 16 * line + 4 * i) >> 4 & 0x03030303u) << (2 * i);
      std::memcpy(out + 64 * line + 4 * c, &bits, 4);
    }
}

void store_half(std::uint8_t* out, std::uint16_t value) { std::memcpy(out, &value, 2); }

void write_scales(Scales scales, const SpanRow* rows, int block, std::uint8_t* out) {
  const int groups = kBlockColumns / group_columns(scales);
  for (int c = 0; c < kRows; ++c)
    for (int g = 0; g < groups; ++g) {
      if (has_header(scales)) {
        out[16 * g + c] = rows[c].sub_scale[block * groups + g];
        if (has_minimums(scales)) out[16 * (groups + g) + c] = rows[c].sub_minimum[block * groups + g];
      } else {
        store_half(out + 32 * g + 2 * c, rows[c].scale[g]);
        if (has_minimums(scales)) store_half(out + 64 + 32 * g + 2 * c, rows[c].minimum[g]);
      }
    }
}

void write_span(const PanelLayout& layout, const SpanRow* rows, std::uint8_t* out) {
  if (has_header(layout.scales))
    for (int c = 0; c < kRows; ++c) {
      store_half(out + 2 * c, rows[c].scale[0]);
      store_half(out + 32 + 2 * c, rows[c].minimum[0]);
    }
  out += header_bytes(layout.scales);
  for (int block = 0; block < blocks_per_span(layout.scales); ++block) {
    write_scales(layout.scales, rows, block, out);
    out += scale_bytes(layout.scales);
    write_codes(layout.codes, rows, block * kBlockColumns, out);
    if (layout.codes == Codes::FiveBit) write_fifth_bits(rows, block * kBlockColumns, out + 512);
    if (layout.codes == Codes::SixBit) write_sixth_bits(rows, block * kBlockColumns, out + 512);
    out += code_bytes(layout.codes);
  }
}

template <typename Block>
void pack_quantized(Panels& w, const std::uint8_t* data, std::int64_t panel) {
  constexpr std::int64_t kElements = sizeof(Block) >= 84 ? kSuperBlock : kSmallBlock;
  constexpr std::int64_t kPerSpan = kElements == kSuperBlock ? 1 : 2;
  const std::int64_t row_blocks = w.k / kElements;
  std::uint8_t* out = w.panel(panel);
  for (std::int64_t span = 0; span < w.spans; ++span, out += 2 * w.bytes_per_span) {
    SpanRow rows[kPanelRows] = {};
    for (int c = 0; c < kRows && panel * kPanelRows + c < w.n; ++c) {
      const Block* stored = reinterpret_cast<const Block*>(data) + (panel * kPanelRows + c) * row_blocks;
      for (int half = 0; half < kPerSpan && span * kPerSpan + half < row_blocks; ++half)
        read(stored[span * kPerSpan + half], half, rows[c]);
    }
    write_span(w.layout, rows, out);
  }
}

// kSize bytes a value; kPair columns of a row lie side by side in a line.
template <std::int64_t kSize, std::int64_t kPair>
void pack_floats(Panels& w, const std::uint8_t* data, std::int64_t panel) {
  std::uint8_t* out = w.panel(panel);
  for (std::int64_t span = 0; span < w.spans; ++span, out += 2 * w.bytes_per_span) {
    std::memset(out, 0, w.bytes_per_span);
    const std::int64_t first = span * kBlockColumns, columns = std::min<std::int64_t>(kBlockColumns, w.k - first);
    for (std::int64_t c = 0; c < kPanelRows && panel * kPanelRows + c < w.n; ++c) {
      const std::uint8_t* row = data + ((panel * kPanelRows + c) * w.k + first) * kSize;
      for (std::int64_t k = 0; k < columns; ++k)
        std::memcpy(out + ((k / kPair * kPanelRows + c) * kPair + k % kPair) * kSize, row + k * kSize, kSize);
    }
  }
}

using PanelPacker = void (*)(Panels&, const std::uint8_t*, std::int64_t);

struct Packing {
  PanelLayout layout;
  PanelPacker pack;
};

Packing packing_for(Format format) {
  switch (format) {
    case Format::F32: return {{Codes::Float32, Scales::None, 0}, pack_floats<4, 1>};
    case Format::F16: return {{Codes::Float16, Scales::None, 0}, pack_floats<2, 1>};
    case Format::BF16: return {{Codes::BFloat16, Scales::None, 0}, pack_floats<2, 2>};
    case Format::Q4_0: return {{Codes::Nibble, Scales::Half, 8}, pack_quantized<BlockQ4_0>};
    case Format::Q4_1: return {{Codes::Nibble, Scales::HalfMin, 0}, pack_quantized<BlockQ4_1>};
    case Format::Q5_0: return {{Codes::FiveBit, Scales::Half, 16}, pack_quantized<BlockQ5_0>};
    case Format::Q5_1: return {{Codes::FiveBit, Scales::HalfMin, 0}, pack_quantized<BlockQ5_1>};
    case Format::Q8_0: return {{Codes::Byte, Scales::Half, 128}, pack_quantized<BlockQ8_0>};
    case Format::Q2_K: return {{Codes::Nibble, Scales::Sub16Min, 0}, pack_quantized<BlockQ2_K>};
    case Format::Q3_K: return {{Codes::Nibble, Scales::Sub16, 4}, pack_quantized<BlockQ3_K>};
    case Format::Q4_K: return {{Codes::Nibble, Scales::Sub32Min, 0}, pack_quantized<BlockQ4_K>};
    case Format::Q5_K: return {{Codes::FiveBit, Scales::Sub32Min, 0}, pack_quantized<BlockQ5_K>};
    case Format::Q6_K: return {{Codes::SixBit, Scales::Sub16, 32}, pack_quantized<BlockQ6_K>};
    case Format::IQ4_NL: return {{Codes::NibbleTable, Scales::Half, 128}, pack_quantized<BlockIQ4_NL>};
  }
  return {{Codes::Float32, Scales::None, 0}, nullptr};  // unreachable: the switch names every format
}

}  // namespace

std::unique_ptr<PackedMatrix> pack(Format format, const std::uint8_t* blocks, std::int64_t n, std::int64_t k, int threads) {
  const Packing packing = packing_for(format);
  if (packing.pack == nullptr) return nullptr;
  auto w = std::make_unique<Panels>();
  w->n = n;
  w->k = k;
  w->panels = (n + 2 * kPanelRows - 1) / (2 * kPanelRows) * 2;
  w->integer_activations = packing.layout.scales != Scales::None;
  w->layout = packing.layout;
  const std::int64_t span_columns = std::int64_t{kBlockColumns} * blocks_per_span(packing.layout.scales);
  w->spans = (k + span_columns - 1) / span_columns;
  w->bytes_per_span = span_bytes(packing.layout.codes, packing.layout.scales);
  w->bytes = static_cast<std::size_t>(w->panels * w->spans) * w->bytes_per_span;
  w->data = allocate_weights(w->bytes);

  // Below this a thread costs more than it saves.
  constexpr std::int64_t kMinWeightsPerThread = std::int64_t{1} << 18;
  const std::int64_t workers = std::clamp<std::int64_t>(n * k / kMinWeightsPerThread, 1, std::max(threads, 1));
  const std::int64_t share = (w->panels + workers - 1) / workers;
  const auto pack_share = [&](std::int64_t index) {
    for (std::int64_t p = index * share; p < std::min(w->panels, (index + 1) * share); ++p) packing.pack(*w, blocks, p);
  };
  std::vector<std::thread> helpers;
  for (std::int64_t i = 1; i < workers; ++i) helpers.emplace_back(pack_share, i);
  pack_share(0);
  for (std::thread& helper : helpers) helper.join();
  return w;
}

}  // namespace sojourn
