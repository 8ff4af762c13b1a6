// Speed of the matrix products beside ceilings measured in the same run: read bandwidth and a register-only VPDPBUSD loop.
//
//   bench_matmul [--isa NAME] [--threads N] [--formats Q4_1,Q8_0] [--shapes 576x1536,896x4864] [--rows 1,8,512]
//
// Each measurement walks over enough copies of a matrix to leave the caches, every thread over its own panels. GB/s
// counts weight bytes, GOPS counts 2 * rows * n * k. Threads are pinned to the first processors. Rates and ceilings are
// those of the best of 25 windows; a median far above the best means that the machine was busy.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "shared.h"
#include "sojourn/matmul.h"

namespace {

struct Shape {
  std::int64_t n, k;
};

struct Options {
  sojourn::Isa isa = sojourn::best_isa();
  int threads = 2;
  std::vector<std::string> formats;
  std::vector<Shape> shapes = {{576, 1536}, {1536, 576}, {49152, 576}, {896, 4864}, {4864, 896}};
  std::vector<std::int64_t> rows = {1, 2, 4, 8, 16, 64, 512};
};

void bench(Team& team, const Options& options, const sojourn::FormatInfo& info, Shape shape, double bandwidth, double peak) {
  constexpr std::size_t kBytes = std::size_t{100} << 20;
  const auto blocks = random_blocks(info, shape.n * shape.k);
  std::vector<std::unique_ptr<sojourn::PackedMatrix>> copies;
  for (std::size_t bytes = 0; bytes < kBytes; bytes += copies.back()->bytes)
    copies.push_back(sojourn::pack(info.format, blocks.data(), shape.n, shape.k, team.size()));
  const std::int64_t padded = sojourn::padded_k(shape.k), panels = copies[0]->panels;
  const sojourn::MatmulKernels& kernels = sojourn::matmul_kernels(options.isa);
  for (const std::int64_t rows : options.rows) {
    std::vector<float> x(static_cast<std::size_t>(rows * shape.k)), y(static_cast<std::size_t>(rows * panels * 16));
    std::mt19937 random(3);
    for (float& value : x) value = std::normal_distribution<float>()(random);
    std::vector<std::int8_t> codes(static_cast<std::size_t>(rows * padded));
    std::vector<float> scales(codes.size() / 32);
    std::vector<std::int32_t> sums(codes.size() / 16);
    const sojourn::QuantizedRows quantized{codes.data(), scales.data(), sums.data(), padded};
    kernels.quantize_rows(x.data(), shape.k, shape.k, 0, rows, quantized);
    const std::int64_t half = (panels / 2 + team.size() - 1) / team.size() * 2;  // panels of one thread
    const double product_ops = 2.0 * static_cast<double>(rows * shape.n * shape.k);
    std::size_t next = 0;  // copy after copy, so that each has left the caches when its turn comes again
    const Seconds time = measure([&] {
      const sojourn::PackedMatrix& w = *copies[next++ % copies.size()];
      return team.run([&](int t) {
        kernels.matmul(w, quantized, x.data(), shape.k, rows, {std::min(panels, t * half), std::min(panels, (t + 1) * half), nullptr},
                       y.data(), panels * 16);
      });
    });
    const double seconds = time.best;
    const double gigabytes = static_cast<double>(copies[0]->bytes) / seconds / 1e9, gops = product_ops / seconds / 1e9;
    std::printf("| %s | %lldx%lld | %lld | %.1f (%.1f) | %.1f | %.0f%% | %.0f | %.0f%% |\n", std::string(info.name).c_str(),
                static_cast<long long>(shape.n), static_cast<long long>(shape.k), static_cast<long long>(rows), seconds * 1e6,
                time.median * 1e6, gigabytes, 100 * gigabytes / bandwidth, gops, peak > 0 ? 100 * gops / peak : 0.0);
    std::fflush(stdout);
  }
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i], value = arguments[i + 1];
    if (name == "--formats") options.formats = split(value);
    if (name == "--threads") options.threads = std::max(1, std::atoi(value.c_str()));
    if (name == "--rows") {
      options.rows.clear();
      for (const std::string& item : split(value)) options.rows.push_back(std::atoll(item.c_str()));
    }
    if (name == "--shapes") {
      options.shapes.clear();
      for (const std::string& item : split(value))
        options.shapes.push_back({std::atoll(item.c_str()), std::atoll(item.c_str() + item.find('x') + 1)});
    }
    if (name == "--isa")
      for (const sojourn::Isa isa : {sojourn::Isa::Portable, sojourn::Isa::Avx2, sojourn::Isa::Avx512Vnni})
        if (sojourn::isa_name(isa) == value && sojourn::has_isa(isa)) options.isa = isa;
  }
  return options;
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse(count, arguments);
  Team team(options.threads);
  const double bandwidth = read_bandwidth(team), peak = peak_gops(team);
  std::printf("%s, %d threads: read bandwidth %.1f GB/s, VPDPBUSD %.0f GOPS\n\n", std::string(isa_name(options.isa)).c_str(),
              options.threads, bandwidth, peak);
  std::printf("| format | n x k | rows | us, best (median) | GB/s | of bandwidth | GOPS | of peak |\n|---|---|---|---|---|---|---|---|\n");
  std::size_t formats = 0;
  const sojourn::FormatInfo* table = sojourn::all_formats(&formats);
  for (std::size_t f = 0; f < formats; ++f) {
    const bool wanted = options.formats.empty() ||
                        std::find(options.formats.begin(), options.formats.end(), table[f].name) != options.formats.end();
    for (const Shape& shape : options.shapes)
      if (wanted && shape.k % static_cast<std::int64_t>(table[f].block_elements) == 0)
        bench(team, options, table[f], shape, bandwidth, peak);
  }
}
