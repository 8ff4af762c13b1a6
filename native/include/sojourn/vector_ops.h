// Everything of a transformer step that is not a matrix product: norms, rotation, gates, attention over paged KV.
//
// Each row's result depends on that row alone: sums run over 16 lanes in a fixed order, exponentials are our own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sojourn {

enum class Activation : std::int32_t { Silu, GeluTanh };
// Int8: a row of one token and head is 8-bit codes and one float that they are multiples of.
enum class KVType : std::int32_t { F16, F32, Int8 };

// Positions [first, last) of one sequence's context are attended in chunks that begin at multiples of this.
inline constexpr std::int64_t kAttentionChunk = 256;
// Query vectors (row, head) of one KV head that one work item computes together.
inline constexpr std::int64_t kQueryTile = 24;
inline constexpr std::int64_t kMaxHeadDim = 512;

struct AttentionShape {
  std::int64_t num_heads, num_kv_heads, head_dim;  // head_dim is a multiple of 16, at most kMaxHeadDim
  std::int64_t block_size;                          // tokens in a KV block, a multiple of 16
  float scale;
  std::int64_t window;  // 0: none; else a token sees itself and window - 1 before it
  float softcap;        // 0: none
  KVType kv_type;
};

// K and V of one layer. Which token lies where inside a block is the business of these kernels only.
struct KVLayer {
  void* keys;
  void* values;
  const float* key_center = nullptr;  // Int8: what keys are coded relative to, [num_kv_heads * head_dim], null for zero
};

// Bytes of K (and as many of V) that one block of one layer takes.
std::size_t kv_block_bytes(const AttentionShape& shape);

// One work item: up to kQueryTile query vectors of one KV head against some chunks of one sequence's context, those of
// positions [chunk * kAttentionChunk, (chunk + chunks) * kAttentionChunk).
struct AttentionItem {
  const float* q[kQueryTile];        // each [head_dim]
  std::int64_t positions[kQueryTile];  // of the query's token, which sees itself
  std::int64_t count;                // queries in this item
  std::int64_t kv_head;
  std::int64_t chunk, chunks;
  const std::int32_t* block_table;   // of the sequence
  float* partial[kQueryTile];        // each [chunks, head_dim + 2]: maximum, sum, then the unnormalised output
};

struct VectorKernels {
  // out[r, g] = x[r, g] / rms(x[r, g]) * (weight + offset) over each group of `group` columns; may be in place.
  void (*rms_norm)(const float* x, std::int64_t rows, std::int64_t width, std::int64_t group, const float* weight,
                   float eps, float offset, float* out);
  // In place: each head's columns i and i + head_dim / 2 of row r turn by cos[r, i], sin[r, i]; tables [rows, head_dim / 2].
  void (*rope)(float* x, std::int64_t ldx, std::int64_t rows, std::int64_t heads, std::int64_t head_dim, const float* cos,
               const float* sin);
  // out = activation(gate) * up over columns [begin, end) of `rows` rows, all with row stride ld.
  void (*glu)(const float* gate, const float* up, std::int64_t rows, std::int64_t begin, std::int64_t end, std::int64_t ld,
              Activation activation, float* out);
  // a += b over `count` floats.
  void (*add)(float* a, const float* b, std::int64_t count);
  // a *= factor.
  void (*scale)(float* a, float factor, std::int64_t count);
  // a = cap * tanh(a / cap).
  void (*softcap)(float* a, float cap, std::int64_t count);
  // Stores k, v [num_kv_heads * head_dim] of one token at offset `offset` of KV block `block`.
  void (*write_kv)(const AttentionShape& shape, const KVLayer& layer, std::int64_t block, std::int64_t offset,
                   const float* k, const float* v);
  // Computes one item's partials. A chunk none of whose positions a query sees gives maximum -inf, sum 0, output 0.
  void (*attend)(const AttentionShape& shape, const KVLayer& layer, const AttentionItem& item);
  // Joins one query's partials [chunks, head_dim + 2], in ascending order of chunks, into out [head_dim].
  void (*merge)(const float* partials, std::int64_t chunks, std::int64_t head_dim, float* out);
};

}  // namespace sojourn
