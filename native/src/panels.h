// Where the bytes of a packed weight matrix lie. Private to pack.cpp (writes them) and the kernels in isa/ (read them).
//
// A panel is 16 weight rows side by side; a block is a panel's share of 64 columns of K; a span is the run of blocks that
// shares one header: 4 blocks (256 columns) for the K formats, 1 block without a header for all others.
// Two panels form one stream of memory, their spans taking turns:
//
//   pair 0: | span 0 of panel 0 | span 0 of panel 1 | span 1 of panel 0 | span 1 of panel 1 | ...     pair 1: ...
//   span:   | header, 0 or 64 bytes | block | block ... |
//   block:  | scales, 64 or 128 bytes | codes |                          every part is a multiple of 64 bytes
//
// header (K formats): 16 halves d, 16 halves -dmin. Halves are stored as in the file but for the sign of dmin.
// scales, c = weight row within the panel, always 16 values side by side:
//   Half       d of columns 0-31 | d of columns 32-63                                                           f16
//   HalfMin    the same, then m of columns 0-31 | m of columns 32-63                                            f16
//   Sub32Min   scale of columns 0-31 | of 32-63 | minimum of columns 0-31 | of 32-63                            int8
//   Sub16      scale of columns 0-15 | 16-31 | 32-47 | 48-63                                                    int8
//   Sub16Min   the same, then four minimums                                                                     int8
// codes: lines of 64 bytes; a line holds 4 columns, byte 4c + j is weight row c, column j of the four:
//   Nibble     8 lines; line s: columns 4s.. in the low nibble, columns 32 + 4s.. in the high one              512 bytes
//   NibbleTable  the same; the code is an index into IQ4_NL's values
//   FiveBit    as Nibble, then the fifth bits: 16 masks of 64 bits, mask 8h + s for columns 32h + 4s..,
//              bit 4c + j                                                                                      640 bytes
//   SixBit     as Nibble, then the fifth and sixth bits: 4 lines, line 2h + t for columns 32h + 16t..,
//              bits 2i and 2i + 1 of byte 4c + j for column 32h + 16t + 4i + j                                 768 bytes
//   Byte       16 lines; line s: columns 4s..                                                                 1024 bytes
//   Float32, Float16   64 lines of 16 values, one column each
//   BFloat16   32 lines of 32 values; line s: byte 4c holds column 2s of row c, byte 4c + 2 column 2s + 1
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "sojourn/matmul.h"

namespace sojourn {

enum class Codes { Nibble, NibbleTable, FiveBit, SixBit, Byte, Float16, BFloat16, Float32 };
enum class Scales { None, Half, HalfMin, Sub32Min, Sub16, Sub16Min };

inline constexpr int kBlockColumns = 64;

constexpr std::size_t code_bytes(Codes codes) {
  switch (codes) {
    case Codes::Nibble:
    case Codes::NibbleTable: return 512;
    case Codes::FiveBit: return 640;
    case Codes::SixBit: return 768;
    case Codes::Byte: return 1024;
    case Codes::Float16:
    case Codes::BFloat16: return 2048;
    case Codes::Float32: break;
  }
  return 4096;
}

constexpr std::size_t scale_bytes(Scales scales) {
  switch (scales) {
    case Scales::None: return 0;
    case Scales::HalfMin:
    case Scales::Sub16Min: return 128;
    default: break;
  }
  return 64;
}

constexpr bool has_header(Scales scales) {
  return scales == Scales::Sub32Min || scales == Scales::Sub16 || scales == Scales::Sub16Min;
}
constexpr bool has_minimums(Scales scales) {
  return scales == Scales::HalfMin || scales == Scales::Sub32Min || scales == Scales::Sub16Min;
}
constexpr int group_columns(Scales scales) { return scales == Scales::Sub16 || scales == Scales::Sub16Min ? 16 : 32; }
constexpr int blocks_per_span(Scales scales) { return has_header(scales) ? 4 : 1; }
constexpr std::size_t header_bytes(Scales scales) { return has_header(scales) ? 64 : 0; }
constexpr std::size_t block_bytes(Codes codes, Scales scales) { return scale_bytes(scales) + code_bytes(codes); }
constexpr std::size_t span_bytes(Codes codes, Scales scales) {
  return header_bytes(scales) + static_cast<std::size_t>(blocks_per_span(scales)) * block_bytes(codes, scales);
}

// A weight is scale * (code - zero_point), or scale * code + minimum.
struct PanelLayout {
  Codes codes;
  Scales scales;
  int zero_point;
};

struct Panels final : PackedMatrix {
  PanelLayout layout{};
  std::int64_t spans = 0;           // of one panel
  std::size_t bytes_per_span = 0;   // of one panel
  std::shared_ptr<std::uint8_t> data;

  const std::uint8_t* pair(std::int64_t pair) const override { return panel(2 * pair); }
  // First span of a panel; the next one lies 2 * bytes_per_span further.
  const std::uint8_t* panel(std::int64_t p) const { return data.get() + offset(p); }
  std::uint8_t* panel(std::int64_t p) { return data.get() + offset(p); }
  // From panel 0 to panel p.
  std::size_t offset(std::int64_t p) const {
    return (static_cast<std::size_t>(p / 2 * spans) * 2 + static_cast<std::size_t>(p % 2)) * bytes_per_span;
  }
};

}  // namespace sojourn
