// Prints a digest of what each vector kernel makes of fixed inputs, so that instruction sets and machines can be
// compared: those with a fused multiply-add must print the same lines. Also what to run under a sanitizer or an
// emulator.
//
// Usage: digest_vector [portable|avx2|avx512_vnni]; without an argument the best that the machine runs.
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "sojourn/isa.h"
#include "sojourn/vector_ops.h"

namespace {

using namespace sojourn;

class Numbers {
 public:
  // Between -scale and scale.
  std::vector<float> draw(std::size_t count, float scale) {
    std::vector<float> out(count);
    for (float& x : out) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      x = scale * (static_cast<float>(state_ >> 40) * 0x1p-23f - 1.0f);
    }
    return out;
  }

 private:
  std::uint64_t state_ = 1;
};

void print_digest(const char* name, const std::vector<float>& values) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a over the bits
  for (const float value : values) {
    std::uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    hash = (hash ^ word) * 1099511628211u;
  }
  std::printf("%-16s %016llx\n", name, static_cast<unsigned long long>(hash));
}

void element_wise(const VectorKernels& kernels, Numbers& numbers) {
  constexpr std::int64_t kRows = 3, kWidth = 584;  // 36.5 vectors
  const std::vector<float> x = numbers.draw(kRows * kWidth, 8.0f), y = numbers.draw(kRows * kWidth, 2.0f);
  std::vector<float> out(x.size());
  kernels.rms_norm(x.data(), kRows, kWidth, kWidth, y.data(), 1e-5f, 1.0f, out.data());
  print_digest("rms_norm", out);
  kernels.glu(x.data(), y.data(), kRows, 0, kWidth, kWidth, Activation::Silu, out.data());
  print_digest("silu", out);
  kernels.glu(x.data(), y.data(), kRows, 0, kWidth, kWidth, Activation::GeluTanh, out.data());
  print_digest("gelu_tanh", out);
  out = x;
  kernels.softcap(out.data(), 3.0f, static_cast<std::int64_t>(out.size()));
  print_digest("softcap", out);
  kernels.rope(out.data(), kWidth, kRows, 1, kWidth, y.data(), x.data());
  print_digest("rope", out);
  kernels.add(out.data(), y.data(), static_cast<std::int64_t>(out.size()));
  kernels.scale(out.data(), 0.3f, static_cast<std::int64_t>(out.size()));
  print_digest("add, scale", out);
}

void attention(const VectorKernels& kernels, const AttentionShape& shape, const char* name, Numbers& numbers) {
  constexpr std::int64_t kContext = 300, kChunks = 2;
  const std::int64_t blocks = (kContext + shape.block_size - 1) / shape.block_size, dim = shape.head_dim;
  std::vector<std::uint8_t> keys(kv_block_bytes(shape) * blocks, 0xff), values(keys);  // NaN
  const KVLayer layer = {keys.data(), values.data()};
  std::vector<std::int32_t> table;
  for (std::int64_t i = blocks; i > 0; --i) table.push_back(static_cast<std::int32_t>(i - 1));
  for (std::int64_t i = 0; i < kContext; ++i) {
    const std::vector<float> k = numbers.draw(shape.num_kv_heads * dim, 2.0f),
                             v = numbers.draw(shape.num_kv_heads * dim, 2.0f);
    kernels.write_kv(shape, layer, table[i / shape.block_size], i % shape.block_size, k.data(), v.data());
  }
  std::vector<float> all;
  for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
    const std::vector<float> q = numbers.draw(kQueryTile * dim, 2.0f);
    std::vector<float> partials(kQueryTile * kChunks * (dim + 2)), out(kQueryTile * dim);
    AttentionItem item{};
    item.count = kQueryTile;
    item.kv_head = head;
    item.block_table = table.data();
    for (item.chunk = 0; item.chunk < kChunks; ++item.chunk) {
      for (std::int64_t i = 0; i < kQueryTile; ++i) {
        item.q[i] = q.data() + i * dim;
        item.positions[i] = kContext - 1 - 37 * i;
        item.partial[i] = partials.data() + (i * kChunks + item.chunk) * (dim + 2);
      }
      kernels.attend(shape, layer, item);
    }
    for (std::int64_t i = 0; i < kQueryTile; ++i)
      kernels.merge(partials.data() + i * kChunks * (dim + 2), kChunks, dim, out.data() + i * dim);
    all.insert(all.end(), out.begin(), out.end());
  }
  print_digest(name, all);
}

}  // namespace

int main(int argc, char** argv) {
  Isa isa = best_isa();
  for (const Isa candidate : {Isa::Portable, Isa::Avx2, Isa::Avx512Vnni})
    if (argc > 1 && std::string_view(argv[1]) == isa_name(candidate) && has_isa(candidate)) isa = candidate;
  if (argc > 1 && std::string_view(argv[1]) != isa_name(isa)) {
    std::fprintf(stderr, "no such instruction set here: %s\n", argv[1]);
    return 2;
  }
  const VectorKernels& kernels = vector_kernels(isa);
  Numbers numbers;
  element_wise(kernels, numbers);
  attention(kernels, {6, 2, 64, 32, 0.125f, 0, 0.0f, KVType::F16}, "attention f16", numbers);
  attention(kernels, {8, 2, 80, 48, 0.1f, 0, 0.0f, KVType::F32}, "attention f32", numbers);
  attention(kernels, {6, 2, 80, 32, 0.1f, 0, 0.0f, KVType::Int8}, "attention int8", numbers);
  attention(kernels, {4, 1, 256, 16, 0.1f, 70, 0.0f, KVType::F16}, "window", numbers);
  attention(kernels, {4, 1, 128, 32, 0.1f, 0, 5.0f, KVType::F16}, "softcap", numbers);
}
