// Attention over paged K and V, written once on sixteen lanes. Included by vector_impl.h only.
//
// A block of one layer holds K as [kv_head][dim][token] and V as [kv_head][token][dim], in int8 with the tokens' scales
// [token] behind each head's codes (kv_codes_impl.h). Scores have sixteen tokens in
// the lanes, outputs sixteen dimensions; either is one chain of fused multiply-adds (over ascending dimensions,
// ascending tokens), so neither the tile nor the company a query is computed in changes its bits. A token that a query
// does not see takes part in nothing: not in its maximum, not in its sum, not by a zero times whatever lies there.
#pragma once

#include "attention_merge_impl.h"
#include "kv_codes_impl.h"
#include "simd.h"
#include "sojourn/vector_ops.h"

namespace sojourn {
namespace {

constexpr std::int64_t kScoreStride = kAttentionChunk + kLanes;  // no power of two: each row in cache sets of its own,
constexpr std::int64_t kQueryStride = kMaxHeadDim + kLanes;      // as here

template <int kCount>
struct Count {
  static constexpr int value = kCount;
};

// body(Count<n>) with n known to the compiler; 1 <= n <= kTileQueries <= 12.
template <typename Body>
SOJOURN_INLINE void with_count(std::int64_t n, Body body) {
  switch (n) {
    case 1: return body(Count<1>());
    case 2: return body(Count<2>());
    case 3: return body(Count<3>());
    case 4: return body(Count<4>());
    case 5: return body(Count<5>());
    case 6: return body(Count<6>());
    case 7: return body(Count<7 < kTileQueries ? 7 : kTileQueries>());
    case 8: return body(Count<8 < kTileQueries ? 8 : kTileQueries>());
    case 9: return body(Count<9 < kTileQueries ? 9 : kTileQueries>());
    case 10: return body(Count<10 < kTileQueries ? 10 : kTileQueries>());
    case 11: return body(Count<11 < kTileQueries ? 11 : kTileQueries>());
    default: return body(Count<kTileQueries>());
  }
}

// The most columns (a power of two, at most 4) of a tile with kRows rows.
template <int kRows>
constexpr int tile_columns() {
  return 4 * kRows <= kTileVectors ? 4 : 2 * kRows <= kTileVectors ? 2 : 1;
}

SOJOURN_INLINE F32x16 capped(F32x16 x, F32x16 cap) { return cap * tanh(x / cap); }

// Positions relative to the chunk's first.
struct Span {
  std::int64_t first, last;  // last excluded
};

// Elements of type T that K or V of one KV head takes in a block.
template <typename T>
SOJOURN_INLINE std::int64_t head_size(const AttentionShape& shape) {
  const std::int64_t scales = kCoded<T> ? sizeof(float) / sizeof(T) : 0;
  return (shape.head_dim + scales) * shape.block_size;
}

// K or V of one KV head, element type T.
template <typename T>
struct Pages {
  const T* data;  // at the head's place in block 0
  std::int64_t block_stride, block_size, head_dim;
  const std::int32_t* block_table;

  Pages(const void* layer, const AttentionShape& shape, const AttentionItem& item)
      : data(static_cast<const T*>(layer) + item.kv_head * head_size<T>(shape)),
        block_stride(head_size<T>(shape) * shape.num_kv_heads),
        block_size(shape.block_size),
        head_dim(shape.head_dim),
        block_table(item.block_table) {}

  SOJOURN_INLINE const T* block(std::int64_t position) const {
    return data + block_table[position / block_size] * block_stride;
  }
  // K only: the elements of dimension 0 from this token on.
  SOJOURN_INLINE const T* panel(std::int64_t position) const { return block(position) + position % block_size; }
  // Codes only: what those of this token on are multiples of.
  SOJOURN_INLINE const float* scales(std::int64_t position) const {
    return reinterpret_cast<const float*>(block(position) + head_dim * block_size) + position % block_size;
  }
};

// Of the item's queries, those that see anything of a chunk, their vectors scaled.
struct Work {
  std::int64_t begin;  // first position of the chunk
  std::int64_t count;
  bool whole = false;  // `queries` are all of the item's: they stay as they are for the next chunk that all of them see
  Span spans[kQueryTile];
  float* partial[kQueryTile];
  alignas(64) float queries[kQueryTile * kQueryStride];  // [kQueryTile][kQueryStride]
  alignas(64) float scores[kQueryTile * kScoreStride];   // [kQueryTile][kScoreStride]

  // What queries [first, first + size) see all of, and what at least one of them sees.
  Span common(std::int64_t first, std::int64_t size) const {
    Span span = spans[first];
    for (std::int64_t i = first + 1; i < first + size; ++i) {
      if (spans[i].first > span.first) span.first = spans[i].first;
      if (spans[i].last < span.last) span.last = spans[i].last;
    }
    return span;
  }
  Span all(std::int64_t first, std::int64_t size) const {
    Span span = spans[first];
    for (std::int64_t i = first + 1; i < first + size; ++i) {
      if (spans[i].first < span.first) span.first = spans[i].first;
      if (spans[i].last > span.last) span.last = spans[i].last;
    }
    return span;
  }
};

// Of the chunk's tokens, where K and V are codes: a score is multiplied by its key's scale, a weight by its value's.
struct Scales {
  alignas(64) float keys[kAttentionChunk];
  alignas(64) float values[kAttentionChunk];

  template <typename T>
  SOJOURN_INLINE void read(const Pages<T>& key_pages, const Pages<T>& value_pages, std::int64_t begin, Span span) {
    for (std::int64_t at = span.first / kLanes * kLanes; at < span.last; at += kLanes) {
      store(keys + at, load(key_pages.scales(begin + at)));
      store(values + at, load(value_pages.scales(begin + at)));
    }
  }
};

void clear_partial(float* partial, std::int64_t head_dim) {
  partial[0] = -kInfinity;
  partial[1] = 0.0f;
  for (std::int64_t d = 0; d < head_dim; d += kLanes) store(partial + 2 + d, broadcast(0.0f));
}

Span visible(const AttentionShape& shape, std::int64_t position, std::int64_t begin) {
  std::int64_t first = shape.window > 0 ? position - shape.window + 1 - begin : 0, last = position + 1 - begin;
  if (first < 0) first = 0;
  if (last > kAttentionChunk) last = kAttentionChunk;
  return {first, last};
}

// Codes only: the queries as the keys were turned, interleaved for it so that whole registers are turned at a time.
void turn_queries(Work& work, std::int64_t head_dim) {
  alignas(64) float turned[kMaxHeadDim * kQueryTile];  // [head_dim][count]
  for (std::int64_t i = 0; i < work.count; ++i)
    for (std::int64_t d = 0; d < head_dim; ++d) turned[d * work.count + i] = work.queries[i * kQueryStride + d];
  hadamard(turned, head_dim, work.count);
  for (std::int64_t i = 0; i < work.count; ++i)
    for (std::int64_t d = 0; d < head_dim; ++d) work.queries[i * kQueryStride + d] = turned[d * work.count + i];
}

// For the item's chunk number `c`.
template <typename T>
void gather(const AttentionShape& shape, const AttentionItem& item, std::int64_t c, Work& work) {
  const float* seen[kQueryTile];
  work.begin = (item.chunk + c) * kAttentionChunk;
  work.count = 0;
  for (std::int64_t i = 0; i < item.count; ++i) {
    float* partial = item.partial[i] + c * (shape.head_dim + 2);
    clear_partial(partial, shape.head_dim);
    const Span span = visible(shape, item.positions[i], work.begin);
    if (span.first >= span.last) continue;
    const std::int64_t at = work.count++;
    work.spans[at] = span;
    work.partial[at] = partial;
    seen[at] = item.q[i];
  }
  const bool whole = work.count == item.count;
  if (whole && work.whole) return;
  work.whole = whole;
  for (std::int64_t at = 0; at < work.count; ++at)
    for (std::int64_t d = 0; d < shape.head_dim; d += kLanes)
      store(work.queries + at * kQueryStride + d, load(seen[at] + d) * broadcast(shape.scale));
  if constexpr (kCoded<T>) turn_queries(work, shape.head_dim);
}

// The cache lines wanted after those of a tile that is being computed, asked for meanwhile. They are fetched into the
// second level: the first is too small to hold both. In K as in V, `block_size` elements on is the next line or lines.
template <int kPanels, typename T>
struct Ahead {
  static constexpr int kStep = sizeof(T) < 4 ? 2 : 1;  // panels that share a line, in a block of 32 tokens
  const T* line[(kPanels + kStep - 1) / kStep];

  SOJOURN_INLINE Ahead(const Pages<T>& pages, std::int64_t position) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; p += kStep) line[p / kStep] = pages.panel(position + p * kLanes);
  }
  SOJOURN_INLINE void prefetch(std::int64_t stride) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; p += kStep) {
      __builtin_prefetch(line[p / kStep], 0, 2);
      line[p / kStep] += stride;
    }
  }
};

// Scores of kRows queries against kPanels times sixteen tokens.
template <int kRows, int kPanels, typename T>
SOJOURN_INLINE void score_tile(const Pages<T>& keys, std::int64_t head_dim, std::int64_t position, const float* queries,
                               Ahead<kPanels, T> ahead, float* scores) {
  const std::int64_t stride = keys.block_size;
  const T* panel[kPanels];
  F32x16 acc[kRows][kPanels];
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) panel[p] = keys.panel(position + p * kLanes);
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) acc[i][p] = broadcast(0.0f);
  for (std::int64_t d = 0; d < head_dim; ++d, ++queries) {
    F32x16 k[kPanels];
    ahead.prefetch(stride);
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      k[p] = load(panel[p]);
      panel[p] += stride;
    }
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const F32x16 q = broadcast(queries[i * kQueryStride]);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) acc[i][p] = fma(q, k[p], acc[i][p]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) store(scores + i * kScoreStride + p * kLanes, acc[i][p]);
}

// Tiles of kPanels while they fit into [at, end), both multiples of sixteen. Returns where they stop.
template <int kRows, int kPanels, typename T>
SOJOURN_INLINE std::int64_t score_tiles(const Pages<T>& keys, const Pages<T>& values, std::int64_t head_dim,
                                        std::int64_t begin, std::int64_t at, std::int64_t end, const float* queries,
                                        float* scores) {
  constexpr std::int64_t kWidth = kPanels * kLanes;
  const std::int64_t first_block = (begin + at) / keys.block_size * keys.block_size;
  for (; at + kWidth <= end; at += kWidth) {
    const bool last = at + 2 * kWidth > end;
    score_tile<kRows, kPanels>(keys, head_dim, begin + at, queries,
                               Ahead<kPanels, T>(last ? values : keys, last ? first_block : begin + at + kWidth),
                               scores + at);
  }
  return at;
}

// Scores of kRows queries against the sixteens of `span`, in tiles as large as fit.
template <int kRows, typename T>
void score_rows(const Pages<T>& keys, const Pages<T>& values, std::int64_t head_dim, std::int64_t begin, Span span,
                const float* queries, float* scores) {
  constexpr int kPanels = tile_columns<kRows>();
  const std::int64_t end = (span.last + kLanes - 1) / kLanes * kLanes;
  std::int64_t at = span.first / kLanes * kLanes;
  at = score_tiles<kRows, kPanels>(keys, values, head_dim, begin, at, end, queries, scores);
  if (kPanels > 2) at = score_tiles<kRows, 2>(keys, values, head_dim, begin, at, end, queries, scores);
  if (kPanels > 1) score_tiles<kRows, 1>(keys, values, head_dim, begin, at, end, queries, scores);
}

// Turns one query's scores over its span into weights exp(score - maximum); what is beside the span must not be read.
template <bool kScaled>
void weigh(const AttentionShape& shape, Span span, const Scales& scales, float* scores, float* partial) {
  const std::int64_t begin = span.first / kLanes * kLanes, end = (span.last + kLanes - 1) / kLanes * kLanes;
  if (kScaled)
    for (std::int64_t i = begin; i < end; i += kLanes) store(scores + i, load(scores + i) * load(scales.keys + i));
  if (shape.softcap > 0.0f)
    for (std::int64_t i = begin; i < end; i += kLanes)
      store(scores + i, capped(load(scores + i), broadcast(shape.softcap)));
  for (std::int64_t i = begin; i < span.first; ++i) scores[i] = -kInfinity;
  for (std::int64_t i = span.last; i < end; ++i) scores[i] = -kInfinity;
  F32x16 largest = broadcast(-kInfinity), total = broadcast(0.0f);
  for (std::int64_t i = begin; i < end; i += kLanes) largest = max(largest, load(scores + i));
  const float maximum_score = maximum(largest);
  for (std::int64_t i = begin; i < end; i += kLanes) {
    const F32x16 weights = exp_nonpositive(load(scores + i) - broadcast(maximum_score));
    store(scores + i, kScaled ? weights * load(scales.values + i) : weights);
    total = total + weights;
  }
  partial[0] = maximum_score;
  partial[1] = sum(total);
}

// Tokens of one block, consecutive.
template <typename T>
struct Run {
  const T* values;
  const float* weights;
  std::int64_t count;
};

template <typename T>
struct Runs {
  Run<T> runs[kAttentionChunk / kLanes + 2];
  std::int64_t count = 0;

  Runs(const Pages<T>& values, std::int64_t head_dim, std::int64_t begin, Span span, const float* scores) {
    for (std::int64_t at = span.first; at < span.last;) {
      const std::int64_t offset = (begin + at) % values.block_size;
      std::int64_t tokens = values.block_size - offset;
      if (tokens > span.last - at) tokens = span.last - at;
      runs[count++] = {values.block(begin + at) + offset * head_dim, scores + at, tokens};
      at += tokens;
    }
  }
};

// Adds to kRows outputs, kColumns times sixteen dimensions from `dim` on, their weighted values of all runs.
template <int kRows, int kColumns, typename T>
SOJOURN_INLINE void mix_tile(const Runs<T>& runs, std::int64_t head_dim, std::int64_t dim, float* const* partial) {
  F32x16 acc[kRows][kColumns];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) acc[i][c] = load(partial[i] + 2 + dim + c * kLanes);
  for (std::int64_t r = 0; r < runs.count; ++r) {
    const T* values = runs.runs[r].values + dim;
    const float* weights = runs.runs[r].weights;
    const float* end = weights + runs.runs[r].count;
    const T* next = r + 1 < runs.count ? runs.runs[r + 1].values + dim : values;
    for (; weights < end; ++weights, values += head_dim, next += head_dim) {
      F32x16 v[kColumns];
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; c += 4 / sizeof(T)) __builtin_prefetch(next + c * kLanes, 0, 2);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) v[c] = load(values + c * kLanes);
#pragma GCC unroll 12
      for (int i = 0; i < kRows; ++i) {
        const F32x16 w = broadcast(weights[i * kScoreStride]);
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) acc[i][c] = fma(w, v[c], acc[i][c]);
      }
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) store(partial[i] + 2 + dim + c * kLanes, acc[i][c]);
}

template <int kRows, typename T>
void mix_rows(const Runs<T>& runs, std::int64_t head_dim, float* const* partial) {
  constexpr int kColumns = tile_columns<kRows>();
  std::int64_t dim = 0;
  for (; dim + kColumns * kLanes <= head_dim; dim += kColumns * kLanes)
    mix_tile<kRows, kColumns>(runs, head_dim, dim, partial);
  for (; dim < head_dim; dim += kLanes) mix_tile<kRows, 1>(runs, head_dim, dim, partial);
}

// Calls body(first, Count<n>) for groups of at most kTileQueries queries, as even as can be.
template <typename Body>
SOJOURN_INLINE void for_query_groups(std::int64_t count, Body body) {
  const std::int64_t groups = (count + kTileQueries - 1) / kTileQueries, size = (count + groups - 1) / groups;
  for (std::int64_t first = 0; first < count; first += size)
    with_count(count - first < size ? count - first : size, [&](auto n) { body(first, n); });
}

// Adds to each of kRows queries the weighted values of a span that all of them see.
template <int kRows, typename T>
void mix_span(const Pages<T>& values, std::int64_t head_dim, Work& work, std::int64_t first, Span span) {
  mix_rows<kRows>(Runs<T>(values, head_dim, work.begin, span, work.scores + first * kScoreStride), head_dim,
                  work.partial + first);
}

// Adds to each of queries [first, end) its own span; neighbours with the same one, heads of one token, together.
template <typename T, typename SpanOf>
void mix_own(const Pages<T>& values, std::int64_t head_dim, Work& work, std::int64_t first, std::int64_t end,
             SpanOf span_of) {
  while (first < end) {
    const Span span = span_of(work.spans[first]);
    std::int64_t count = 1;
    while (first + count < end && work.spans[first + count].first == work.spans[first].first &&
           work.spans[first + count].last == work.spans[first].last)
      ++count;
    if (span.first < span.last)
      with_count(count, [&](auto n) { mix_span<decltype(n)::value>(values, head_dim, work, first, span); });
    first += count;
  }
}

template <int kRows, typename T>
void mix(const Pages<T>& values, std::int64_t head_dim, Work& work, std::int64_t first) {
  const Span common = work.common(first, kRows);
  const std::int64_t end = first + kRows;
  if (common.first >= common.last) return mix_own(values, head_dim, work, first, end, [](Span span) { return span; });
  // What only some queries see is added to those alone, before and after what all see: tokens stay in ascending order.
  mix_own(values, head_dim, work, first, end, [&](Span span) { return Span{span.first, common.first}; });
  mix_span<kRows>(values, head_dim, work, first, common);
  mix_own(values, head_dim, work, first, end, [&](Span span) { return Span{common.last, span.last}; });
}

template <typename T>
void attend_chunk(const AttentionShape& shape, const KVLayer& layer, const AttentionItem& item, Work& work) {
  const Pages<T> keys(layer.keys, shape, item), values(layer.values, shape, item);
  Scales scales;
  if constexpr (kCoded<T>) scales.read(keys, values, work.begin, work.all(0, work.count));
  for_query_groups(work.count, [&](std::int64_t first, auto n) {
    constexpr int kRows = decltype(n)::value;
    score_rows<kRows>(keys, values, shape.head_dim, work.begin, work.all(first, kRows),
                      work.queries + first * kQueryStride, work.scores + first * kScoreStride);
    for (std::int64_t i = first; i < first + kRows; ++i)
      weigh<kCoded<T>>(shape, work.spans[i], scales, work.scores + i * kScoreStride, work.partial[i]);
    mix<kRows>(values, shape.head_dim, work, first);
  });
}

template <typename T>
void attend_pages(const AttentionShape& shape, const KVLayer& layer, const AttentionItem& item) {
  Work work;
  for (std::int64_t c = 0; c < item.chunks; ++c) {
    gather<T>(shape, item, c, work);
    if (work.count > 0) attend_chunk<T>(shape, layer, item, work);
  }
}

void attend(const AttentionShape& shape, const KVLayer& layer, const AttentionItem& item) {
  switch (shape.kv_type) {
    case KVType::F16: return attend_pages<std::uint16_t>(shape, layer, item);
    case KVType::F32: return attend_pages<float>(shape, layer, item);
    case KVType::Int8: return attend_pages<std::int8_t>(shape, layer, item);
  }
}

// One head's row in the type it is kept in: narrowed as it is.
template <typename T>
SOJOURN_INLINE void narrow_row(const float* row, std::int64_t dim, T* out) {
  for (std::int64_t d = 0; d < dim; d += kLanes) store(out + d, load(row + d));
}

template <typename T>
void write_pages(const AttentionShape& shape, const KVLayer& layer, std::int64_t block, std::int64_t offset,
                 const float* k, const float* v) {
  const std::int64_t dim = shape.head_dim, tokens = shape.block_size, size = head_size<T>(shape);
  T* keys = static_cast<T*>(layer.keys) + block * shape.num_kv_heads * size;
  T* values = static_cast<T*>(layer.values) + block * shape.num_kv_heads * size;
  for (std::int64_t head = 0; head < shape.num_kv_heads; ++head, keys += size, values += size, k += dim, v += dim) {
    T row[kMaxHeadDim];
    if constexpr (kCoded<T>) {
      const float* center = layer.key_center == nullptr ? nullptr : layer.key_center + head * dim;
      reinterpret_cast<float*>(keys + dim * tokens)[offset] = encode_key(k, center, dim, row);
      reinterpret_cast<float*>(values + dim * tokens)[offset] = encode(v, dim, values + offset * dim);
    } else {
      narrow_row(k, dim, row);
      narrow_row(v, dim, values + offset * dim);
    }
    for (std::int64_t d = 0; d < dim; ++d) keys[d * tokens + offset] = row[d];
  }
}

void write_kv(const AttentionShape& shape, const KVLayer& layer, std::int64_t block, std::int64_t offset,
              const float* k, const float* v) {
  switch (shape.kv_type) {
    case KVType::F16: return write_pages<std::uint16_t>(shape, layer, block, offset, k, v);
    case KVType::F32: return write_pages<float>(shape, layer, block, offset, k, v);
    case KVType::Int8: return write_pages<std::int8_t>(shape, layer, block, offset, k, v);
  }
}

}  // namespace
}  // namespace sojourn
