// The Python face of the vector kernels, for tests and benchmarks: checks shapes, releases the GIL, calls. The executor
// reaches the kernels without Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "module.h"
#include "sojourn/isa.h"
#include "sojourn/vector_ops.h"

namespace nb = nanobind;

namespace {

using sojourn::AttentionShape;
using sojourn::kAttentionChunk;
using sojourn::kQueryTile;

using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstInts = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstPositions = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

template <typename Array>
std::int64_t length(const Array& array, std::size_t axis) {
  return static_cast<std::int64_t>(array.shape(axis));
}

const sojourn::VectorKernels& kernels(const std::string& name) { return sojourn::vector_kernels(isa_of(name)); }

AttentionShape make_shape(std::int64_t num_heads, std::int64_t num_kv_heads, std::int64_t head_dim,
                          std::int64_t block_size, float scale, std::int64_t window, float softcap,
                          const std::string& type) {
  require(num_kv_heads > 0 && num_heads > 0 && num_heads % num_kv_heads == 0,
          "query heads must be a multiple of KV heads");
  require(head_dim > 0 && head_dim % 16 == 0 && head_dim <= sojourn::kMaxHeadDim, "head_dim must be a multiple of 16");
  require(block_size > 0 && block_size % 16 == 0, "block_size must be a multiple of 16");
  return {num_heads, num_kv_heads, head_dim, block_size, scale, window, softcap, kv_type_of(type)};
}

void rms_norm(const std::string& isa, const ConstMatrix& x, const ConstFloats& weight, float eps, float offset,
              const Matrix& out) {
  const std::int64_t rows = length(x, 0), width = length(x, 1), group = length(weight, 0);
  require(length(out, 0) == rows && length(out, 1) == width, "out must have the shape of x");
  require(group > 0 && width % group == 0, "the width must be a multiple of the weight's length");
  kernels(isa).rms_norm(x.data(), rows, width, group, weight.data(), eps, offset, out.data());
}

void rope(const std::string& isa, const Matrix& x, std::int64_t head_dim, const ConstMatrix& cos,
          const ConstMatrix& sin) {
  const std::int64_t rows = length(x, 0), width = length(x, 1);
  require(head_dim > 0 && head_dim % 2 == 0 && width % head_dim == 0, "the width must be a multiple of head_dim");
  for (const ConstMatrix* table : {&cos, &sin})
    require(length(*table, 0) == rows && length(*table, 1) == head_dim / 2, "cos and sin must be [rows, head_dim / 2]");
  kernels(isa).rope(x.data(), width, rows, width / head_dim, head_dim, cos.data(), sin.data());
}

void glu(const std::string& isa, const ConstMatrix& gate, const ConstMatrix& up, std::int64_t begin, std::int64_t end,
         const std::string& activation, const Matrix& out) {
  const std::int64_t rows = length(gate, 0), width = length(gate, 1);
  require(activation == "silu" || activation == "gelu_tanh", "an activation is silu or gelu_tanh");
  require(length(up, 0) == rows && length(up, 1) == width && length(out, 0) == rows && length(out, 1) == width,
          "gate, up and out must have one shape");
  require(0 <= begin && begin <= end && end <= width, "columns out of range");
  kernels(isa).glu(gate.data(), up.data(), rows, begin, end, width,
                   activation == "silu" ? sojourn::Activation::Silu : sojourn::Activation::GeluTanh, out.data());
}

void add(const std::string& isa, const Floats& a, const ConstFloats& b) {
  require(a.size() == b.size(), "a and b must have one length");
  kernels(isa).add(a.data(), b.data(), length(a, 0));
}

void scale(const std::string& isa, const Floats& a, float factor) {
  kernels(isa).scale(a.data(), factor, length(a, 0));
}

void softcap(const std::string& isa, const Floats& a, float cap) { kernels(isa).softcap(a.data(), cap, length(a, 0)); }

void merge(const std::string& isa, const ConstMatrix& partials, const Floats& out) {
  require(length(out, 0) % 16 == 0 && length(partials, 1) == length(out, 0) + 2,
          "partials must be [chunks, head_dim + 2]");
  kernels(isa).merge(partials.data(), length(partials, 0), length(out, 0), out.data());
}

// Paged K and V of one layer in the caller's memory, and the kernels of one instruction set that read and write them.
class PagedKV {
 public:
  PagedKV(const std::string& isa, std::int64_t num_heads, std::int64_t num_kv_heads, std::int64_t head_dim,
          std::int64_t block_size, float scale, std::int64_t window, float softcap, const std::string& type, Bytes keys,
          Bytes values, ConstFloats key_center)
      : kernels_(kernels(isa)),
        shape_(make_shape(num_heads, num_kv_heads, head_dim, block_size, scale, window, softcap, type)),
        keys_(std::move(keys)),
        values_(std::move(values)),
        key_center_(std::move(key_center)),
        num_blocks_(static_cast<std::int64_t>(keys_.size() / sojourn::kv_block_bytes(shape_))) {
    require(keys_.size() == values_.size(), "keys and values must have one size");
    require(key_center_.size() == 0 || length(key_center_, 0) == num_kv_heads * head_dim,
            "a key centre is as long as a token's keys");
  }

  // k, v [tokens, num_kv_heads * head_dim] of the positions `first` onward.
  void write(const ConstInts& block_table, std::int64_t first, const ConstMatrix& k, const ConstMatrix& v) {
    const std::int64_t tokens = length(k, 0), width = shape_.num_kv_heads * shape_.head_dim;
    require(length(k, 1) == width && length(v, 1) == width && length(v, 0) == tokens,
            "k and v must be [tokens, kv heads * dim]");
    require(first >= 0, "a position is not negative");
    check_blocks(block_table, first, first + tokens);
    for (std::int64_t i = 0; i < tokens; ++i) {
      const std::int64_t position = first + i;
      kernels_.write_kv(shape_, layer(), block_table.data()[position / shape_.block_size], position % shape_.block_size,
                        k.data() + i * width, v.data() + i * width);
    }
  }

  // q, out [rows, num_heads * head_dim]; row r is the token at positions[r] of the sequence that `block_table` is of.
  // `tile` query vectors go into one work item, row after row, each with all heads of its KV head.
  void attend(const ConstInts& block_table, const ConstPositions& positions, const ConstMatrix& q, std::int64_t tile,
              const Matrix& out) {
    const std::int64_t rows = length(q, 0), width = shape_.num_heads * shape_.head_dim;
    require(length(q, 1) == width && length(out, 0) == rows && length(out, 1) == width,
            "q and out must be [rows, heads * dim]");
    require(length(positions, 0) == rows, "one position per row");
    require(tile >= 1 && tile <= kQueryTile, "an item has 1 to 24 query vectors");
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t position = positions.data()[r];
      require(position >= 0, "a position is not negative");
      check_blocks(block_table, shape_.window > 0 ? std::max<std::int64_t>(0, position - shape_.window + 1) : 0,
                   position + 1);
    }
    nb::gil_scoped_release release;
    const std::int64_t shared = shape_.num_heads / shape_.num_kv_heads;
    for (std::int64_t head = 0; head < shape_.num_kv_heads; ++head)
      for (std::int64_t begin = 0; begin < rows * shared; begin += tile)
        attend_tile(block_table.data(), positions.data(), q.data(), head, begin, std::min(begin + tile, rows * shared),
                    out.data());
  }

 private:
  sojourn::KVLayer layer() const {
    return {keys_.data(), values_.data(), key_center_.size() > 0 ? key_center_.data() : nullptr};
  }

  // Every block that holds one of the positions [first, last) must exist.
  void check_blocks(const ConstInts& block_table, std::int64_t first, std::int64_t last) const {
    if (first >= last) return;
    require((last - 1) / shape_.block_size < length(block_table, 0), "the block table is too short");
    for (std::int64_t i = first / shape_.block_size; i <= (last - 1) / shape_.block_size; ++i)
      require(block_table.data()[i] >= 0 && block_table.data()[i] < num_blocks_, "the block table names no such block");
  }

  // Query vectors [begin, end) of one KV head: number i is head i % shared of row i / shared.
  void attend_tile(const std::int32_t* block_table, const std::int64_t* positions, const float* q, std::int64_t kv_head,
                   std::int64_t begin, std::int64_t end, float* out) const {
    const std::int64_t shared = shape_.num_heads / shape_.num_kv_heads, dim = shape_.head_dim, stride = dim + 2;
    std::int64_t furthest = 0;
    for (std::int64_t i = begin; i < end; ++i) furthest = std::max(furthest, positions[i / shared]);
    const std::int64_t chunks = furthest / kAttentionChunk + 1;
    std::vector<float> partials(static_cast<std::size_t>((end - begin) * chunks * stride));
    const auto offset = [&](std::int64_t i) {
      return (i / shared * shape_.num_heads + kv_head * shared + i % shared) * dim;
    };
    sojourn::AttentionItem item{};
    item.count = end - begin;
    item.kv_head = kv_head;
    item.block_table = block_table;
    item.chunks = chunks;
    for (std::int64_t i = begin; i < end; ++i) {
      item.q[i - begin] = q + offset(i);
      item.positions[i - begin] = positions[i / shared];
      item.partial[i - begin] = partials.data() + (i - begin) * chunks * stride;
    }
    kernels_.attend(shape_, layer(), item);
    for (std::int64_t i = begin; i < end; ++i)
      kernels_.merge(partials.data() + (i - begin) * chunks * stride, chunks, dim, out + offset(i));
  }

  const sojourn::VectorKernels& kernels_;
  AttentionShape shape_;
  Bytes keys_, values_;
  ConstFloats key_center_;
  std::int64_t num_blocks_;
};

std::size_t kv_block_bytes(std::int64_t num_kv_heads, std::int64_t head_dim, std::int64_t block_size,
                           const std::string& type) {
  return sojourn::kv_block_bytes(make_shape(num_kv_heads, num_kv_heads, head_dim, block_size, 1.0f, 0, 0.0f, type));
}

}  // namespace

sojourn::KVType kv_type_of(const std::string& name) {
  if (name == "f16") return sojourn::KVType::F16;
  if (name == "f32") return sojourn::KVType::F32;
  if (name == "int8") return sojourn::KVType::Int8;
  throw std::invalid_argument("a KV type is f16, f32 or int8, not " + name);
}

void bind_vector(nb::module_& m) {
  // noconvert: a converted output would be a copy, filled and thrown away; a converted input would hide a mistake.
  m.def("rms_norm", &rms_norm, nb::arg("isa"), nb::arg("x").noconvert(), nb::arg("weight").noconvert(), nb::arg("eps"),
        nb::arg("offset"), nb::arg("out").noconvert());
  m.def("rope", &rope, nb::arg("isa"), nb::arg("x").noconvert(), nb::arg("head_dim"), nb::arg("cos").noconvert(),
        nb::arg("sin").noconvert());
  m.def("glu", &glu, nb::arg("isa"), nb::arg("gate").noconvert(), nb::arg("up").noconvert(), nb::arg("begin"),
        nb::arg("end"), nb::arg("activation"), nb::arg("out").noconvert());
  m.def("add", &add, nb::arg("isa"), nb::arg("a").noconvert(), nb::arg("b").noconvert());
  m.def("scale", &scale, nb::arg("isa"), nb::arg("a").noconvert(), nb::arg("factor"));
  m.def("softcap", &softcap, nb::arg("isa"), nb::arg("a").noconvert(), nb::arg("cap"));
  m.def("merge", &merge, nb::arg("isa"), nb::arg("partials").noconvert(), nb::arg("out").noconvert());
  m.def("kv_block_bytes", &kv_block_bytes, nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("block_size"),
        nb::arg("kv_type"));
  nb::class_<PagedKV>(m, "PagedKV")
      .def(nb::init<const std::string&, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float, std::int64_t,
                    float, const std::string&, Bytes, Bytes, ConstFloats>(),
           nb::arg("isa"), nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("block_size"),
           nb::arg("scale"), nb::arg("window"), nb::arg("softcap"), nb::arg("kv_type"), nb::arg("keys").noconvert(),
           nb::arg("values").noconvert(), nb::arg("key_center").noconvert())
      .def("write", &PagedKV::write, nb::arg("block_table").noconvert(), nb::arg("first"), nb::arg("k").noconvert(),
           nb::arg("v").noconvert())
      .def("attend", &PagedKV::attend, nb::arg("block_table").noconvert(), nb::arg("positions").noconvert(),
           nb::arg("q").noconvert(), nb::arg("tile"), nb::arg("out").noconvert());
}
