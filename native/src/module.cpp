// The Python face of the kernels: checks shapes, releases the GIL, calls. No arithmetic here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "module.h"
#include "sojourn/dequantize.h"
#include "sojourn/formats.h"

namespace nb = nanobind;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void dequantize(const std::string& format, const Bytes& data, const Floats& out, int threads) {
  const sojourn::FormatInfo* info = sojourn::find_format(format);
  if (info == nullptr) throw std::invalid_argument("unknown storage format " + format);
  if (threads < 1) throw std::invalid_argument("threads must be at least 1");
  const std::size_t blocks = data.size() / info->block_bytes;
  if (blocks * info->block_bytes != data.size() || blocks * info->block_elements != out.size())
    throw std::invalid_argument(format + ": " + std::to_string(data.size()) + " bytes do not make " +
                                std::to_string(out.size()) + " weights");
  nb::gil_scoped_release release;
  sojourn::dequantize(*info, data.data(), blocks, out.data(), threads);
}

nb::dict formats() {
  std::size_t count = 0;
  const sojourn::FormatInfo* table = sojourn::all_formats(&count);
  nb::dict result;
  for (std::size_t i = 0; i < count; ++i)
    result[nb::str(table[i].name.data(), table[i].name.size())] = nb::make_tuple(table[i].block_elements, table[i].block_bytes);
  return result;
}

}  // namespace

NB_MODULE(_kernels, m) {
  // noconvert: a converted `out` would be a copy, filled and thrown away.
  m.def("dequantize", &dequantize, nb::arg("format"), nb::arg("data").noconvert(), nb::arg("out").noconvert(),
        nb::arg("threads"),
        "Fills `out` (float32) with the weights of `data` (blocks of `format`). Releases the GIL.");
  m.def("formats", &formats, "Storage formats: name -> (weights per block, bytes per block).");
  bind_sampler(m);  // first: the executor hands out its thread pool
  bind_executor(m);
  bind_matmul(m);
  bind_needs(m);
  bind_vector(m);
}
