// Shares attention out among the workers. The arithmetic of a query is the same whichever way it is shared out: partials
// of chunks at absolute positions, joined in ascending order.
#include <algorithm>

#include "executor_parts.h"

namespace sojourn {
namespace {

constexpr std::int64_t kPartialHead = 2;     // maximum and sum in front of a partial's output
constexpr std::size_t kTilesPerWorker = 3;   // with fewer tiles, chunks are shared out instead

// Tiles of one layer's attention. Queries that share K and V sit in the same tile, so each block is read once for them.
// Tiles that may share some, those of one head, follow each other: sequences with a common prefix find it in the cache.
std::vector<Tile> make_tiles(const StepInput& input, const AttentionShape& shape) {
  const std::int64_t group = shape.num_heads / shape.num_kv_heads;
  std::vector<Tile> tiles;
  for (std::int64_t head = 0; head < shape.num_kv_heads; ++head)
    for (std::int64_t s = 0; s < input.sequences; ++s) {
      const std::int64_t first_row = input.cu_seqlens[s], queries = (input.cu_seqlens[s + 1] - first_row) * group;
      for (std::int64_t q = 0; q < queries; q += kQueryTile) {
        const std::int64_t count = std::min(kQueryTile, queries - q);
        const std::int64_t oldest = input.positions[first_row + q / group];
        const std::int64_t newest = input.positions[first_row + (q + count - 1) / group];
        const std::int64_t begin = shape.window > 0 ? std::max<std::int64_t>(0, oldest - shape.window + 1) : 0;
        tiles.push_back({s, head, q, count, begin / kAttentionChunk, newest / kAttentionChunk});
      }
    }
  // The longest first, so that no worker ends on one.
  std::stable_sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) {
    return a.last_chunk - a.first_chunk > b.last_chunk - b.first_chunk;
  });
  return tiles;
}

bool shared_out_alike(const AttentionShape& a, const AttentionShape& b) {
  return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim && a.window == b.window;
}

}  // namespace

void Executor::plan_attention(const std::vector<Op>& ops, Step& step) {
  std::int64_t partial_floats = 0, scratch_floats = 0;
  const auto plan_of = [&](const AttentionShape& shape) -> const AttentionPlan& {
    for (const auto& plan : step.plans)
      if (shared_out_alike(plan->shape, shape)) return *plan;
    step.plans.push_back(std::make_unique<AttentionPlan>());
    AttentionPlan& plan = *step.plans.back();
    plan.shape = shape;
    plan.tiles = make_tiles(step.input, shape);
    plan.in_chunks = plan.tiles.size() < kTilesPerWorker * static_cast<std::size_t>(pool_.size());
    const std::int64_t query_floats = kQueryTile * (shape.head_dim + kPartialHead);
    for (const Tile& tile : plan.tiles) {
      const std::int64_t chunks = tile.last_chunk - tile.first_chunk + 1;
      if (plan.in_chunks) {
        plan.first_item.push_back(static_cast<std::int64_t>(plan.chunk_tile.size()));
        plan.chunk_tile.insert(plan.chunk_tile.end(), static_cast<std::size_t>(chunks),
                               static_cast<std::int64_t>(plan.first_item.size()) - 1);
      } else {
        scratch_floats = std::max(scratch_floats, chunks * query_floats);
      }
    }
    partial_floats = std::max(partial_floats, static_cast<std::int64_t>(plan.chunk_tile.size()) * query_floats);
    return plan;
  };
  for (const Op& op : ops)
    if (op.kind == OpKind::Attention)
      step.attention.push_back(std::make_unique<AttentionWork>(plan_of(kv_layers_[static_cast<std::size_t>(op.id)].shape)));
  step.sequence_of.resize(static_cast<std::size_t>(step.input.tokens));
  for (std::int64_t s = 0; s < step.input.sequences; ++s)
    std::fill(step.sequence_of.begin() + step.input.cu_seqlens[s], step.sequence_of.begin() + step.input.cu_seqlens[s + 1], s);
  step.attention_bytes = static_cast<std::size_t>(partial_floats + scratch_floats * pool_.size()) * sizeof(float);
  if (partial_floats > 0) step.partials = allocate<float>(partial_floats);
  for (int worker = 0; scratch_floats > 0 && worker < pool_.size(); ++worker)
    step.scratch.push_back(allocate<float>(scratch_floats));
}

// The item of one tile and `chunks` of its chunks; query i's partials go to partials + i * partial_stride.
AttentionItem Executor::item_of(const Op& op, const Step& step, const Tile& tile, std::int64_t chunk, std::int64_t chunks,
                                float* partials, std::int64_t partial_stride) const {
  const AttentionShape& shape = kv_layers_[static_cast<std::size_t>(op.id)].shape;
  const Buffer& q = buffers_[static_cast<std::size_t>(op.x)];
  const std::int64_t group = shape.num_heads / shape.num_kv_heads;
  AttentionItem item{};
  item.count = tile.count, item.kv_head = tile.kv_head, item.chunk = chunk, item.chunks = chunks;
  item.block_table = step.input.block_tables + tile.sequence * step.input.table_width;
  for (std::int64_t i = 0; i < tile.count; ++i) {
    const std::int64_t query = tile.first_query + i;
    const std::int64_t row = step.input.cu_seqlens[tile.sequence] + query / group;
    item.q[i] = q.row(row) + (tile.kv_head * group + query % group) * shape.head_dim;
    item.positions[i] = step.input.positions[row];
    item.partial[i] = partials + i * partial_stride;
  }
  return item;
}

float* Executor::output_of(const Op& op, const Step& step, const Tile& tile, std::int64_t i) const {
  const AttentionShape& shape = kv_layers_[static_cast<std::size_t>(op.id)].shape;
  const std::int64_t group = shape.num_heads / shape.num_kv_heads, query = tile.first_query + i;
  const std::int64_t row = step.input.cu_seqlens[tile.sequence] + query / group;
  return buffers_[static_cast<std::size_t>(op.out)].row(row) + (tile.kv_head * group + query % group) * shape.head_dim;
}

void Executor::attention_op(const Op& op, Step& step, int worker, std::size_t index) {
  AttentionWork& work = *step.attention[index];
  if (work.plan.in_chunks) {
    attend_in_chunks(op, step, work);
  } else {
    attend_whole(op, step, work, worker);
  }
}

// Many tiles: each is computed from its first chunk to its last by one worker.
void Executor::attend_whole(const Op& op, Step& step, AttentionWork& work, int worker) {
  const KV& kv = kv_layers_[static_cast<std::size_t>(op.id)];
  const std::vector<Tile>& tiles = work.plan.tiles;
  const std::int64_t partial = kv.shape.head_dim + kPartialHead;
  float* scratch = step.scratch[static_cast<std::size_t>(worker)].get();
  for (;;) {
    const std::size_t next = work.next.value.fetch_add(1, std::memory_order_relaxed);
    if (next >= tiles.size()) return;
    const Tile& tile = tiles[next];
    const std::int64_t chunks = tile.last_chunk - tile.first_chunk + 1;
    vector_.attend(kv.shape, kv.layer(), item_of(op, step, tile, tile.first_chunk, chunks, scratch, chunks * partial));
    for (std::int64_t i = 0; i < tile.count; ++i)
      vector_.merge(scratch + i * chunks * partial, chunks, kv.shape.head_dim, output_of(op, step, tile, i));
  }
}

// Few tiles, as when one request decodes: their chunks are shared out.
void Executor::attend_in_chunks(const Op& op, Step& step, AttentionWork& work) {
  const KV& kv = kv_layers_[static_cast<std::size_t>(op.id)];
  const AttentionPlan& plan = work.plan;
  const std::int64_t partial = kv.shape.head_dim + kPartialHead;
  for (;;) {
    const std::size_t next = work.next.value.fetch_add(1, std::memory_order_relaxed);
    if (next >= plan.chunk_tile.size()) return;
    const std::size_t t = static_cast<std::size_t>(plan.chunk_tile[next]);
    const Tile& tile = plan.tiles[t];
    const std::int64_t chunk = static_cast<std::int64_t>(next) - plan.first_item[t];
    const std::int64_t chunks = tile.last_chunk - tile.first_chunk + 1;
    float* place = step.partials.get() + plan.first_item[t] * kQueryTile * partial;
    vector_.attend(kv.shape, kv.layer(), item_of(op, step, tile, tile.first_chunk + chunk, 1, place + chunk * partial, chunks * partial));
    // Its other chunks may be other workers': what they wrote is seen by whoever counts after them.
    if (work.computed[t].fetch_add(1, std::memory_order_acq_rel) + 1 < chunks) continue;
    for (std::int64_t i = 0; i < tile.count; ++i)
      vector_.merge(place + i * chunks * partial, chunks, kv.shape.head_dim, output_of(op, step, tile, i));
  }
}

}  // namespace sojourn
