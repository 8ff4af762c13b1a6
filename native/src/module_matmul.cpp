// The Python face of the matrix products, for tests and benches: checks shapes, releases the GIL, calls.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "module.h"
#include "sojourn/formats.h"
#include "sojourn/isa.h"
#include "sojourn/matmul.h"

namespace nb = nanobind;

namespace {

template <class T, int kDimensions>
using Array = nb::ndarray<T, nb::ndim<kDimensions>, nb::c_contig, nb::device::cpu>;
using Floats = Array<const float, 2>;

const sojourn::MatmulKernels& kernels(const std::string& name) { return sojourn::matmul_kernels(isa_of(name)); }

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

std::unique_ptr<sojourn::PackedMatrix> pack(const std::string& format, const Array<const std::uint8_t, 1>& data,
                                            std::int64_t n, std::int64_t k, int threads) {
  const sojourn::FormatInfo* info = sojourn::find_format(format);
  if (info == nullptr) throw std::invalid_argument("unknown storage format " + format);
  require(n > 0 && k > 0 && threads > 0, "n, k and threads must be at least 1");
  const std::int64_t block = static_cast<std::int64_t>(info->block_elements);
  const std::int64_t bytes = n * (k / block) * static_cast<std::int64_t>(info->block_bytes);
  if (k % block != 0 || static_cast<std::int64_t>(data.size()) != bytes)
    throw std::invalid_argument(format + ": " + std::to_string(data.size()) + " bytes do not make " + std::to_string(n) +
                                " rows of " + std::to_string(k) + " weights");
  nb::gil_scoped_release release;
  return sojourn::pack(info->format, data.data(), n, k, threads);
}

// Buffers of quantized activations.
struct Activations {
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  std::vector<std::int32_t> sums;
  sojourn::QuantizedRows rows;

  Activations(std::int64_t count, std::int64_t k) {
    const std::int64_t padded = sojourn::padded_k(k);
    codes.resize(static_cast<std::size_t>(count * padded));
    scales.resize(codes.size() / 32);
    sums.resize(codes.size() / 16);
    rows = {codes.data(), scales.data(), sums.data(), padded};
  }
};

void matmul(const sojourn::PackedMatrix& w, const std::string& isa, const Floats& x, std::int64_t panel_begin,
            std::int64_t panel_end, const Array<float, 2>& out) {
  const sojourn::MatmulKernels& k = kernels(isa);
  const std::int64_t rows = static_cast<std::int64_t>(x.shape(0));
  require(static_cast<std::int64_t>(x.shape(1)) == w.k, "x must be [rows, k]");
  require(static_cast<std::int64_t>(out.shape(0)) == rows && static_cast<std::int64_t>(out.shape(1)) == 16 * w.panels,
          "out must be [rows, 16 * panels]");
  require(0 <= panel_begin && panel_begin <= panel_end && panel_end <= w.panels, "no such range of panels");
  nb::gil_scoped_release release;
  Activations quantized(w.integer_activations ? rows : 0, w.k);
  if (w.integer_activations) k.quantize_rows(x.data(), w.k, w.k, 0, rows, quantized.rows);
  k.matmul(w, quantized.rows, x.data(), w.k, rows, {panel_begin, panel_end, nullptr}, out.data(), 16 * w.panels);
}

void quantize_rows(const std::string& isa, const Floats& x, const Array<std::int8_t, 2>& codes, const Array<float, 2>& scales,
                   const Array<std::int32_t, 2>& sums) {
  const std::int64_t rows = static_cast<std::int64_t>(x.shape(0)), columns = static_cast<std::int64_t>(x.shape(1));
  const std::size_t padded = static_cast<std::size_t>(sojourn::padded_k(columns));
  require(codes.shape(0) == x.shape(0) && scales.shape(0) == x.shape(0) && sums.shape(0) == x.shape(0) &&
              codes.shape(1) == padded && scales.shape(1) == padded / 32 && sums.shape(1) == padded / 16,
          "codes, scales and sums must be [rows, k], [rows, k / 32] and [rows, k / 16] with k rounded up to 64");
  kernels(isa).quantize_rows(x.data(), columns, columns, 0, rows,
                             {codes.data(), scales.data(), sums.data(), static_cast<std::int64_t>(padded)});
}

}  // namespace

void bind_matmul(nb::module_& m) {
  // noconvert: a converted output would be a copy, filled and thrown away.
  nb::class_<sojourn::PackedMatrix>(m, "PackedMatrix", "A weight matrix [n, k] repacked for the matrix products.")
      .def_ro("n", &sojourn::PackedMatrix::n)
      .def_ro("k", &sojourn::PackedMatrix::k)
      .def_ro("panels", &sojourn::PackedMatrix::panels)
      .def_ro("bytes", &sojourn::PackedMatrix::bytes)
      .def_ro("integer_activations", &sojourn::PackedMatrix::integer_activations)
      .def("matmul", &matmul, nb::arg("isa"), nb::arg("x").noconvert(), nb::arg("panel_begin"), nb::arg("panel_end"),
           nb::arg("out").noconvert(), "Fills the columns of these panels of `out`. One thread; releases the GIL.");
  m.def("pack", &pack, nb::arg("format"), nb::arg("data").noconvert(), nb::arg("n"), nb::arg("k"), nb::arg("threads"),
        "Repacks n rows of k weights. Releases the GIL.");
  m.def("quantize_rows", &quantize_rows, nb::arg("isa"), nb::arg("x").noconvert(), nb::arg("codes").noconvert(),
        nb::arg("scales").noconvert(), nb::arg("sums").noconvert(), "Fills codes, scales and sums of the rows of x.");
}
