// Attention alone, one thread, by processor time: GFLOP/s and GB/s of decode and prefill with K and V in float16 and in
// int8, beside what this core can do, measured in the same run.
//
// Usage: bench_attention [portable|avx2|avx512_vnni]; without an argument the best that the machine runs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>
#include <vector>

#include "shared.h"
#include "sojourn/isa.h"
#include "sojourn/vector_ops.h"

namespace {

using namespace sojourn;

// Seconds this thread has run: another program on the core does not count, though what it does to the caches does.
double now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Median seconds of `repeats` calls after one that warms up.
template <typename Body>
double median_seconds(int repeats, Body body) {
  body();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const double start = now();
    body();
    seconds.push_back(now() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

struct Model {
  const char* name;
  std::int64_t num_heads, num_kv_heads, head_dim;
};

// `layers` layers of K and V for `context` tokens each, in blocks that follow each other. All hold the same numbers.
class Store {
 public:
  Store(const VectorKernels& kernels, const AttentionShape& shape, std::int64_t context, std::int64_t layers)
      : layer_bytes_(kv_block_bytes(shape) *
                     static_cast<std::size_t>((context + shape.block_size - 1) / shape.block_size)),
        layers_(layers),
        keys_(layer_bytes_ * static_cast<std::size_t>(layers)),
        values_(keys_.size()) {
    std::uint32_t random = 1;
    std::vector<float> row(static_cast<std::size_t>(shape.num_kv_heads * shape.head_dim));
    for (std::int64_t token = 0; token < context; ++token) {
      for (float& x : row) {
        random = random * 1664525u + 1013904223u;
        x = static_cast<float>(random >> 8) * 0x1p-23f - 1.0f;
      }
      if (token % shape.block_size == 0) table_.push_back(static_cast<std::int32_t>(token / shape.block_size));
      kernels.write_kv(shape, layer(0), table_.back(), token % shape.block_size, row.data(), row.data());
    }
    for (std::int64_t copy = 1; copy < layers; ++copy) {
      std::memcpy(layer(copy).keys, layer(0).keys, layer_bytes_);
      std::memcpy(layer(copy).values, layer(0).values, layer_bytes_);
    }
  }

  KVLayer layer(std::int64_t index) {
    const std::size_t offset = layer_bytes_ * static_cast<std::size_t>(index % layers_);
    return {keys_.data() + offset, values_.data() + offset};
  }
  std::size_t layer_bytes() const { return 2 * layer_bytes_; }
  const std::int32_t* table() const { return table_.data(); }

 private:
  std::size_t layer_bytes_;  // of K, and as many of V
  std::int64_t layers_;
  std::vector<std::uint8_t> keys_, values_;
  std::vector<std::int32_t> table_;
};

class Bench {
 public:
  Bench(const VectorKernels& kernels, const Model& model, KVType type, std::int64_t context, std::int64_t layers)
      : kernels_(kernels),
        shape_{model.num_heads, model.num_kv_heads, model.head_dim, 32, 0.125f, 0, 0.0f, type},
        store_(kernels, shape_, context, layers),
        chunks_((context + kAttentionChunk - 1) / kAttentionChunk),
        partials_(static_cast<std::size_t>(kQueryTile * chunks_ * (model.head_dim + 2))) {}

  // All heads of the rows at positions [first, last) of one layer.
  void run(std::int64_t layer, std::int64_t first, std::int64_t last) {
    const std::int64_t shared = shape_.num_heads / shape_.num_kv_heads, dim = shape_.head_dim;
    q_.resize(static_cast<std::size_t>((last - first) * shape_.num_heads * dim), 0.01f);
    out_.resize(q_.size());
    for (std::int64_t head = 0; head < shape_.num_kv_heads; ++head) {
      for (std::int64_t begin = 0; begin < (last - first) * shared; begin += kQueryTile) {
        const std::int64_t end = std::min(begin + kQueryTile, (last - first) * shared);
        const std::int64_t chunks = (first + (end - 1) / shared) / kAttentionChunk + 1;
        AttentionItem item{};
        item.count = end - begin;
        item.kv_head = head;
        item.block_table = store_.table();
        const auto row = [&](std::int64_t i) {
          return (i / shared * shape_.num_heads + head * shared + i % shared) * dim;
        };
        item.chunks = chunks;
        for (std::int64_t i = begin; i < end; ++i) {
          item.q[i - begin] = q_.data() + row(i);
          item.positions[i - begin] = first + i / shared;
          item.partial[i - begin] = partials_.data() + (i - begin) * chunks * (dim + 2);
        }
        kernels_.attend(shape_, store_.layer(layer), item);
        for (std::int64_t i = begin; i < end; ++i)
          kernels_.merge(partials_.data() + (i - begin) * chunks * (dim + 2), chunks, dim, out_.data() + row(i));
      }
    }
  }

  double flops(std::int64_t first, std::int64_t last) const {
    double tokens = 0;
    for (std::int64_t p = first; p < last; ++p) tokens += static_cast<double>(p + 1);
    return 4.0 * tokens * static_cast<double>(shape_.num_heads * shape_.head_dim);
  }
  double bytes() const { return static_cast<double>(store_.layer_bytes()); }

 private:
  const VectorKernels& kernels_;
  AttentionShape shape_;
  Store store_;
  std::int64_t chunks_;
  std::vector<float> partials_, q_, out_;
};

Isa chosen_isa(int argc, char** argv) {
  if (argc < 2) return best_isa();
  for (const Isa isa : {Isa::Portable, Isa::Avx2, Isa::Avx512Vnni})
    if (std::string_view(argv[1]) == isa_name(isa) && has_isa(isa)) return isa;
  std::fprintf(stderr, "no such instruction set here: %s\n", argv[1]);
  std::exit(2);
}

const char* name_of(KVType type) { return type == KVType::F16 ? "f16" : "int8"; }

void decode(const VectorKernels& kernels, const Model& model, KVType type, double peak, double read) {
  for (const std::int64_t context : {128, 512, 1024, 4096}) {
    const double element = type == KVType::F16 ? 2 : 1;
    const double layer_bytes = 2 * element * static_cast<double>(context * model.num_kv_heads * model.head_dim);
    // Enough layers that none is still in a cache when its turn comes again; or one layer, again and again.
    for (const bool cold : {true, false}) {
      const std::int64_t layers = cold ? static_cast<std::int64_t>(1.6e8 / layer_bytes) : 1;
      Bench bench(kernels, model, type, context, layers);
      const std::int64_t steps =
          std::max<std::int64_t>(cold ? layers : 1, static_cast<std::int64_t>(2e7 / layer_bytes));
      const double seconds = median_seconds(5,
                                            [&] {
                                              for (std::int64_t i = 0; i < steps; ++i)
                                                bench.run(i, context - 1, context);
                                            }) /
                             static_cast<double>(steps);
      const double gflops = bench.flops(context - 1, context) / seconds / 1e9,
                   gbytes = bench.bytes() / seconds / 1e9;
      std::printf(
          "%-8s %-4s decode  context %5ld %-4s %8.1f us  %6.1f GFLOP/s (%4.1f%% of FMA peak)  %5.1f GB/s (%3.0f%% of "
          "read)\n",
          model.name, name_of(type), static_cast<long>(context), cold ? "cold" : "hot", seconds * 1e6, gflops,
          peak > 0 ? 100 * gflops / peak : 0.0, gbytes, 100 * gbytes / read);
    }
  }
}

void prefill(const VectorKernels& kernels, const Model& model, KVType type, double peak) {
  for (const auto& [first, last] : {std::pair<std::int64_t, std::int64_t>{0, 512}, {2048, 2112}}) {
    Bench bench(kernels, model, type, last, 1);
    const std::int64_t begin = first, end = last;
    const double seconds = median_seconds(5, [&] { bench.run(0, begin, end); });
    const double gflops = bench.flops(first, last) / seconds / 1e9;
    std::printf("%-8s %-4s prefill positions %4ld-%-4ld %8.0f us  %6.1f GFLOP/s (%4.1f%% of FMA peak)\n", model.name,
                name_of(type), static_cast<long>(first), static_cast<long>(last), seconds * 1e6, gflops,
                peak > 0 ? 100 * gflops / peak : 0.0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Isa isa = chosen_isa(argc, argv);
  const VectorKernels& kernels = vector_kernels(isa);
  Team team(1);
  const double peak = peak_gflops(team, isa), read = read_bandwidth(team);
  std::printf("%.*s, one thread: FMA peak %.1f GFLOP/s, read %.1f GB/s\n", static_cast<int>(isa_name(isa).size()),
              isa_name(isa).data(), peak, read);
  for (const Model& model : {Model{"SmolLM2", 9, 3, 64}, Model{"Qwen2.5", 14, 2, 64}, Model{"Gemma-3", 4, 1, 256},
                             Model{"Llama-3", 32, 8, 128}}) {
    for (const KVType type : {KVType::F16, KVType::Int8}) prefill(kernels, model, type, peak);
    for (const KVType type : {KVType::F16, KVType::Int8}) decode(kernels, model, type, peak, read);
  }
}
