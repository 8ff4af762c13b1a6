// Replays a captured list of ops. Owns the buffers and the KV memory; computes nothing itself but where work is split.
#include "sojourn/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "executor_experts.h"
#include "executor_parts.h"
#include "sojourn/dequantize.h"

namespace sojourn {
namespace {

struct Peak {
  float value;
  std::int64_t index;
};

// The largest of row[begin, end), the first one on ties; NaN if there is one. Sixteen lanes, so that it vectorises.
Peak peak_of(const float* row, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kLanes = 16;
  float highest[kLanes], nan = 0.0f;
  std::fill(highest, highest + kLanes, -INFINITY);
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = row[i + lane];
      highest[lane] = value > highest[lane] ? value : highest[lane];
      nan += value - value;  // 0 for a finite value; infinities are looked at below
    }
  for (; i < end; ++i) {
    highest[0] = row[i] > highest[0] ? row[i] : highest[0];
    nan += row[i] - row[i];
  }
  const float best = *std::max_element(highest, highest + kLanes);
  if (nan != 0.0f || best == -INFINITY)
    for (i = begin; i < end; ++i)
      if (std::isnan(row[i])) return {row[i], i};
  return {best, std::find(row + begin, row + end, best) - row};
}

}  // namespace

Executor::Executor(Isa isa, int threads, std::int64_t max_rows)
    : matmul_(matmul_kernels(isa)), vector_(vector_kernels(isa)), sampling_(sampling_kernels(isa)), max_rows_(max_rows), pool_(threads) {
  if (!has_isa(isa)) throw std::invalid_argument(std::string(isa_name(isa)) + " is not available on this machine");
  body_.push_back(Op(OpKind::Rotations));
}

Executor::~Executor() = default;

std::vector<Op>& Executor::building() { return head_input_ < 0 ? body_ : head_; }

BufferId Executor::add_buffer(std::int64_t width) {
  buffers_.emplace_back(width);
  return static_cast<BufferId>(buffers_.size()) - 1;
}

int Executor::add_matrix(std::shared_ptr<const PackedMatrix> matrix) {
  matrices_.push_back(std::move(matrix));
  return static_cast<int>(matrices_.size()) - 1;
}

int Executor::add_vector(const float* values, std::int64_t count) {
  vectors_.emplace_back(values, values + count);
  return static_cast<int>(vectors_.size()) - 1;
}

int Executor::add_rotation(const double* inverse_frequencies, std::int64_t half, float scale) {
  Rotation rotation{{inverse_frequencies, inverse_frequencies + half}, scale, nullptr, nullptr};
  rotation.cos = allocate<float>(max_rows_ * half);
  rotation.sin = allocate<float>(max_rows_ * half);
  rotations_.push_back(std::move(rotation));
  return static_cast<int>(rotations_.size()) - 1;
}

int Executor::add_kv_layer(const AttentionShape& shape, std::int64_t num_blocks, const float* key_center) {
  const std::size_t bytes = kv_block_bytes(shape) * static_cast<std::size_t>(num_blocks);
  const auto count = static_cast<std::int64_t>(bytes);
  std::vector<float> center;
  if (key_center != nullptr) center.assign(key_center, key_center + shape.num_kv_heads * shape.head_dim);
  kv_layers_.push_back(
      {shape, allocate<std::uint8_t>(count), allocate<std::uint8_t>(count), 2 * bytes, std::move(center)});
  return static_cast<int>(kv_layers_.size()) - 1;
}

void Executor::embed(BufferId out, const StoredRows& table, float scale) {
  Op op(OpKind::Embed);
  op.out = out, op.table = table, op.a = scale;
  buffers_.at(out);
  building().push_back(std::move(op));
}

void Executor::rms_norm(BufferId x, BufferId out, int weight, std::int64_t group, float eps, float offset) {
  Op op(OpKind::RmsNorm);
  op.x = x, op.out = out, op.id = weight, op.group = group, op.a = eps, op.b = offset;
  if (static_cast<std::int64_t>(vectors_.at(weight).size()) != group || buffers_.at(x).width % group != 0)
    throw std::out_of_range("a norm's weight does not fit its rows");
  buffers_.at(out);
  building().push_back(std::move(op));
}

void Executor::quantize(BufferId x) {
  buffers_.at(x).allocate_codes(max_rows_);
  Op op(OpKind::Quantize);
  op.x = x;
  building().push_back(std::move(op));
}

void Executor::matmul(BufferId x, const std::vector<int>& matrices, const std::vector<BufferId>& outs,
                      const std::vector<int>& biases, BufferId residual) {
  if (matrices.size() != outs.size() || matrices.size() != biases.size() || (residual >= 0 && outs.size() != 1))
    throw std::out_of_range("a matrix op's lists do not fit each other");
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const PackedMatrix& matrix = *matrices_.at(matrices[i]);
    if (matrix.k != buffers_.at(x).width || matrix.n != buffers_.at(outs[i]).width || outs[i] == residual)
      throw std::out_of_range("a matrix does not fit its buffers");
    if (biases[i] >= 0 && static_cast<std::int64_t>(vectors_.at(biases[i]).size()) != matrix.n)
      throw std::out_of_range("a bias does not fit its matrix");
  }
  Op op(OpKind::Matmul);
  op.x = x, op.y = residual, op.matrices = matrices, op.outs = outs, op.biases = biases;
  building().push_back(std::move(op));
}

void Executor::rope(BufferId x, std::int64_t head_dim, int rotation) {
  if (static_cast<std::int64_t>(rotations_.at(rotation).inverse_frequencies.size()) * 2 != head_dim ||
      buffers_.at(x).width % head_dim != 0)
    throw std::out_of_range("a rotation does not fit its heads");
  Op op(OpKind::Rope);
  op.x = x, op.group = head_dim, op.id = rotation;
  building().push_back(std::move(op));
}

void Executor::attention(BufferId q, BufferId k, BufferId v, BufferId out, int kv_layer) {
  const AttentionShape& shape = kv_layers_.at(kv_layer).shape;
  if (buffers_.at(q).width != shape.num_heads * shape.head_dim || buffers_.at(out).width != buffers_.at(q).width ||
      buffers_.at(k).width != shape.num_kv_heads * shape.head_dim || buffers_.at(v).width != buffers_.at(k).width)
    throw std::out_of_range("attention's buffers do not fit its heads");
  Op write(OpKind::WriteKV);
  write.x = k, write.y = v, write.id = kv_layer;
  building().push_back(std::move(write));
  Op op(OpKind::Attention);
  op.x = q, op.out = out, op.id = kv_layer;
  building().push_back(std::move(op));
}

void Executor::glu(BufferId gate, BufferId up, BufferId out, Activation activation) {
  if (buffers_.at(gate).width != buffers_.at(up).width || buffers_.at(out).width != buffers_.at(up).width)
    throw std::out_of_range("a gate does not fit its values");
  Op op(OpKind::Glu);
  op.x = gate, op.y = up, op.out = out, op.activation = activation;
  building().push_back(std::move(op));
}

void Executor::add(BufferId a, BufferId b, BufferId out) {
  if (buffers_.at(a).width != buffers_.at(b).width || buffers_.at(out).width != buffers_.at(a).width)
    throw std::out_of_range("the two sides of a sum differ in width");
  Op op(OpKind::Add);
  op.x = a, op.y = b, op.out = out;
  building().push_back(std::move(op));
}

void Executor::scale(BufferId x, float factor) {
  Op op(OpKind::Scale);
  op.x = x, op.a = factor;
  buffers_.at(x);
  building().push_back(std::move(op));
}

void Executor::softcap(BufferId x, float cap) {
  Op op(OpKind::Softcap);
  op.x = x, op.a = cap;
  buffers_.at(x);
  building().push_back(std::move(op));
}

void Executor::begin_head(BufferId hidden) {
  buffers_.at(hidden);
  head_input_ = hidden;
  find_crossing_buffers();
}

std::int64_t Executor::padded_width(BufferId id) const { return buffers_.at(id).stride; }

std::size_t Executor::arena_bytes() const {
  std::size_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += buffer.bytes(max_rows_);
  for (const std::vector<Buffer>& buffers : block_buffers_)
    for (const Buffer& buffer : buffers) bytes += buffer.bytes(kMaxBlockRows);
  const ExpertMemory* counted = nullptr;  // layers of one shape follow each other and share it
  for (const Experts& experts : experts_) {
    if (experts.memory.get() != counted) bytes += experts.memory->bytes();
    counted = experts.memory.get();
  }
  return bytes;
}

std::size_t Executor::kv_bytes() const {
  std::size_t bytes = 0;
  for (const KV& layer : kv_layers_) bytes += layer.bytes;
  return bytes;
}

const float* Executor::vector(int id) const { return id < 0 ? nullptr : vectors_[static_cast<std::size_t>(id)].data(); }

void Executor::forward(const StepInput& input, BufferId result, float* hidden) {
  if (input.tokens > max_rows_) throw std::out_of_range("a step of more tokens than the executor was made for");
  Step step;
  step.input = input;
  step.rows = input.tokens;
  step.block_rows = block_rows(input.tokens);
  buffers_.at(result).crosses = true;
  run(body_, step);
  const Buffer& out = buffers_.at(result);
  for (std::int64_t r = 0; r < input.tokens; ++r)
    std::memcpy(hidden + r * out.width, out.row(r), static_cast<std::size_t>(out.width) * sizeof(float));
}

void Executor::head(const float* hidden, std::int64_t rows, BufferId result, float* logits, std::int64_t stride) {
  Buffer& out = buffers_.at(result);
  if (rows > max_rows_ || stride < out.stride) throw std::out_of_range("the head's rows do not fit");
  set_head_input(hidden, rows);
  // The logits of a large vocabulary are written where the caller wants them, never held twice.
  const std::int64_t own_stride = out.stride;
  out.data = logits, out.stride = stride;
  Step step;
  step.rows = rows;
  run(head_, step);
  out.data = nullptr, out.stride = own_stride;
}

void Executor::set_head_input(const float* hidden, std::int64_t rows) {
  allocate_buffer(head_input_);
  const Buffer& in = buffers_.at(head_input_);
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(in.row(r), hidden + r * in.width, static_cast<std::size_t>(in.width) * sizeof(float));
}

void Executor::head_argmax(const float* hidden, std::int64_t rows, BufferId result, std::int32_t* ids, float* maxima) {
  Buffer& out = buffers_.at(result);
  if (rows > max_rows_) throw std::out_of_range("the head's rows do not fit");
  set_head_input(hidden, rows);
  argmax_logits_.resize(static_cast<std::size_t>(rows * out.stride));
  out.data = argmax_logits_.data();
  const int workers = pool_.size();
  std::vector<Peak> peaks(static_cast<std::size_t>(rows * workers));
  Step step;
  step.rows = rows;
  run(head_, step, [&](int worker) {
    const Share columns(out.width, worker, workers);
    for (std::int64_t r = 0; r < rows; ++r)
      peaks[static_cast<std::size_t>(r * workers + worker)] = peak_of(out.row(r), columns.begin, columns.end);
  });
  out.data = nullptr;
  for (std::int64_t r = 0; r < rows; ++r) {
    Peak best = peaks[static_cast<std::size_t>(r * workers)];
    for (int worker = 1; worker < workers; ++worker) {
      const Peak& other = peaks[static_cast<std::size_t>(r * workers + worker)];
      // Shares ascend, so on a tie the earlier one has the lower id. A NaN wins over everything.
      if (other.value > best.value || (std::isnan(other.value) && !std::isnan(best.value))) best = other;
    }
    ids[r] = static_cast<std::int32_t>(best.index), maxima[r] = best.value;
  }
}

void Executor::row_op(const Op& op, Step& step, const Block& block) {
  const auto buffer = [&](BufferId id) { return view(id, block); };
  const std::int64_t begin = block.begin, end = block.end, rows = end - begin;
  switch (op.kind) {
    case OpKind::Rotations:
      rotate_tables(step, begin, end);
      break;
    case OpKind::Embed:
      for (std::int64_t r = begin; r < end; ++r) {
        const std::size_t blocks = static_cast<std::size_t>(op.table.k) / op.table.info->block_elements;
        const std::size_t id = static_cast<std::size_t>(step.input.token_ids[r]);
        dequantize(*op.table.info, op.table.data + id * blocks * op.table.info->block_bytes, blocks, buffer(op.out).row(r), 1);
        if (op.a != 1.0f) vector_.scale(buffer(op.out).row(r), op.a, op.table.k);
      }
      break;
    case OpKind::RmsNorm:
      for (std::int64_t r = begin; r < end; ++r)
        vector_.rms_norm(buffer(op.x).row(r), 1, buffer(op.x).width, op.group, vector(op.id), op.a, op.b, buffer(op.out).row(r));
      break;
    case OpKind::Quantize:
      matmul_.quantize_rows(buffer(op.x).row(begin), buffer(op.x).stride, buffer(op.x).width, 0, rows,
                            buffer(op.x).quantized(begin));
      break;
    case OpKind::Rope: {
      const Rotation& rotation = rotations_[static_cast<std::size_t>(op.id)];
      const std::int64_t half = op.group / 2;
      vector_.rope(buffer(op.x).row(begin), buffer(op.x).stride, rows, buffer(op.x).width / op.group, op.group,
                   rotation.cos.get() + begin * half, rotation.sin.get() + begin * half);
      break;
    }
    case OpKind::WriteKV: {
      const KV& kv = kv_layers_[static_cast<std::size_t>(op.id)];
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t position = step.input.positions[r], size = kv.shape.block_size;
        const std::int32_t* table = step.input.block_tables + step.sequence_of[static_cast<std::size_t>(r)] * step.input.table_width;
        vector_.write_kv(kv.shape, kv.layer(), table[position / size], position % size, buffer(op.x).row(r), buffer(op.y).row(r));
      }
      break;
    }
    case OpKind::Glu:
      vector_.glu(buffer(op.x).row(begin), buffer(op.y).row(begin), rows, 0, buffer(op.x).width, buffer(op.x).stride,
                  op.activation, buffer(op.out).row(begin));
      break;
    case OpKind::Add:
      for (std::int64_t r = begin; r < end; ++r) {
        float* out = buffer(op.out).row(r);
        if (op.out != op.x) std::memcpy(out, buffer(op.x).row(r), static_cast<std::size_t>(buffer(op.x).width) * sizeof(float));
        vector_.add(out, buffer(op.y).row(r), buffer(op.x).width);
      }
      break;
    case OpKind::Scale:
      for (std::int64_t r = begin; r < end; ++r) vector_.scale(buffer(op.x).row(r), op.a, buffer(op.x).width);
      break;
    case OpKind::Softcap:
      for (std::int64_t r = begin; r < end; ++r) vector_.softcap(buffer(op.x).row(r), op.a, buffer(op.x).width);
      break;
    case OpKind::Matmul:
    case OpKind::Attention:
    case OpKind::Experts:
      break;
  }
}

void Executor::rotate_tables(Step& step, std::int64_t begin, std::int64_t end) {
  for (Rotation& rotation : rotations_) {
    const std::size_t half = rotation.inverse_frequencies.size();
    for (std::int64_t r = begin; r < end; ++r)
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = step.input.positions[r] * rotation.inverse_frequencies[i];
        const std::size_t at = static_cast<std::size_t>(r) * half + i;
        rotation.cos[at] = static_cast<float>(std::cos(angle)) * rotation.scale;
        rotation.sin[at] = static_cast<float>(std::sin(angle)) * rotation.scale;
      }
  }
}

// `next`: the weights that the worker reads afterwards.
void Executor::matmul_op(const Op& op, const Block& block, const Share& pairs, const std::uint8_t* next) {
  const View x = view(op.x, block);
  const std::int64_t rows = block.end - block.begin;
  std::int64_t first = 0;  // of the current matrix, in the row of all of them
  for (std::size_t i = 0; i < op.matrices.size(); ++i) {
    const PackedMatrix& matrix = *matrices_[static_cast<std::size_t>(op.matrices[i])];
    const std::int64_t begin = std::max(pairs.begin - first, std::int64_t{0});
    const std::int64_t end = std::min(pairs.end - first, matrix.panels / 2);
    first += matrix.panels / 2;
    if (begin >= end) continue;
    const View out = view(op.outs[i], block);
    const std::uint8_t* following = first < pairs.end ? matrices_[static_cast<std::size_t>(op.matrices[i + 1])]->pair(0) : next;
    matmul_.matmul(matrix, x.quantized(block.begin), x.row(block.begin), x.stride, rows, {2 * begin, 2 * end, following},
                   out.row(block.begin), out.stride);
    const std::int64_t column = begin * kPair, columns = std::min(end * kPair, matrix.n) - column;
    for (std::int64_t r = block.begin; r < block.end; ++r) {
      if (op.biases[i] >= 0) vector_.add(out.row(r) + column, vector(op.biases[i]) + column, columns);
      if (op.y >= 0) vector_.add(out.row(r) + column, view(op.y, block).row(r) + column, columns);
    }
  }
}

}  // namespace sojourn
