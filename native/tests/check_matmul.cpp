// Matrix products and the activation quantizer against plain loops in double, for every format, with rows and columns
// that no tile divides. Arrays have exactly the size that the kernels may touch.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "checks.h"
#include "sojourn/dequantize.h"

namespace checks {
namespace {

using sojourn::FormatInfo;
using sojourn::MatmulKernels;
using sojourn::PackedMatrix;

constexpr std::int64_t kMostRows = 64;

struct Activations {
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  std::vector<std::int32_t> sums;
  sojourn::QuantizedRows rows;

  Activations(const MatmulKernels& kernels, const std::vector<float>& x, std::int64_t count, std::int64_t k) {
    const std::int64_t padded = sojourn::padded_k(k);
    codes.resize(static_cast<std::size_t>(count * padded));
    scales.resize(codes.size() / 32);
    sums.resize(codes.size() / 16);
    rows = {codes.data(), scales.data(), sums.data(), padded};
    kernels.quantize_rows(x.data(), k, k, 0, count, rows);
  }

  sojourn::QuantizedRows from_row(std::int64_t r) const {
    const std::int64_t padded = rows.padded_k;
    return {rows.codes + r * padded, rows.scales + r * padded / 32, rows.sums + r * padded / 16, padded};
  }
};

// One group as words say it: codes are the nearest integers of x / scale, ties to even, and the scale makes the largest 127.
void check_group(const float* x, std::int64_t count, const std::int8_t* codes, float scale, const std::int32_t* sums,
                 std::string_view where) {
  float largest = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    finite = finite && std::isfinite(x[i]);
    largest = std::fmax(largest, std::fabs(x[i]));
  }
  const bool coded = finite && largest >= 0x1p-112f;
  expect(finite ? scale == (coded ? largest / 127.0f : 0.0f) : std::isnan(scale), "a scale is wrong", where);
  std::int32_t sum[2] = {0, 0};
  for (std::int64_t i = 0; i < 32; ++i) {
    const float exact = coded && i < count ? std::nearbyint(x[i] * (127.0f / largest)) : 0.0f;
    expect(static_cast<float>(codes[i]) == exact, "a code is wrong", where);
    sum[i / 16] += codes[i];
  }
  expect(sum[0] == sums[0] && sum[1] == sums[1], "a sum of codes is wrong", where);
}

void check_quantizer(const MatmulKernels& kernels) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Numbers numbers(2);
  for (const std::int64_t k : {1, 31, 32, 33, 63, 64, 65, 200}) {
    constexpr std::int64_t kRows = 9;
    auto x = numbers.draw(kRows * k, 3.0f);
    const float special[] = {kInfinity, -kInfinity, std::nanf(""), 0x1p-120f, 0.0f, -0.0f};
    for (std::int64_t r = 0; r < 6; ++r) x[static_cast<std::size_t>(r * k + k / 2)] = special[r];
    for (std::int64_t i = 0; i < k; ++i) x[static_cast<std::size_t>(3 * k + i)] *= 0x1p-120f;  // too small to be coded
    for (std::int64_t i = 0; i < k; ++i) x[static_cast<std::size_t>(4 * k + i)] = 0.0f;
    for (std::int64_t i = 0; i < k; ++i) x[static_cast<std::size_t>(7 * k + i)] *= 1e38f;
    const Activations made(kernels, x, kRows, k);
    for (std::int64_t r = 0; r < kRows; ++r)
      for (std::int64_t first = 0; first < sojourn::padded_k(k); first += 32) {
        const std::int64_t at = r * sojourn::padded_k(k) + first, count = std::max<std::int64_t>(0, std::min<std::int64_t>(32, k - first));
        check_group(x.data() + r * k + std::min(first, k), count, made.codes.data() + at, made.scales[static_cast<std::size_t>(at / 32)],
                    made.sums.data() + at / 16, "quantize_rows, k " + std::to_string(k));
      }
  }
}

struct Product {
  const FormatInfo& info;
  std::int64_t n, k;
  std::unique_ptr<PackedMatrix> matrix;
  std::vector<float> weights, x;  // [n, k], [kMostRows, k]
  std::string where;

  Product(const FormatInfo& format, std::int64_t rows, std::int64_t columns) : info(format), n(rows), k(columns) {
    Numbers numbers(static_cast<std::uint64_t>(n * k));
    const auto count = static_cast<std::size_t>(n * k) / info.block_elements;
    const auto data = numbers.blocks(info, static_cast<std::int64_t>(count));
    weights.resize(static_cast<std::size_t>(n * k));
    sojourn::dequantize(info, data.data(), count, weights.data(), 2);
    matrix = sojourn::pack(info.format, data.data(), n, k, 2);
    x = numbers.draw(kMostRows * k);
    where = std::string(info.name) + " " + std::to_string(n) + "x" + std::to_string(k);
  }

  std::int64_t stride() const { return matrix->panels * sojourn::kPanelRows; }

  std::vector<float> multiply(const MatmulKernels& kernels, const Activations& a, std::int64_t first, std::int64_t rows) const {
    std::vector<float> y(static_cast<std::size_t>(rows * stride()), std::nanf(""));
    kernels.matmul(*matrix, a.from_row(first), x.data() + first * k, k, rows, {0, matrix->panels, nullptr}, y.data(), stride());
    return y;
  }

  void check_row(const Activations& a, std::int64_t r, const std::vector<float>& y) const {
    for (std::int64_t column = 0; column < n; ++column) {
      double exact = 0, size = 0;
      for (std::int64_t i = 0; i < k; ++i) {
        const auto at = static_cast<std::size_t>(r * a.rows.padded_k + i);
        const double activation = matrix->integer_activations ? static_cast<double>(a.scales[at / 32]) * a.codes[at]
                                                              : static_cast<double>(x[static_cast<std::size_t>(r * k + i)]);
        const double term = activation * weights[static_cast<std::size_t>(column * k + i)];
        exact += term, size += std::fabs(term);
      }
      // Formats with minimums sum scale * code and minimum apart, which may cancel.
      expect(std::fabs(y[static_cast<std::size_t>(column)] - exact) <= 1e-4 * size + 1e-3, "a product is wrong", where);
    }
    for (auto column = static_cast<std::size_t>(n); column < static_cast<std::size_t>(stride()); ++column)
      expect(y[column] == 0.0f, "a column beyond the matrix is not 0", where);
  }
};

void check_product(const MatmulKernels& kernels, const Product& product, Digest& digest) {
  const Activations a(kernels, product.x, kMostRows, product.k);
  const std::int64_t stride = product.stride();
  std::vector<float> alone;
  for (std::int64_t r = 0; r < kMostRows; ++r) {
    const auto y = product.multiply(kernels, a, r, 1);
    if (r < 8) product.check_row(a, r, y);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  digest.add(alone);
  for (const std::int64_t rows : {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 33, 64}) {
    const std::int64_t first = kMostRows - rows;  // so that the last row read is the last there is
    const auto y = product.multiply(kernels, a, first, rows);
    expect(std::memcmp(y.data(), alone.data() + first * stride, y.size() * sizeof(float)) == 0,
           "a row depends on how many are computed with it", product.where);
  }
  for (std::int64_t begin = 0; begin < product.matrix->panels; ++begin) {  // a share of the panels, as workers take it
    std::vector<float> y(static_cast<std::size_t>(9 * stride));
    kernels.matmul(*product.matrix, a.rows, product.x.data(), product.k, 9, {begin, begin + 1, nullptr}, y.data(), stride);
    for (std::int64_t r = 0; r < 9; ++r)
      for (std::int64_t c = 0; c < stride; ++c) {
        const auto at = static_cast<std::size_t>(r * stride + c);
        expect(y[at] == (c / sojourn::kPanelRows == begin ? alone[at] : 0.0f), "a share of the panels differs", product.where);
      }
  }
}

}  // namespace

std::uint64_t check_matmul(sojourn::Isa isa) {
  const MatmulKernels& kernels = sojourn::matmul_kernels(isa);
  check_quantizer(kernels);
  std::size_t count = 0;
  const FormatInfo* formats = sojourn::all_formats(&count);
  Digest digest;
  for (std::size_t i = 0; i < count; ++i) {
    const auto block = static_cast<std::int64_t>(formats[i].block_elements);
    if (block == 1) {
      for (const auto& [n, k] : {std::pair<int, int>{1, 1}, {17, 63}, {33, 70}, {50, 129}})
        check_product(kernels, Product(formats[i], n, k), digest);
    } else {
      for (const auto& [n, blocks] : {std::pair<int, int>{1, 1}, {17, 2}, {50, 3}})
        check_product(kernels, Product(formats[i], n, blocks * block), digest);
    }
  }
  return digest.value();
}

}  // namespace checks
