// Mixtures of experts: each row chooses, rows are grouped by expert, each expert computes its group, each row sums.
//
// A row adds its experts' results from the most likely down, and a matrix product's row never depends on the others, so
// its bits are the same whichever rows share its experts.
#include "executor_experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace sojourn {
namespace {

constexpr std::int64_t kClaim = 8;  // pairs of panels that a worker claims at a time

template <class T>
void copy_row(T* to, const T* from, std::int64_t count) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
}

// The top_k largest weights of a row, largest first; the lower expert wins a tie. NaN never wins but still fills up, so
// that a poisoned row names experts that exist.
void choose(const float* softmax, std::int64_t num_experts, std::int64_t top_k, std::int32_t* chosen, float* mixing) {
  for (std::int64_t rank = 0; rank < top_k; ++rank) {
    std::int64_t best = -1;
    for (std::int64_t expert = 0; expert < num_experts; ++expert) {
      if (std::find(chosen, chosen + rank, expert) != chosen + rank) continue;
      if (best < 0 || softmax[expert] > softmax[best]) best = expert;
    }
    chosen[rank] = static_cast<std::int32_t>(best);
    mixing[rank] = softmax[best];
  }
}

void divide(float* values, std::int64_t count) {
  float sum = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i];
  for (std::int64_t i = 0; i < count; ++i) values[i] /= sum;
}

}  // namespace

Executor::ExpertMemory::ExpertMemory(std::int64_t max_rows, std::int64_t experts, std::int64_t k, std::int64_t width,
                                     std::int64_t intermediate)
    : entries(max_rows * k),
      num_experts(experts),
      top_k(k),
      chosen(static_cast<std::size_t>(entries)),
      mixing(static_cast<std::size_t>(entries)),
      softmax(static_cast<std::size_t>(max_rows * experts)),
      place(static_cast<std::size_t>(entries)),
      row(static_cast<std::size_t>(entries)),
      first_place(static_cast<std::size_t>(experts + 1)),
      x(width),
      gate(intermediate),
      up(intermediate),
      out(width) {
  for (Buffer* buffer : {&x, &gate, &up, &out}) buffer->allocate_data(entries);
  for (Buffer* buffer : {&x, &gate}) buffer->allocate_codes(entries);
}

void Executor::experts(BufferId x, BufferId scores, BufferId out, ExpertWeights weights, std::int64_t top_k, bool normalize,
                       Activation activation) {
  const std::size_t count = weights.gate.size();
  const std::int64_t width = buffers_.at(x).width;
  if (weights.up.size() != count || weights.down.size() != count || count == 0 || top_k < 1 ||
      buffers_.at(scores).width != static_cast<std::int64_t>(count) || top_k > buffers_.at(scores).width)
    throw std::out_of_range("a mixture's lists do not fit each other");
  const std::int64_t intermediate = matrices_.at(weights.gate[0])->n;
  for (std::size_t i = 0; i < count; ++i) {
    const PackedMatrix &gate = *matrices_.at(weights.gate[i]), &up = *matrices_.at(weights.up[i]), &down = *matrices_.at(weights.down[i]);
    if (gate.k != width || up.k != width || gate.n != intermediate || up.n != intermediate || down.k != intermediate || down.n != buffers_.at(out).width)
      throw std::out_of_range("an expert does not fit its buffers");
    if ((gate.integer_activations || up.integer_activations) && buffers_.at(x).codes == nullptr)
      throw std::out_of_range("experts with quantized weights take quantized rows");
  }
  std::shared_ptr<ExpertMemory> memory;
  for (const Experts& other : experts_) {
    const ExpertMemory& own = *other.memory;
    if (own.num_experts == static_cast<std::int64_t>(count) && own.top_k == top_k && own.x.width == width && own.gate.width == intermediate)
      memory = other.memory;
  }
  if (memory == nullptr)
    memory = std::make_shared<ExpertMemory>(max_rows_, static_cast<std::int64_t>(count), top_k, width, intermediate);
  experts_.push_back({std::move(weights), normalize, activation, std::move(memory)});
  Op op(OpKind::Experts);
  op.x = x, op.y = scores, op.out = out, op.id = static_cast<int>(experts_.size()) - 1;
  building().push_back(std::move(op));
}

void Executor::experts_op(const Op& op, Step& step, int worker) {
  const Experts& experts = experts_[static_cast<std::size_t>(op.id)];
  ExpertMemory& memory = *experts.memory;
  const Buffer &x = buffers_[static_cast<std::size_t>(op.x)], &out = buffers_[static_cast<std::size_t>(op.out)];
  const Share rows(step.rows, worker, pool_.size()), places(step.rows * memory.top_k, worker, pool_.size());
  route(experts, buffers_[static_cast<std::size_t>(op.y)], rows.begin, rows.end);
  pool_.barrier(worker);
  if (worker == 0) group_by_expert(memory, step.rows);
  pool_.barrier(worker);
  gather(memory, x, places.begin, places.end);
  pool_.barrier(worker);
  multiply({&experts.weights.gate, &experts.weights.up}, memory, memory.x, {&memory.gate, &memory.up}, memory.next_inward);
  pool_.barrier(worker);
  if (places.begin < places.end) {
    vector_.glu(memory.gate.row(places.begin), memory.up.row(places.begin), places.end - places.begin, 0, memory.gate.width,
                memory.gate.stride, experts.activation, memory.gate.row(places.begin));
    if (matrices_[static_cast<std::size_t>(experts.weights.down[0])]->integer_activations)
      matmul_.quantize_rows(memory.gate.row(places.begin), memory.gate.stride, memory.gate.width, 0,
                            places.end - places.begin, View{memory.gate, 0}.quantized(places.begin));
  }
  pool_.barrier(worker);
  multiply({&experts.weights.down}, memory, memory.gate, {&memory.out}, memory.next_outward);
  pool_.barrier(worker);
  mix(memory, out, rows.begin, rows.end);
}

// The experts of each row and their weights: softmax over all, then the best, which `normalize` makes sum to 1.
void Executor::route(const Experts& experts, const Buffer& scores, std::int64_t begin, std::int64_t end) {
  ExpertMemory& memory = *experts.memory;
  for (std::int64_t r = begin; r < end; ++r) {
    const float* row = scores.row(r);
    float* softmax = memory.softmax.data() + r * memory.num_experts;
    float highest = row[0];
    for (std::int64_t i = 1; i < memory.num_experts; ++i) highest = row[i] > highest ? row[i] : highest;
    sampling_.weights(row, memory.num_experts, {highest, 1.0f, 0.0f}, softmax);
    divide(softmax, memory.num_experts);
    float* mixing = memory.mixing.data() + r * memory.top_k;
    choose(softmax, memory.num_experts, memory.top_k, memory.chosen.data() + r * memory.top_k, mixing);
    if (experts.normalize) divide(mixing, memory.top_k);
  }
}

void Executor::group_by_expert(ExpertMemory& memory, std::int64_t rows) {
  std::vector<std::int64_t>& first = memory.first_place;
  std::fill(first.begin(), first.end(), 0);
  const std::size_t entries = static_cast<std::size_t>(rows * memory.top_k);
  for (std::size_t i = 0; i < entries; ++i) ++first[static_cast<std::size_t>(memory.chosen[i]) + 1];
  for (std::size_t expert = 1; expert < first.size(); ++expert) first[expert] += first[expert - 1];
  for (std::size_t i = 0; i < entries; ++i) {
    const std::int64_t place = first[static_cast<std::size_t>(memory.chosen[i])]++;
    memory.place[i] = static_cast<std::int32_t>(place);
    memory.row[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) / memory.top_k);
  }
  // Each entry moved its expert's first place on by one, so every expert now holds where the next one begins.
  std::copy_backward(first.begin(), first.end() - 1, first.end());
  first[0] = 0;
  memory.next_inward.value = 0, memory.next_outward.value = 0;
}

void Executor::gather(ExpertMemory& memory, const Buffer& x, std::int64_t begin, std::int64_t end) const {
  for (std::int64_t place = begin; place < end; ++place) {
    const std::int64_t r = memory.row[static_cast<std::size_t>(place)];
    copy_row(memory.x.row(place), x.row(r), x.width);
    if (x.codes == nullptr) continue;
    const QuantizedRows from = View{x, 0}.quantized(r), to = View{memory.x, 0}.quantized(place);
    copy_row(to.codes, from.codes, from.padded_k);
    copy_row(to.scales, from.scales, from.padded_k / kActivationGroup);
    copy_row(to.sums, from.sums, from.padded_k / 16);
  }
}

// outs[i] = x @ matrices[i][expert].T for the places of every expert. Workers claim runs of panels until none is left.
void Executor::multiply(const std::vector<const std::vector<int>*>& matrices, const ExpertMemory& memory, const Buffer& x,
                        const std::vector<const Buffer*>& outs, PaddedCounter& next) {
  std::int64_t item = next.value.fetch_add(1, std::memory_order_relaxed), first_item = 0;
  for (std::size_t expert = 0; expert < static_cast<std::size_t>(memory.num_experts); ++expert) {
    const std::int64_t first = memory.first_place[expert], rows = memory.first_place[expert + 1] - first;
    if (rows == 0) continue;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      const PackedMatrix& matrix = *matrices_[static_cast<std::size_t>((*matrices[i])[expert])];
      const std::int64_t pairs = matrix.panels / 2, items = (pairs + kClaim - 1) / kClaim;
      for (; item < first_item + items; item = next.value.fetch_add(1, std::memory_order_relaxed)) {
        const std::int64_t begin = (item - first_item) * kClaim, end = std::min(begin + kClaim, pairs);
        const std::int64_t later = begin + kClaim * pool_.size();  // this worker's next claim, if all take equally long
        const PanelRange range{2 * begin, 2 * end, later < pairs ? matrix.pair(later) : nullptr};
        matmul_.matmul(matrix, View{x, 0}.quantized(first), x.row(first), x.stride, rows, range, outs[i]->row(first),
                       outs[i]->stride);
      }
      first_item += items;
    }
  }
}

void Executor::mix(const ExpertMemory& memory, const Buffer& out, std::int64_t begin, std::int64_t end) const {
  for (std::int64_t r = begin; r < end; ++r) {
    float* sum = out.row(r);
    for (std::int64_t rank = 0; rank < memory.top_k; ++rank) {
      const auto entry = static_cast<std::size_t>(r * memory.top_k + rank);
      const float weight = memory.mixing[entry];
      const float* result = memory.out.row(memory.place[entry]);
      for (std::int64_t i = 0; i < out.width; ++i) sum[i] = (rank == 0 ? 0.0f : sum[i]) + weight * result[i];
    }
  }
}

}  // namespace sojourn
