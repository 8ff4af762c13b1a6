// The executor's private parts: buffers, ops, and what one step keeps while it is computed.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "sojourn/executor.h"

namespace sojourn {

inline constexpr std::int64_t kPair = 2 * kPanelRows;  // columns that a worker's share is a multiple of

inline std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

// Worker w's part of [0, count).
struct Share {
  std::int64_t begin, end;
  Share(std::int64_t count, int worker, int workers)
      : begin(count * worker / workers), end(count * (worker + 1) / workers) {}
};

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};

template <class T>
using Array = std::unique_ptr<T[], FreeDeleter>;

// Untouched pages take no memory, so room for the worst case costs nothing until it is needed.
template <class T>
Array<T> allocate(std::int64_t count) {
  const std::int64_t bytes = round_up((count < 1 ? 1 : count) * static_cast<std::int64_t>(sizeof(T)), 64);
  void* p = std::aligned_alloc(64, static_cast<std::size_t>(bytes));
  if (p == nullptr) throw std::bad_alloc();
  return Array<T>(static_cast<T*>(p));
}

inline constexpr std::int64_t kMaxBlockRows = 64;
inline constexpr std::int64_t kMinBlockRows = 24;  // fewer don't hide the reading of the weights

struct Executor::Buffer {
  explicit Buffer(std::int64_t columns) : width(columns), stride(round_up(columns, kPair)) {}

  std::int64_t width, stride;
  bool crosses = true;  // from one run of row ops to another; the others need not outlive a block of rows
  Array<float> owned;
  float* data = nullptr;
  Array<std::int8_t> codes;
  Array<float> scales;
  Array<std::int32_t> sums;
  bool in_body = false;  // not of the head alone

  void allocate_data(std::int64_t rows) {
    owned = allocate<float>(rows * stride);
    data = owned.get();
  }
  void allocate_codes(std::int64_t rows) {
    if (codes != nullptr) return;
    const std::int64_t k = padded_k(width);
    codes = allocate<std::int8_t>(rows * k);
    scales = allocate<float>(rows * k / kActivationGroup);
    sums = allocate<std::int32_t>(rows * k / 16);
  }
  std::size_t bytes_per_row() const {
    const auto k = static_cast<std::size_t>(padded_k(width));
    return static_cast<std::size_t>(stride) * sizeof(float) + (codes != nullptr ? k * 11 / 8 : 0);
  }
  std::size_t bytes(std::int64_t rows) const {
    const std::size_t unused = owned == nullptr ? static_cast<std::size_t>(stride) * sizeof(float) : 0;
    return static_cast<std::size_t>(rows) * (bytes_per_row() - unused);
  }
  float* row(std::int64_t r) const { return data + r * stride; }
};

// Rows that are taken through ops together. `worker` >= 0: in that worker's own buffers, where a buffer does not cross.
struct Executor::Block {
  std::int64_t begin, end;
  int worker;
};

// A buffer as seen from a block: rows have their numbers of the step wherever they lie.
struct Executor::View {
  const Buffer& buffer;
  std::int64_t first;  // number of the buffer's row 0
  std::int64_t width = buffer.width, stride = buffer.stride;

  float* row(std::int64_t r) const { return buffer.row(r - first); }
  QuantizedRows quantized(std::int64_t r) const {
    const std::int64_t k = padded_k(width), at = (r - first) * k;
    return {buffer.codes.get() + at, buffer.scales.get() + at / kActivationGroup, buffer.sums.get() + at / 16, k};
  }
};

// The cosines and sines of one kind of rotation for the step's tokens.
struct Executor::Rotation {
  std::vector<double> inverse_frequencies;
  float scale;
  Array<float> cos, sin;  // [max_rows, half]
};

struct Executor::KV {
  AttentionShape shape;
  Array<std::uint8_t> keys, values;
  std::size_t bytes;
  std::vector<float> key_center;  // empty: none
  KVLayer layer() const { return {keys.get(), values.get(), key_center.empty() ? nullptr : key_center.data()}; }
};

enum class OpKind { Rotations, Embed, RmsNorm, Quantize, Rope, WriteKV, Glu, Add, Scale, Softcap, Matmul, Attention, Experts };

struct Op {
  OpKind kind;
  BufferId x = -1, y = -1, out = -1;
  int id = -1;  // vector, rotation, KV layer or mixture
  std::int64_t group = 0;
  float a = 0, b = 0;
  Activation activation = Activation::Silu;
  StoredRows table{};
  std::vector<int> matrices, biases;
  std::vector<BufferId> outs;

  explicit Op(OpKind which) : kind(which) {}
  bool by_rows() const { return kind != OpKind::Matmul && !together(); }
  // All workers compute all rows of it together, and share it out themselves.
  bool together() const { return kind == OpKind::Attention || kind == OpKind::Experts; }
};

// Up to kQueryTile query vectors of one KV head and one sequence. A sequence's queries are numbered by row, then by head
// within the KV head's group.
struct Tile {
  std::int64_t sequence, kv_head, first_query, count;
  std::int64_t first_chunk, last_chunk;  // inclusive: what any of its queries sees
};

// How attention is shared out in a step, the same for all layers whose attention has the same shape.
struct AttentionPlan {
  AttentionShape shape;
  std::vector<Tile> tiles;
  bool in_chunks = false;  // few tiles: their chunks are shared out, and joined by whoever computes a tile's last one
  std::vector<std::int64_t> chunk_tile;  // in_chunks: tile of each item; the item's chunk follows from its place
  std::vector<std::int64_t> first_item;  // in_chunks: of each tile
};

// One attention op's progress.
struct AttentionWork {
  const AttentionPlan& plan;
  PaddedCounter next;
  std::vector<std::atomic<std::int64_t>> computed;  // in_chunks: chunks of each tile

  explicit AttentionWork(const AttentionPlan& how) : plan(how), computed(how.in_chunks ? how.tiles.size() : 0) {}
};

struct Step {
  StepInput input;
  std::int64_t rows = 0;
  std::int64_t block_rows = 0;            // most rows of a block; 0: op by op
  std::vector<std::int64_t> sequence_of;  // [tokens]
  std::vector<std::unique_ptr<AttentionPlan>> plans;
  std::vector<std::unique_ptr<AttentionWork>> attention;  // one per attention op
  std::size_t attention_bytes = 0;        // of the next two
  Array<float> partials;                  // in_chunks: [items, kQueryTile, head_dim + 2] of the op being computed
  std::vector<Array<float>> scratch;      // otherwise: one per worker, [kQueryTile, chunks, head_dim + 2]
};

}  // namespace sojourn
