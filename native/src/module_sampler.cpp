// The Python face of the sampler: checks arrays, releases the GIL, calls.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "module.h"
#include "sojourn/sampler.h"

namespace nb = nanobind;

namespace {

using sojourn::Sampler;
using sojourn::SamplingRequest;
using sojourn::ThreadPool;

template <typename T>
using Column = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Table = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;  // rows may lie apart
using ConstInts = Column<const std::int32_t>;

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

struct Rows {
  float* data;
  std::int64_t stride, count;
};

Rows rows_of(const Sampler& sampler, const Logits& logits) {
  require(static_cast<std::int64_t>(logits.shape(1)) == sampler.vocab_size() && (logits.stride(1) == 1 || logits.shape(1) < 2),
          "logits must be [rows, vocab], adjacent within a row");
  return {logits.data(), logits.stride(0), static_cast<std::int64_t>(logits.shape(0))};
}

// The arrays that logprobs are returned in; `top_ids` and `top_logits` are as wide as the most top logprobs of a row.
struct Logprobs {
  Column<bool> valid;
  Column<double> totals;
  Column<float> highest, logits;
  Column<std::int64_t> ranks;
  Table<std::int32_t> top_ids;
  Table<float> top_logits;

  sojourn::LogprobRows rows(std::int64_t count) const {
    const auto size = static_cast<std::size_t>(count);
    require(valid.size() == size && totals.size() == size && highest.size() == size && logits.size() == size &&
                ranks.size() == size && top_ids.shape(0) == size && top_logits.shape(0) == size &&
                top_ids.shape(1) == top_logits.shape(1),
            "the arrays of logprobs must have one row per row of logits");
    return {valid.data(),  totals.data(),  highest.data(),    logits.data(),
            ranks.data(),  top_ids.data(), top_logits.data(), static_cast<std::int64_t>(top_ids.shape(1))};
  }
};

void sample(Sampler& sampler, ThreadPool& pool, const Logits& logits, const ConstInts& slots, const ConstInts& positions,
            const Column<std::int32_t>& token_ids, const Logprobs& logprobs) {
  const Rows rows = rows_of(sampler, logits);
  const auto count = static_cast<std::size_t>(rows.count);
  require(slots.size() == count && positions.size() == count && token_ids.size() == count,
          "one slot, one position and one token per row of logits");
  const sojourn::LogprobRows out = logprobs.rows(rows.count);
  nb::gil_scoped_release release;
  sampler.sample(pool, rows.data, rows.stride, rows.count, slots.data(), positions.data(), token_ids.data(), out);
}

void logprobs_of(Sampler& sampler, ThreadPool& pool, const Logits& logits, const ConstInts& token_ids,
                 const Logprobs& logprobs) {
  const Rows rows = rows_of(sampler, logits);
  require(token_ids.size() == static_cast<std::size_t>(rows.count), "one token per row of logits");
  const sojourn::LogprobRows out = logprobs.rows(rows.count);
  nb::gil_scoped_release release;
  sampler.logprobs_of(pool, rows.data, rows.stride, rows.count, token_ids.data(), out);
}

}  // namespace

void bind_sampler(nb::module_& m) {
  nb::class_<ThreadPool>(m, "ThreadPool")
      .def("__init__", [](ThreadPool* self, int threads) {
             require(threads >= 1, "threads must be at least 1");
             new (self) ThreadPool(threads);
           }, nb::arg("threads"));
  nb::class_<SamplingRequest>(m, "SamplingRequest")
      .def(nb::init<>())
      .def_rw("temperature", &SamplingRequest::temperature)
      .def_rw("top_k", &SamplingRequest::top_k)
      .def_rw("top_p", &SamplingRequest::top_p)
      .def_rw("min_p", &SamplingRequest::min_p)
      .def_rw("repetition_penalty", &SamplingRequest::repetition_penalty)
      .def_rw("presence_penalty", &SamplingRequest::presence_penalty)
      .def_rw("frequency_penalty", &SamplingRequest::frequency_penalty)
      .def_rw("min_tokens", &SamplingRequest::min_tokens)
      .def_rw("logprobs", &SamplingRequest::logprobs)
      .def_rw("top_logprobs", &SamplingRequest::top_logprobs)
      .def_rw("seed", &SamplingRequest::seed)
      .def_rw("restricted", &SamplingRequest::restricted)
      .def_rw("allowed_ids", &SamplingRequest::allowed_ids)
      .def_rw("end_ids", &SamplingRequest::end_ids)
      .def_rw("bias_ids", &SamplingRequest::bias_ids)
      .def_rw("biases", &SamplingRequest::biases)
      .def_rw("banned", &SamplingRequest::banned)
      .def_rw("prompt_ids", &SamplingRequest::prompt_ids)
      .def_rw("output_ids", &SamplingRequest::output_ids)
      .def_prop_ro("edits_logits", &SamplingRequest::edits_logits);
  nb::class_<Logprobs>(m, "LogprobRows")
      .def("__init__", [](Logprobs* self, const Column<bool>& valid, const Column<double>& totals, const Column<float>& highest,
                          const Column<float>& logits, const Column<std::int64_t>& ranks, const Table<std::int32_t>& top_ids,
                          const Table<float>& top_logits) {
             new (self) Logprobs{valid, totals, highest, logits, ranks, top_ids, top_logits};
           }, nb::arg("valid").noconvert(), nb::arg("totals").noconvert(), nb::arg("highest").noconvert(),
           nb::arg("logits").noconvert(), nb::arg("ranks").noconvert(), nb::arg("top_ids").noconvert(),
           nb::arg("top_logits").noconvert());
  nb::class_<Sampler>(m, "Sampler")
      .def("__init__", [](Sampler* self, const std::string& isa, std::int64_t vocab_size, std::int64_t slots, bool raw) {
             require(vocab_size >= 1 && slots >= 1, "vocab_size and slots must be at least 1");
             new (self) Sampler(isa_of(isa), vocab_size, slots, raw);
           }, nb::arg("isa"), nb::arg("vocab_size"), nb::arg("slots"), nb::arg("raw"))
      .def("admit", &Sampler::admit, nb::arg("slot"), nb::arg("request"))
      .def("sample", &sample, nb::arg("pool"), nb::arg("logits").noconvert(), nb::arg("slots").noconvert(),
           nb::arg("positions").noconvert(), nb::arg("token_ids").noconvert(), nb::arg("logprobs"))
      .def("logprobs_of", &logprobs_of, nb::arg("pool"), nb::arg("logits").noconvert(), nb::arg("token_ids").noconvert(),
           nb::arg("logprobs"));
}
