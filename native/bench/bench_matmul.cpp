// Speed of the matrix products beside ceilings measured in the same run: read bandwidth and a register-only VPDPBUSD loop.
//
//   bench_matmul [--isa NAME] [--threads N] [--formats Q4_1,Q8_0] [--shapes 576x1536,896x4864] [--rows 1,8,512]
//
// Each measurement walks over enough copies of a matrix to leave the caches, every thread over its own panels. GB/s
// counts weight bytes, GOPS counts 2 * rows * n * k. Threads are pinned to the first processors. Rates and ceilings are
// those of the best of 25 windows; a median far above the best means that the machine was busy.
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "sojourn/formats.h"
#include "sojourn/isa.h"
#include "sojourn/matmul.h"

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Pinned threads that run one function each time they are asked; the caller is thread 0.
class Team {
 public:
  explicit Team(int size) : size_(size) {
    pin(0);
    for (int i = 1; i < size; ++i) helpers_.emplace_back([this, i] { serve(i); });
  }
  ~Team() {
    run(nullptr);
    for (std::thread& helper : helpers_) helper.join();
  }
  int size() const { return size_; }
  // Seconds until the last thread is done.
  double run(std::function<void(int)> work) {
    work_ = std::move(work);
    done_.store(0);
    const auto start = Clock::now();
    round_.fetch_add(1);
    if (work_) work_(0);
    while (done_.load() != size_ - 1) {}
    return seconds_since(start);
  }

 private:
  static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  }
  void serve(int index) {
    pin(index);
    for (int seen = 0;;) {
      while (round_.load() == seen) {}
      ++seen;
      const bool last = !work_;
      if (!last) work_(index);
      done_.fetch_add(1);
      if (last) return;
    }
  }
  int size_;
  std::vector<std::thread> helpers_;
  std::function<void(int)> work_;
  std::atomic<int> round_{0}, done_{0};
};

struct Seconds {
  double best, median;
};

// Of 25 windows, each as many calls as fill 4 ms: shorter than a scheduler's time slice, so that on a busy host some of
// them run undisturbed.
Seconds measure(const std::function<double()>& call) {
  call();
  std::vector<double> windows;
  for (int i = 0; i < 25; ++i) {
    double total = 0;
    int calls = 0;
    for (; total < 0.004; ++calls) total += call();
    windows.push_back(total / calls);
  }
  std::sort(windows.begin(), windows.end());
  return {windows[0], windows[windows.size() / 2]};
}

std::atomic<std::uint64_t> g_sink;  // keeps results of measured loops alive

double read_bandwidth(Team& team) {
  constexpr std::size_t kWords = (std::size_t{100} << 20) / 8, kHugePage = std::size_t{2} << 20;
  const std::unique_ptr<void, decltype(&std::free)> owner(std::aligned_alloc(kHugePage, kWords * 8), &std::free);
  madvise(owner.get(), kWords * 8, MADV_HUGEPAGE);
  std::uint64_t* memory = static_cast<std::uint64_t*>(owner.get());
  std::fill_n(memory, kWords, 1);
  const std::size_t share = kWords / static_cast<std::size_t>(team.size());
  const double seconds = measure([&] {
    return team.run([&](int t) {
      std::uint64_t sum[8] = {};
      const std::uint64_t* p = memory + share * static_cast<std::size_t>(t);
      for (std::size_t i = 0; i + 8 <= share; i += 8) {
        __builtin_prefetch(p + i + 768, 0, 2);  // as the kernels do: more than plain reading reaches
        for (int j = 0; j < 8; ++j) sum[j] += p[i + static_cast<std::size_t>(j)];
      }
      g_sink += sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
    });
  }).best;
  return static_cast<double>(kWords * 8) / seconds / 1e9;
}

#if defined(__x86_64__)
constexpr int kPeakSteps = 20000;

__attribute__((target("avx512f,avx512vnni"))) void dot_loop() {
  const __m512i codes = _mm512_set1_epi8(3), activations = _mm512_set1_epi8(5);
  __m512i a = codes, b = codes, c = codes, d = codes, e = codes, f = codes, g = codes, h = codes;
  __m512i i = codes, j = codes, k = codes, l = codes;
  for (int step = 0; step < kPeakSteps; ++step)
    asm volatile(
        "vpdpbusd %12, %13, %0\n vpdpbusd %12, %13, %1\n vpdpbusd %12, %13, %2\n vpdpbusd %12, %13, %3\n"
        "vpdpbusd %12, %13, %4\n vpdpbusd %12, %13, %5\n vpdpbusd %12, %13, %6\n vpdpbusd %12, %13, %7\n"
        "vpdpbusd %12, %13, %8\n vpdpbusd %12, %13, %9\n vpdpbusd %12, %13, %10\n vpdpbusd %12, %13, %11"
        : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l)
        : "v"(activations), "v"(codes));
}

// 64 products and 64 sums an instruction.
double peak_gops(Team& team) {
  if (!sojourn::has_isa(sojourn::Isa::Avx512Vnni)) return 0;
  const double seconds = measure([&] { return team.run([](int) { dot_loop(); }); }).best;
  return 12.0 * kPeakSteps * 128 * team.size() / seconds / 1e9;
}
#else
double peak_gops(Team&) { return 0; }
#endif

// Blocks whose codes are random and whose scales, wherever they lie, are small finite numbers.
std::vector<std::uint8_t> random_blocks(const sojourn::FormatInfo& info, std::int64_t weights) {
  std::vector<std::uint8_t> data(static_cast<std::size_t>(weights) / info.block_elements * info.block_bytes);
  std::mt19937_64 random(7);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(random() & 0x2f);
  return data;
}

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
        kernels.matmul(w, quantized, x.data(), shape.k, rows, std::min(panels, t * half), std::min(panels, (t + 1) * half),
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

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> items;
  std::stringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
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
