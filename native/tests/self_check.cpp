// Checks every kernel of every instruction set this machine runs against plain loops in double. Needs no Python, so it
// runs where the extension module can't: under an emulator, or with sanitizers. Exit status 1: something is wrong.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "sojourn/dequantize.h"
#include "sojourn/executor.h"
#include "sojourn/isa.h"

namespace {

using sojourn::Isa;

int failures = 0;
std::mt19937 generator(1);

void expect(bool holds, const char* what, std::string_view where) {
  if (holds) return;
  ++failures;
  std::printf("FAILED: %s (%.*s)\n", what, static_cast<int>(where.size()), where.data());
}

std::vector<float> normal(std::int64_t count) {
  std::normal_distribution<float> draw;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = draw(generator);
  return values;
}

// Random blocks whose scales are small finite numbers: bytes at random, then every 16-bit field that is a half made tame.
std::vector<std::uint8_t> random_blocks(const sojourn::FormatInfo& info, std::int64_t blocks) {
  std::vector<std::uint8_t> data(static_cast<std::size_t>(blocks) * info.block_bytes);
  for (std::uint8_t& byte : data) byte = static_cast<std::uint8_t>(generator());
  std::vector<float> values(info.block_elements);
  for (std::int64_t b = 0; b < blocks; ++b) {
    std::uint8_t* block = data.data() + static_cast<std::size_t>(b) * info.block_bytes;
    for (;;) {  // draw again until the block decodes to moderate numbers
      sojourn::dequantize(info, block, 1, values.data(), 1);
      bool tame = true;
      for (const float value : values) tame = tame && std::isfinite(value) && std::fabs(value) < 100.0f;
      if (tame) break;
      for (std::size_t i = 0; i < info.block_bytes; ++i) block[i] = static_cast<std::uint8_t>(generator());
    }
  }
  return data;
}

void check_matmul(Isa isa, const sojourn::FormatInfo& info) {
  constexpr std::int64_t kN = 40, kK = 512, kRows = 9;
  const auto data = random_blocks(info, kN * kK / static_cast<std::int64_t>(info.block_elements));
  std::vector<float> weights(static_cast<std::size_t>(kN * kK));
  sojourn::dequantize(info, data.data(), weights.size() / info.block_elements, weights.data(), 1);
  const auto matrix = sojourn::pack(info.format, data.data(), kN, kK, 2);
  if (matrix == nullptr) return expect(false, "no kernel", info.name);
  const auto x = normal(kRows * kK);
  std::vector<std::int8_t> codes(static_cast<std::size_t>(kRows * kK));
  std::vector<float> scales(codes.size() / 32);
  std::vector<std::int32_t> sums(codes.size() / 16);
  const sojourn::QuantizedRows quantized{codes.data(), scales.data(), sums.data(), sojourn::padded_k(kK)};
  const sojourn::MatmulKernels& kernels = sojourn::matmul_kernels(isa);
  kernels.quantize_rows(x.data(), kK, kK, 0, kRows, quantized);
  const std::int64_t stride = matrix->panels * sojourn::kPanelRows;
  std::vector<float> together(static_cast<std::size_t>(kRows * stride)), alone(static_cast<std::size_t>(stride));
  kernels.matmul(*matrix, quantized, x.data(), kK, kRows, 0, matrix->panels, together.data(), stride);
  for (std::int64_t r = 0; r < kRows; ++r) {
    const sojourn::QuantizedRows row{codes.data() + r * kK, scales.data() + r * kK / 32, sums.data() + r * kK / 16, quantized.padded_k};
    kernels.matmul(*matrix, row, x.data() + r * kK, kK, 1, 0, matrix->panels, alone.data(), stride);
    expect(std::memcmp(alone.data(), together.data() + r * stride, kN * sizeof(float)) == 0, "a row alone differs from the batch", info.name);
    for (std::int64_t n = 0; n < kN; ++n) {
      double exact = 0, size = 0;
      for (std::int64_t k = 0; k < kK; ++k) {
        const std::int64_t at = r * kK + k;
        const double activation = matrix->integer_activations
                                      ? static_cast<double>(scales[static_cast<std::size_t>(at / 32)]) * codes[static_cast<std::size_t>(at)]
                                      : static_cast<double>(x[static_cast<std::size_t>(at)]);
        const double term = activation * weights[static_cast<std::size_t>(n * kK + k)];
        exact += term, size += std::fabs(term);
      }
      expect(std::fabs(together[static_cast<std::size_t>(r * stride + n)] - exact) <= 1e-4 * size + 1e-6, "a product is wrong", info.name);
    }
  }
}

void check_attention(Isa isa, sojourn::KVType type) {
  constexpr std::int64_t kHeads = 6, kKVHeads = 2, kDim = 32, kBlock = 16, kTokens = 300, kBlocks = 20;
  const sojourn::AttentionShape shape{kHeads, kKVHeads, kDim, kBlock, 0.17f, 0, 0.0f, type};
  const sojourn::VectorKernels& kernels = sojourn::vector_kernels(isa);
  std::vector<std::uint8_t> keys(sojourn::kv_block_bytes(shape) * kBlocks, 0xff), values(keys.size(), 0xff);  // NaN
  const sojourn::KVLayer layer{keys.data(), values.data()};
  const auto k = normal(kTokens * kKVHeads * kDim), v = normal(kTokens * kKVHeads * kDim), q = normal(kDim);
  std::vector<std::int32_t> table;
  for (std::int64_t b = 0; b < kBlocks; ++b) table.push_back(static_cast<std::int32_t>((b * 7 + 3) % kBlocks));
  for (std::int64_t t = 0; t < kTokens; ++t)
    kernels.write_kv(shape, layer, table[static_cast<std::size_t>(t / kBlock)], t % kBlock, &k[static_cast<std::size_t>(t * kKVHeads * kDim)],
                     &v[static_cast<std::size_t>(t * kKVHeads * kDim)]);
  std::vector<float> partials(2 * (kDim + 2)), out(kDim);
  for (std::int64_t chunk = 0; chunk < 2; ++chunk) {
    sojourn::AttentionItem item{};
    item.q[0] = q.data(), item.positions[0] = kTokens - 1, item.count = 1, item.kv_head = 1, item.chunk = chunk;
    item.block_table = table.data(), item.partial[0] = partials.data() + chunk * (kDim + 2);
    kernels.attend(shape, layer, item);
  }
  kernels.merge(partials.data(), 2, kDim, out.data());
  std::vector<double> exact(kDim);
  double total = 0;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    double score = 0;
    for (std::int64_t d = 0; d < kDim; ++d) score += static_cast<double>(q[static_cast<std::size_t>(d)]) * k[static_cast<std::size_t>((t * kKVHeads + 1) * kDim + d)];
    const double weight = std::exp(score * shape.scale);
    total += weight;
    for (std::int64_t d = 0; d < kDim; ++d) exact[static_cast<std::size_t>(d)] += weight * v[static_cast<std::size_t>((t * kKVHeads + 1) * kDim + d)];
  }
  const double tolerance = type == sojourn::KVType::F32 ? 1e-5 : type == sojourn::KVType::F16 ? 2e-3 : 2e-2;
  for (std::int64_t d = 0; d < kDim; ++d)
    expect(std::fabs(out[static_cast<std::size_t>(d)] - exact[static_cast<std::size_t>(d)] / total) < tolerance, "attention is wrong", "attend");
}

void check_rows(Isa isa) {
  constexpr std::int64_t kWidth = 96;
  const sojourn::VectorKernels& kernels = sojourn::vector_kernels(isa);
  const auto x = normal(kWidth), weight = normal(kWidth);
  std::vector<float> out(kWidth), gated(kWidth);
  kernels.rms_norm(x.data(), 1, kWidth, kWidth, weight.data(), 1e-5f, 1.0f, out.data());
  kernels.glu(x.data(), weight.data(), 1, 0, kWidth, kWidth, sojourn::Activation::Silu, gated.data());
  double square = 0;
  for (const float value : x) square += static_cast<double>(value) * value;
  const double scale = 1.0 / std::sqrt(square / kWidth + 1e-5);
  for (std::size_t i = 0; i < kWidth; ++i) {
    expect(std::fabs(out[i] - x[i] * scale * (weight[i] + 1.0)) < 1e-5, "a norm is wrong", "rms_norm");
    expect(std::fabs(gated[i] - x[i] / (1.0 + std::exp(-static_cast<double>(x[i]))) * weight[i]) < 1e-5, "a gate is wrong", "glu");
  }
}

}  // namespace

int main() {
  for (const Isa isa : {Isa::Portable, Isa::Avx2, Isa::Avx512Vnni}) {
    if (!sojourn::has_isa(isa)) continue;
    std::size_t count = 0;
    const sojourn::FormatInfo* formats = sojourn::all_formats(&count);
    for (std::size_t i = 0; i < count; ++i) check_matmul(isa, formats[i]);
    for (const auto type : {sojourn::KVType::F16, sojourn::KVType::F32, sojourn::KVType::Int8}) check_attention(isa, type);
    check_rows(isa);
    const std::string_view name = sojourn::isa_name(isa);
    std::printf("%.*s: %zu formats, attention, norms and gates checked\n", static_cast<int>(name.size()), name.data(), count);
  }
  std::printf(failures == 0 ? "all kernels agree\n" : "%d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}
