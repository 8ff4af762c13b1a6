// One decoder per storage format, each for one block, and the loop that runs it over a run of blocks.
// The order of float operations is fixed (scale times scale first, then the code, then the minimum): it decides the last bit.
#include "sojourn/dequantize.h"

#include <algorithm>
#include <thread>
#include <vector>

namespace sojourn {
namespace {

void decode(const BlockQ4_0& b, float* y) {
  const float d = to_float(b.d);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>((b.qs[i] & 15) - 8);
    y[i + 16] = d * static_cast<float>((b.qs[i] >> 4) - 8);
  }
}

void decode(const BlockQ4_1& b, float* y) {
  const float d = to_float(b.d), m = to_float(b.m);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(b.qs[i] & 15) + m;
    y[i + 16] = d * static_cast<float>(b.qs[i] >> 4) + m;
  }
}

void decode(const BlockQ5_0& b, float* y) {
  const float d = to_float(b.d);
  const std::uint32_t qh = load_u32(b.qh);  // bit i: fifth bit of weight i
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(static_cast<int>((b.qs[i] & 15) | ((qh >> i & 1) << 4)) - 16);
    y[i + 16] = d * static_cast<float>(static_cast<int>((b.qs[i] >> 4) | ((qh >> (i + 16) & 1) << 4)) - 16);
  }
}

void decode(const BlockQ5_1& b, float* y) {
  const float d = to_float(b.d), m = to_float(b.m);
  const std::uint32_t qh = load_u32(b.qh);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(static_cast<int>((b.qs[i] & 15) | ((qh >> i & 1) << 4))) + m;
    y[i + 16] = d * static_cast<float>(static_cast<int>((b.qs[i] >> 4) | ((qh >> (i + 16) & 1) << 4))) + m;
  }
}

void decode(const BlockQ8_0& b, float* y) {
  const float d = to_float(b.d);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(b.qs[i]);
}

void decode(const BlockIQ4_NL& b, float* y) {
  const float d = to_float(b.d);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(kIQ4NLValues[b.qs[i] & 15]);
    y[i + 16] = d * static_cast<float>(kIQ4NLValues[b.qs[i] >> 4]);
  }
}

// 16 groups of 16. Weight 128h + 32s + i has its two bits at 2s of qs[32h + i].
void decode(const BlockQ2_K& b, float* y) {
  const float d = to_float(b.d), dmin = to_float(b.dmin);
  for (int group = 0; group < 16; ++group, y += 16) {
    const float scale = d * static_cast<float>(b.scales[group] & 15);
    const float minimum = dmin * static_cast<float>(b.scales[group] >> 4);
    const std::uint8_t* q = b.qs + 32 * (group / 8) + 16 * (group % 2);
    const int shift = 2 * (group / 2 % 4);
    for (int i = 0; i < 16; ++i) y[i] = scale * static_cast<float>(q[i] >> shift & 3) - minimum;
  }
}

// 16 groups of 16, codes as in Q2_K with the third bit (inverted sense: clear means minus 4) in hmask, bit = group / 2.
void decode(const BlockQ3_K& b, float* y) {
  const float d = to_float(b.d);
  for (int group = 0; group < 16; ++group, y += 16) {
    const int low = group < 8 ? b.scales[group] & 15 : b.scales[group - 8] >> 4;
    const int high = b.scales[8 + group % 4] >> (2 * (group / 4)) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    const std::uint8_t* q = b.qs + 32 * (group / 8) + 16 * (group % 2);
    const std::uint8_t* h = b.hmask + 16 * (group % 2);
    const int shift = 2 * (group / 2 % 4), bit = group / 2;
    for (int i = 0; i < 16; ++i) {
      const int code = (q[i] >> shift & 3) - 4 * (~h[i] >> bit & 1);
      y[i] = scale * static_cast<float>(code);
    }
  }
}

// Six-bit scale and minimum of group 0..7 out of the twelve packed bytes of Q4_K and Q5_K.
void unpack_scale_min(const std::uint8_t* s, int group, int* scale, int* minimum) {
  if (group < 4) {
    *scale = s[group] & 63;
    *minimum = s[group + 4] & 63;
  } else {
    *scale = (s[group + 4] & 15) | (s[group - 4] >> 6) << 4;
    *minimum = (s[group + 4] >> 4) | (s[group] >> 6) << 4;
  }
}

// 8 groups of 32; groups 2k and 2k + 1 are the low and high nibbles of qs[32k .. 32k + 31].
void decode(const BlockQ4_K& b, float* y) {
  const float d = to_float(b.d), dmin = to_float(b.dmin);
  for (int group = 0; group < 8; ++group, y += 32) {
    int scale_code, min_code;
    unpack_scale_min(b.scales, group, &scale_code, &min_code);
    const float scale = d * static_cast<float>(scale_code), minimum = dmin * static_cast<float>(min_code);
    const std::uint8_t* q = b.qs + 32 * (group / 2);
    const int shift = 4 * (group % 2);
    for (int i = 0; i < 32; ++i) y[i] = scale * static_cast<float>(q[i] >> shift & 15) - minimum;
  }
}

// As Q4_K, with the fifth bit of weight 32g + i at bit g of qh[i].
void decode(const BlockQ5_K& b, float* y) {
  const float d = to_float(b.d), dmin = to_float(b.dmin);
  for (int group = 0; group < 8; ++group, y += 32) {
    int scale_code, min_code;
    unpack_scale_min(b.scales, group, &scale_code, &min_code);
    const float scale = d * static_cast<float>(scale_code), minimum = dmin * static_cast<float>(min_code);
    const std::uint8_t* q = b.qs + 32 * (group / 2);
    const int shift = 4 * (group % 2);
    for (int i = 0; i < 32; ++i) {
      const int code = (q[i] >> shift & 15) | (b.qh[i] >> group & 1) << 4;
      y[i] = scale * static_cast<float>(code) - minimum;
    }
  }
}

// 16 groups of 16. Weight 128h + 32s + i: low nibble from ql[64h + 32(s % 2) + i], two high bits at 2s of qh[32h + i].
void decode(const BlockQ6_K& b, float* y) {
  const float d = to_float(b.d);
  for (int group = 0; group < 16; ++group, y += 16) {
    const float scale = d * static_cast<float>(b.scales[group]);
    const int half = group / 8, strand = group / 2 % 4, offset = 16 * (group % 2);
    const std::uint8_t* ql = b.ql + 64 * half + 32 * (strand % 2) + offset;
    const std::uint8_t* qh = b.qh + 32 * half + offset;
    const int low_shift = 4 * (strand / 2), high_shift = 2 * strand;
    for (int i = 0; i < 16; ++i) {
      const int code = (ql[i] >> low_shift & 15) | (qh[i] >> high_shift & 3) << 4;
      y[i] = scale * static_cast<float>(code - 32);
    }
  }
}

template <typename Block, std::size_t kElements>
void decode_run(const std::uint8_t* data, std::size_t blocks, float* out) {
  const Block* block = reinterpret_cast<const Block*>(data);
  for (std::size_t i = 0; i < blocks; ++i) decode(block[i], out + i * kElements);
}

void decode_f32(const std::uint8_t* data, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = float_from_bits(load_u32(data + 4 * i));
}

void decode_f16(const std::uint8_t* data, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = half_to_float(load_u16(data + 2 * i));
}

void decode_bf16(const std::uint8_t* data, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = bfloat16_to_float(load_u16(data + 2 * i));
}

using RunDecoder = void (*)(const std::uint8_t*, std::size_t, float*);

RunDecoder decoder_for(Format format) {
  switch (format) {
    case Format::F32: return decode_f32;
    case Format::F16: return decode_f16;
    case Format::BF16: return decode_bf16;
    case Format::Q4_0: return decode_run<BlockQ4_0, kSmallBlock>;
    case Format::Q4_1: return decode_run<BlockQ4_1, kSmallBlock>;
    case Format::Q5_0: return decode_run<BlockQ5_0, kSmallBlock>;
    case Format::Q5_1: return decode_run<BlockQ5_1, kSmallBlock>;
    case Format::Q8_0: return decode_run<BlockQ8_0, kSmallBlock>;
    case Format::Q2_K: return decode_run<BlockQ2_K, kSuperBlock>;
    case Format::Q3_K: return decode_run<BlockQ3_K, kSuperBlock>;
    case Format::Q4_K: return decode_run<BlockQ4_K, kSuperBlock>;
    case Format::Q5_K: return decode_run<BlockQ5_K, kSuperBlock>;
    case Format::Q6_K: return decode_run<BlockQ6_K, kSuperBlock>;
    case Format::IQ4_NL: return decode_run<BlockIQ4_NL, kSmallBlock>;
  }
  return nullptr;  // unreachable: the switch names every format, and the compiler warns when one is missing
}

}  // namespace

void dequantize(const FormatInfo& info, const std::uint8_t* blocks_data, std::size_t blocks, float* out, int threads) {
  const RunDecoder run = decoder_for(info.format);
  // Below this a thread costs more than it saves.
  constexpr std::size_t kMinElementsPerThread = std::size_t{1} << 18;
  const std::size_t useful = blocks * info.block_elements / kMinElementsPerThread;
  const std::size_t workers = std::clamp<std::size_t>(useful, 1, static_cast<std::size_t>(std::max(threads, 1)));
  const std::size_t share = (blocks + workers - 1) / workers;
  const auto run_share = [&](std::size_t index) {
    const std::size_t begin = std::min(blocks, index * share), end = std::min(blocks, begin + share);
    run(blocks_data + begin * info.block_bytes, end - begin, out + begin * info.block_elements);
  };
  std::vector<std::thread> helpers;
  helpers.reserve(workers - 1);
  for (std::size_t i = 1; i < workers; ++i) helpers.emplace_back(run_share, i);
  run_share(0);
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace sojourn
