// Norms, rotation, gates, sums and caps against plain loops in double, on widths that sixteen does not divide.
#include <cmath>
#include <cstring>
#include <string>

#include "checks.h"

namespace checks {
namespace {

using sojourn::Activation;
using sojourn::VectorKernels;

void expect_close(float found, double exact, double relative, std::string_view what, std::int64_t width) {
  expect(std::fabs(found - exact) <= relative * std::fabs(exact) + 2e-7, what, "width " + std::to_string(width));
}

double gate_of(Activation activation, double x) {
  const double exponent = activation == Activation::Silu ? x : 2 * std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
  return x / (1.0 + std::exp(-exponent));
}

void check_norm(const VectorKernels& kernels, std::int64_t groups, std::int64_t group, Numbers& numbers, Digest& digest) {
  constexpr std::int64_t kRows = 3;
  const std::int64_t width = groups * group;
  const auto x = numbers.draw(kRows * width, 8.0f), weight = numbers.draw(group, 2.0f);
  std::vector<float> out(x.size()), alone(static_cast<std::size_t>(width));
  kernels.rms_norm(x.data(), kRows, width, group, weight.data(), 1e-5f, 1.0f, out.data());
  for (std::int64_t begin = 0; begin < kRows * width; begin += group) {
    double square = 0;
    for (std::int64_t i = begin; i < begin + group; ++i) square += std::pow(static_cast<double>(x[static_cast<std::size_t>(i)]), 2);
    const double scale = 1.0 / std::sqrt(square / static_cast<double>(group) + 1e-5);
    for (std::int64_t i = 0; i < group; ++i) {
      const auto at = static_cast<std::size_t>(begin + i);
      expect_close(out[at], x[at] * scale * (weight[static_cast<std::size_t>(i)] + 1.0), 2e-6, "a norm is wrong", width);
    }
  }
  for (std::int64_t r = 0; r < kRows; ++r) {
    kernels.rms_norm(x.data() + r * width, 1, width, group, weight.data(), 1e-5f, 1.0f, alone.data());
    expect(std::memcmp(alone.data(), out.data() + r * width, alone.size() * sizeof(float)) == 0,
           "a norm depends on other rows", "width " + std::to_string(width));
  }
  digest.add(out);
}

void check_rope(const VectorKernels& kernels, std::int64_t heads, std::int64_t dim, Numbers& numbers, Digest& digest) {
  constexpr std::int64_t kRows = 3;
  const std::int64_t width = heads * dim, half = dim / 2;
  const auto before = numbers.draw(kRows * width), cos = numbers.draw(kRows * half), sin = numbers.draw(kRows * half);
  auto x = before;
  kernels.rope(x.data(), width, kRows, heads, dim, cos.data(), sin.data());
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < half; ++i) {
        const auto first = static_cast<std::size_t>(r * width + h * dim + i), second = first + static_cast<std::size_t>(half);
        const double c = cos[static_cast<std::size_t>(r * half + i)], s = sin[static_cast<std::size_t>(r * half + i)];
        expect_close(x[first], before[first] * c - before[second] * s, 1e-6, "a rotation is wrong", width);
        expect_close(x[second], before[second] * c + before[first] * s, 1e-6, "a rotation is wrong", width);
      }
  digest.add(x);
}

void check_glu(const VectorKernels& kernels, Activation activation, std::int64_t width, Numbers& numbers, Digest& digest) {
  constexpr std::int64_t kRows = 3;
  const auto gate = numbers.draw(kRows * width, 12.0f), up = numbers.draw(kRows * width, 2.0f);
  std::vector<float> out(gate.size()), part(gate.size());
  kernels.glu(gate.data(), up.data(), kRows, 0, width, width, activation, out.data());
  for (std::size_t i = 0; i < out.size(); ++i)
    expect_close(out[i], gate_of(activation, gate[i]) * up[i], 1e-5, "a gate is wrong", width);
  const std::int64_t begin = width / 3, end = width - width / 5;
  kernels.glu(gate.data(), up.data(), kRows, begin, end, width, activation, part.data());
  for (std::int64_t i = 0; i < kRows * width; ++i) {
    const bool inside = i % width >= begin && i % width < end;
    expect(part[static_cast<std::size_t>(i)] == (inside ? out[static_cast<std::size_t>(i)] : 0.0f), "a share of the columns differs",
           "glu, width " + std::to_string(width));
  }
  digest.add(out);
}

void check_in_place(const VectorKernels& kernels, std::int64_t width, Numbers& numbers, Digest& digest) {
  const auto a = numbers.draw(width, 90.0f), b = numbers.draw(width);
  auto sum = a, scaled = a, capped = a;
  kernels.add(sum.data(), b.data(), width);
  kernels.scale(scaled.data(), 0.3f, width);
  kernels.softcap(capped.data(), 30.0f, width);
  for (std::size_t i = 0; i < a.size(); ++i) {
    expect(sum[i] == a[i] + b[i], "a sum is wrong", "add");
    expect(scaled[i] == a[i] * 0.3f, "a multiple is wrong", "scale");
    expect_close(capped[i], 30.0 * std::tanh(static_cast<double>(a[i]) / 30.0), 1e-6, "a cap is wrong", width);
  }
  digest.add(sum), digest.add(scaled), digest.add(capped);
}

}  // namespace

std::uint64_t check_vector_ops(sojourn::Isa isa) {
  const VectorKernels& kernels = sojourn::vector_kernels(isa);
  Numbers numbers(3);
  Digest digest;
  for (const std::int64_t width : {1, 15, 16, 17, 31, 64, 100, 575, 576}) {
    check_norm(kernels, 1, width, numbers, digest);
    check_norm(kernels, 3, width, numbers, digest);
    check_glu(kernels, Activation::Silu, width, numbers, digest);
    check_glu(kernels, Activation::GeluTanh, width, numbers, digest);
    check_in_place(kernels, width, numbers, digest);
  }
  for (const std::int64_t dim : {2, 10, 32, 64, 80, 256}) check_rope(kernels, 3, dim, numbers, digest);
  return digest.value();
}

}  // namespace checks
