// The element-wise kernels alone, one thread, by processor time: nanoseconds a row and GB/s, on rows that lie in the
// second-level cache, beside what copying those rows reaches in the same run.
//
// Usage: bench_vector [portable|avx2|avx512_vnni]; without an argument the best that the machine runs.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string_view>
#include <vector>

#include "sojourn/isa.h"
#include "sojourn/vector_ops.h"

namespace {

using namespace sojourn;

double now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

constexpr std::int64_t kRows = 16;

// Seconds a row.
template <typename Body>
double seconds_of(Body body) {
  constexpr int kCalls = 200;
  std::vector<double> seconds;
  for (int repeat = 0; repeat < 9; ++repeat) {
    const double start = now();
    for (int i = 0; i < kCalls; ++i) body();
    seconds.push_back((now() - start) / kCalls / kRows);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

void run(const VectorKernels& kernels, std::int64_t width) {
  std::vector<float> x(kRows * width, 0.5f), y(kRows * width, 0.25f), out(kRows * width);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 37) * 0.2f - 3.5f;
  const std::int64_t count = kRows * width, row = width * 4;
  const double copy = 2.0 * static_cast<double>(row) / seconds_of([&] {
    std::memcpy(out.data(), x.data(), static_cast<std::size_t>(kRows * row));
    asm volatile("" : : "r"(out.data()) : "memory");  // each copy counts
  });
  // `bytes` are what a row reads and writes.
  const auto measure = [&](const char* name, std::int64_t columns, std::int64_t bytes, auto body) {
    const double seconds = seconds_of(body), rate = static_cast<double>(bytes) / seconds;
    std::printf("%-12s width %5ld  %8.1f ns a row  %6.1f GB/s  %3.0f%% of a copy's %.1f\n", name, static_cast<long>(columns),
                seconds * 1e9, rate / 1e9, 100 * rate / copy, copy / 1e9);
  };
  measure("rms_norm", width, 2 * row,
          [&] { kernels.rms_norm(x.data(), kRows, width, width, y.data(), 1e-5f, 0, out.data()); });
  measure("silu", width, 3 * row,
          [&] { kernels.glu(x.data(), y.data(), kRows, 0, width, width, Activation::Silu, out.data()); });
  measure("gelu_tanh", width, 3 * row,
          [&] { kernels.glu(x.data(), y.data(), kRows, 0, width, width, Activation::GeluTanh, out.data()); });
  measure("add", width, 3 * row, [&] { kernels.add(out.data(), y.data(), count); });
  measure("rope", width, 3 * row, [&] { kernels.rope(out.data(), width, kRows, width / 64, 64, x.data(), y.data()); });
  out = x;
  measure("softcap", width, 2 * row, [&] { kernels.softcap(out.data(), 30.0f, count); });

  const AttentionShape shape = {width / 64, width / 64, 64, 32, 1.0f, 0, 0.0f, KVType::F16};
  std::vector<std::uint16_t> keys(kv_block_bytes(shape) / 2), values(keys.size());
  measure("write_kv", width, 12 * width, [&] {
    for (std::int64_t i = 0; i < kRows; ++i)
      kernels.write_kv(shape, {keys.data(), values.data()}, 0, i, x.data() + i * width, y.data() + i * width);
  });
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
  std::printf("%.*s\n", static_cast<int>(isa_name(isa).size()), isa_name(isa).data());
  for (const std::int64_t width : {192, 576, 1536, 4864}) run(vector_kernels(isa), width);
}
