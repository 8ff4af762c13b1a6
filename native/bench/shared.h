// What the programs of this folder share: a team, pinned on Linux, windows shorter than a time slice, random weights, and the
// ceilings that figures stand beside: read bandwidth, and loops of nothing but VPDPBUSD or fused multiply-adds.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "sojourn/formats.h"
#include "sojourn/isa.h"

namespace {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Pinned threads that run one function each time they are asked; the caller is thread 0, and has its own processors back
// afterwards: threads that it starts later inherit them.
class Team {
 public:
  explicit Team(int size) : size_(size) {
#if defined(__linux__)
    pthread_getaffinity_np(pthread_self(), sizeof before_, &before_);
#endif
    pin(0);
    for (int i = 1; i < size; ++i) helpers_.emplace_back([this, i] { serve(i); });
  }
  ~Team() {
    run(nullptr);
    for (std::thread& helper : helpers_) helper.join();
#if defined(__linux__)
    pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
#endif
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
  static void pin([[maybe_unused]] int cpu) {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
#endif
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
#if defined(__linux__)
  cpu_set_t before_;
#endif
  std::vector<std::thread> helpers_;
  std::function<void(int)> work_;
  std::atomic<int> round_{0}, done_{0};
};

struct Seconds {
  double best, median;
};

// Of 25 windows, each as many calls as fill 4 ms: shorter than a scheduler's time slice, so that on a busy host some of
// them run undisturbed.
inline Seconds measure(const std::function<double()>& call) {
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

inline double read_bandwidth(Team& team) {
  constexpr std::size_t kWords = (std::size_t{100} << 20) / 8, kHugePage = std::size_t{2} << 20;
  const std::unique_ptr<void, decltype(&std::free)> owner(std::aligned_alloc(kHugePage, kWords * 8), &std::free);
#if defined(__linux__)
  madvise(owner.get(), kWords * 8, MADV_HUGEPAGE);
#endif
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

// Twelve chains, of whatever width the operands are.
#define SOJOURN_TWELVE_FMAS                                                                                             \
  "vfmadd213ps %13, %12, %0\n vfmadd213ps %13, %12, %1\n vfmadd213ps %13, %12, %2\n vfmadd213ps %13, %12, %3\n"        \
  "vfmadd213ps %13, %12, %4\n vfmadd213ps %13, %12, %5\n vfmadd213ps %13, %12, %6\n vfmadd213ps %13, %12, %7\n"        \
  "vfmadd213ps %13, %12, %8\n vfmadd213ps %13, %12, %9\n vfmadd213ps %13, %12, %10\n vfmadd213ps %13, %12, %11"

__attribute__((target("avx512f"))) void fma_loop() {
  const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
  __m512 a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, i = x, j = x, k = x, l = x;
  for (int step = 0; step < kPeakSteps; ++step)
    asm volatile(
        SOJOURN_TWELVE_FMAS
        : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l)
        : "v"(x), "v"(y));
}

__attribute__((target("avx2,fma"))) void fma_loop_256() {
  const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
  __m256 a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, i = x, j = x, k = x, l = x;
  for (int step = 0; step < kPeakSteps; ++step)
    asm volatile(
        SOJOURN_TWELVE_FMAS
        : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f), "+x"(g), "+x"(h), "+x"(i), "+x"(j), "+x"(k), "+x"(l)
        : "x"(x), "x"(y));
}

// 64 products and 64 sums an instruction.
inline double peak_gops(Team& team) {
  if (!sojourn::has_isa(sojourn::Isa::Avx512Vnni)) return 0;
  const double seconds = measure([&] { return team.run([](int) { dot_loop(); }); }).best;
  return 12.0 * kPeakSteps * 128 * team.size() / seconds / 1e9;
}

// GFLOP/s: a product and a sum for each of an instruction's 16 or 8 lanes. 0 where this is not measured.
inline double peak_gflops(Team& team, sojourn::Isa isa) {
  if (isa == sojourn::Isa::Portable || !sojourn::has_isa(isa)) return 0;
  const bool wide = isa == sojourn::Isa::Avx512Vnni;
  const double seconds = measure([&] { return team.run([&](int) { wide ? fma_loop() : fma_loop_256(); }); }).best;
  return 12.0 * kPeakSteps * (wide ? 32 : 16) * team.size() / seconds / 1e9;
}
#else
inline double peak_gops(Team&) { return 0; }
inline double peak_gflops(Team&, sojourn::Isa) { return 0; }
#endif

// Blocks whose codes are random and whose scales, wherever they lie, are small finite numbers.
inline std::vector<std::uint8_t> random_blocks(const sojourn::FormatInfo& info, std::int64_t weights) {
  std::vector<std::uint8_t> data(static_cast<std::size_t>(weights) / info.block_elements * info.block_bytes);
  std::mt19937_64 random(7);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(random() & 0x2f);
  return data;
}

inline std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> items;
  std::stringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
}

}  // namespace
