// Matrix products with stored weights: repacking at load time, quantizing activations, and the product itself.
//
// y[m, n] = sum over groups g of K, ascending, of scale products: the order is fixed, so a row's result never depends on
// how many rows are computed with it, on the number of threads, or on the tile that computes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "sojourn/formats.h"

namespace sojourn {

inline constexpr std::int64_t kPanelRows = 16;      // weight rows (output columns) that are computed side by side
inline constexpr std::int64_t kActivationGroup = 32;  // activations that share a scale

// A weight matrix [n, k] repacked into panels of 16 rows. Codes are those of the file, only their places change.
// Rows beyond n and columns beyond k are zero weights.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  // Where the weights of panels 2 * pair and 2 * pair + 1 begin, one stream of memory.
  virtual const std::uint8_t* pair(std::int64_t pair) const = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t panels = 0;        // n / 16, rounded up to an even number
  std::size_t bytes = 0;          // read per pass over the matrix
  bool integer_activations = true;  // false for F16, BF16 and F32 weights, which take float activations
};

// Activations quantized to int8 in groups of 32: x ~ scale * code, code in [-127, 127]. The caller owns the memory.
struct QuantizedRows {
  std::int8_t* codes;    // [rows, padded_k]
  float* scales;         // [rows, padded_k / 32]
  std::int32_t* sums;    // [rows, padded_k / 16] sums of 16 codes
  std::int64_t padded_k;   // k rounded up to a multiple of 64; codes beyond k are 0
};

inline std::int64_t padded_k(std::int64_t k) { return (k + 63) / 64 * 64; }

// One thread's share of a matrix: panels [begin, end). `next`: weights that this thread reads afterwards, which are asked
// for while the last panels are computed; may be null.
struct PanelRange {
  std::int64_t begin, end;
  const std::uint8_t* next;
};

// One instruction set's implementation. Every function computes only its share; the caller splits the work.
struct MatmulKernels {
  // Rows [row_begin, row_end) of x [rows, k], row stride ldx, into `out` (same row numbers).
  void (*quantize_rows)(const float* x, std::int64_t ldx, std::int64_t k, std::int64_t row_begin, std::int64_t row_end,
                        const QuantizedRows& out);
  // y[r, 16 * p + c] for rows [0, rows) and the range's panels p; y has row stride ldy >= 16 * panels.
  // `x` is read when w.integer_activations, else `xf` [rows, k] with row stride ldx.
  void (*matmul)(const PackedMatrix& w, const QuantizedRows& x, const float* xf, std::int64_t ldx, std::int64_t rows,
                 const PanelRange& range, float* y, std::int64_t ldy);
};

// Repacks n rows of k weights stored as `format` (row after row, whole blocks). nullptr: no kernel for this format.
// The result serves every instruction set. `threads` only split the work.
std::unique_ptr<PackedMatrix> pack(Format format, const std::uint8_t* blocks, std::int64_t n, std::int64_t k, int threads);

}  // namespace sojourn
