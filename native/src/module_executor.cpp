// The Python face of the executor: checks arrays, releases the GIL, calls.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "module.h"
#include "sojourn/executor.h"

namespace nb = nanobind;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntTable = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using IntsOut = nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const sojourn::FormatInfo& format_of(const std::string& name) {
  const sojourn::FormatInfo* info = sojourn::find_format(name);
  if (info == nullptr) throw std::invalid_argument("unknown storage format " + name);
  return *info;
}

void check_bytes(const sojourn::FormatInfo& info, const Bytes& data, std::int64_t rows, std::int64_t k) {
  const auto elements = static_cast<std::int64_t>(info.block_elements);
  if (rows < 1 || k < 1 || k % elements != 0 ||
      static_cast<std::int64_t>(data.size()) != rows * (k / elements) * static_cast<std::int64_t>(info.block_bytes))
    throw std::invalid_argument("the bytes do not make " + std::to_string(rows) + " rows of " + std::to_string(k));
}

sojourn::Activation activation_of(const std::string& name) {
  if (name == "silu") return sojourn::Activation::Silu;
  if (name == "gelu_tanh") return sojourn::Activation::GeluTanh;
  throw std::invalid_argument("unknown activation " + name);
}

// Keeps what the executor only points to alive: the bytes of tables that stay as the file stores them.
struct Model {
  sojourn::Executor executor;
  std::vector<Bytes> kept;
  std::size_t matrix_bytes = 0;
};

int add_matrix(Model& model, const std::string& format, const Bytes& data, std::int64_t n, std::int64_t k) {
  const sojourn::FormatInfo& info = format_of(format);
  check_bytes(info, data, n, k);
  nb::gil_scoped_release release;
  std::shared_ptr<const sojourn::PackedMatrix> matrix = sojourn::pack(info.format, data.data(), n, k, model.executor.threads());
  if (matrix == nullptr) throw std::invalid_argument("no kernel multiplies weights stored as " + format);
  model.matrix_bytes += matrix->bytes;
  return model.executor.add_matrix(std::move(matrix));
}

void embed(Model& model, int out, const std::string& format, const Bytes& data, std::int64_t rows, std::int64_t k, float scale) {
  const sojourn::FormatInfo& info = format_of(format);
  check_bytes(info, data, rows, k);
  model.kept.push_back(data);
  model.executor.embed(out, {&info, data.data(), rows, k}, scale);
}

void forward(Model& model, const Ints& token_ids, const Ints& positions, const Ints& cu_seqlens, const IntTable& tables,
             int result, const Rows& hidden) {
  sojourn::StepInput input;
  input.tokens = static_cast<std::int64_t>(token_ids.size());
  input.sequences = static_cast<std::int64_t>(tables.shape(0));
  input.table_width = static_cast<std::int64_t>(tables.shape(1));
  if (positions.size() != token_ids.size() || cu_seqlens.size() != tables.shape(0) + 1 || hidden.shape(0) != token_ids.size())
    throw std::invalid_argument("a step's arrays do not fit each other");
  input.token_ids = token_ids.data(), input.positions = positions.data();
  input.cu_seqlens = cu_seqlens.data(), input.block_tables = tables.data();
  nb::gil_scoped_release release;
  model.executor.forward(input, result, hidden.data());
}

void head(Model& model, const ConstRows& hidden, int result, const Rows& logits) {
  if (hidden.shape(0) != logits.shape(0)) throw std::invalid_argument("as many rows of logits as of hidden states");
  nb::gil_scoped_release release;
  model.executor.head(hidden.data(), static_cast<std::int64_t>(hidden.shape(0)), result, logits.data(),
                      static_cast<std::int64_t>(logits.shape(1)));
}

void head_argmax(Model& model, const ConstRows& hidden, int result, const IntsOut& ids, const FloatsOut& maxima) {
  if (hidden.shape(0) != ids.size() || ids.size() != maxima.size()) throw std::invalid_argument("one id and one maximum per row");
  nb::gil_scoped_release release;
  model.executor.head_argmax(hidden.data(), static_cast<std::int64_t>(hidden.shape(0)), result, ids.data(), maxima.data());
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const sojourn::Isa isa : sojourn::kIsas)
    if (sojourn::has_isa(isa)) names.emplace_back(sojourn::isa_name(isa));
  return names;
}

// Of the instruction sets in this build, those that this machine lacks something for, best first.
nb::dict missing_isas() {
  nb::dict result;
  for (const sojourn::Isa isa : sojourn::kIsas) {
    if (!sojourn::in_build(isa) || sojourn::has_isa(isa)) continue;
    nb::list features;
    for (const std::string_view feature : sojourn::missing_features(isa)) features.append(nb::str(feature.data(), feature.size()));
    const std::string_view name = sojourn::isa_name(isa);
    result[nb::str(name.data(), name.size())] = features;
  }
  return result;
}

}  // namespace

sojourn::Isa isa_of(const std::string& name) {
  for (const sojourn::Isa isa : sojourn::kIsas)
    if (sojourn::has_isa(isa) && sojourn::isa_name(isa) == name) return isa;
  throw std::invalid_argument("this machine has no instruction set " + name);
}

void bind_executor(nb::module_& m) {
  m.def("isas", &isas, "Instruction sets this machine has kernels for, best first.");
  m.def("missing_isas", &missing_isas, "Instruction sets there are kernels for but not the processor: name -> features it lacks.");
  nb::class_<Model>(m, "Executor")
      .def("__init__", [](Model* self, const std::string& isa, int threads, std::int64_t max_rows) {
             if (threads < 1 || max_rows < 1) throw std::invalid_argument("threads and max_rows must be at least 1");
             new (self) Model{{isa_of(isa), threads, max_rows}, {}, 0};
           }, nb::arg("isa"), nb::arg("threads"), nb::arg("max_rows"))
      .def("add_buffer", [](Model& m, std::int64_t width) { return m.executor.add_buffer(width); })
      .def("add_matrix", &add_matrix, nb::arg("format"), nb::arg("data").noconvert(), nb::arg("n"), nb::arg("k"))
      .def("add_vector", [](Model& m, const Floats& v) { return m.executor.add_vector(v.data(), static_cast<std::int64_t>(v.size())); })
      .def("add_rotation", [](Model& m, const Doubles& f, float scale) {
             return m.executor.add_rotation(f.data(), static_cast<std::int64_t>(f.size()), scale);
           })
      .def("add_kv_layer", [](Model& m, std::int64_t num_heads, std::int64_t num_kv_heads, std::int64_t head_dim,
                              std::int64_t block_size, float scale, std::int64_t window, float softcap, const std::string& type,
                              std::int64_t num_blocks, const Floats& key_center) {
             if (num_kv_heads < 1 || num_heads % num_kv_heads != 0 || head_dim % 16 != 0 || block_size % 16 != 0)
               throw std::invalid_argument("attention needs a multiple of 16 as head_dim and block_size, and whole groups of heads");
             const bool centered = key_center.size() > 0;
             if (centered && (static_cast<std::int64_t>(key_center.size()) != num_kv_heads * head_dim || softcap > 0.0f))
               throw std::invalid_argument("a key centre is as long as a token's keys, and a soft cap forbids it");
             return m.executor.add_kv_layer({num_heads, num_kv_heads, head_dim, block_size, scale, window, softcap, kv_type_of(type)},
                                            num_blocks, centered ? key_center.data() : nullptr);
           }, nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("block_size"), nb::arg("scale"),
           nb::arg("window"), nb::arg("softcap"), nb::arg("kv_type"), nb::arg("num_blocks"),
           nb::arg("key_center").noconvert())
      .def("embed", &embed, nb::arg("out"), nb::arg("format"), nb::arg("data").noconvert(), nb::arg("rows"), nb::arg("k"), nb::arg("scale"))
      .def("rms_norm", [](Model& m, int x, int out, int weight, std::int64_t group, float eps, float offset) {
             m.executor.rms_norm(x, out, weight, group, eps, offset);
           })
      .def("quantize", [](Model& m, int x) { m.executor.quantize(x); })
      .def("matmul", [](Model& m, int x, const std::vector<int>& matrices, const std::vector<int>& outs,
                        const std::vector<int>& biases, int residual) { m.executor.matmul(x, matrices, outs, biases, residual); })
      .def("rope", [](Model& m, int x, std::int64_t head_dim, int rotation) { m.executor.rope(x, head_dim, rotation); })
      .def("attention", [](Model& m, int q, int k, int v, int out, int layer) { m.executor.attention(q, k, v, out, layer); })
      .def("glu", [](Model& m, int gate, int up, int out, const std::string& activation) {
             m.executor.glu(gate, up, out, activation_of(activation));
           })
      .def("experts", [](Model& m, int x, int scores, int out, const std::vector<int>& gate, const std::vector<int>& up,
                         const std::vector<int>& down, std::int64_t top_k, bool normalize, const std::string& activation) {
             m.executor.experts(x, scores, out, {gate, up, down}, top_k, normalize, activation_of(activation));
           }, nb::arg("x"), nb::arg("scores"), nb::arg("out"), nb::arg("gate"), nb::arg("up"), nb::arg("down"),
           nb::arg("top_k"), nb::arg("normalize"), nb::arg("activation"))
      .def("add", [](Model& m, int a, int b, int out) { m.executor.add(a, b, out); })
      .def("scale", [](Model& m, int x, float factor) { m.executor.scale(x, factor); })
      .def("softcap", [](Model& m, int x, float cap) { m.executor.softcap(x, cap); })
      .def("begin_head", [](Model& m, int hidden) { m.executor.begin_head(hidden); })
      .def("padded_width", [](Model& m, int id) { return m.executor.padded_width(id); })
      .def("forward", &forward, nb::arg("token_ids").noconvert(), nb::arg("positions").noconvert(),
           nb::arg("cu_seqlens").noconvert(), nb::arg("block_tables").noconvert(), nb::arg("result"), nb::arg("hidden").noconvert())
      .def("head", &head, nb::arg("hidden").noconvert(), nb::arg("result"), nb::arg("logits").noconvert())
      .def("head_argmax", &head_argmax, nb::arg("hidden").noconvert(), nb::arg("result"), nb::arg("ids").noconvert(),
           nb::arg("maxima").noconvert())
      .def_prop_ro("pool", [](Model& m) -> sojourn::ThreadPool& { return m.executor.pool(); }, nb::rv_policy::reference_internal)
      .def("allocate_kv", [](Model& m, std::int64_t num_blocks) {
             if (num_blocks < 1) throw std::invalid_argument("at least one KV block");
             m.executor.allocate_kv(num_blocks);
           }, nb::arg("num_blocks"))
      .def("step_bytes", [](Model& m, std::int64_t context, std::int64_t head_rows) {
             if (context < 1 || head_rows < 1) throw std::invalid_argument("a context and rows of at least one");
             return m.executor.step_bytes(context, head_rows);
           }, nb::arg("context"), nb::arg("head_rows"))
      .def_prop_ro("matrix_bytes", [](const Model& m) { return m.matrix_bytes; })
      .def_prop_ro("arena_bytes", [](const Model& m) { return m.executor.arena_bytes(); })
      .def_prop_ro("kv_bytes", [](const Model& m) { return m.executor.kv_bytes(); });
}
