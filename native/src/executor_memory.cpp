// How much memory steps take, known before one is computed. Counts the executor's own buffers; estimates nothing.
#include <algorithm>

#include "executor_parts.h"

namespace sojourn {

void Executor::allocate_kv(std::int64_t num_blocks) {
  for (KV& layer : kv_layers_) {
    const std::size_t bytes = kv_block_bytes(layer.shape) * static_cast<std::size_t>(num_blocks);
    layer.keys = allocate<std::uint8_t>(static_cast<std::int64_t>(bytes));
    layer.values = allocate<std::uint8_t>(static_cast<std::int64_t>(bytes));
    layer.bytes = 2 * bytes;
  }
}

// What attention keeps for a step in which `sequences` of `context` tokens each compute their last `rows`.
std::size_t Executor::attention_bytes(std::int64_t sequences, std::int64_t rows, std::int64_t context) {
  std::vector<std::int32_t> positions, bounds = {0};
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int64_t r = 0; r < rows; ++r) positions.push_back(static_cast<std::int32_t>(context - rows + r));
    bounds.push_back(static_cast<std::int32_t>(positions.size()));
  }
  Step step;
  step.input.tokens = step.rows = static_cast<std::int64_t>(positions.size());
  step.input.sequences = sequences;
  step.input.positions = positions.data();
  step.input.cu_seqlens = bounds.data();
  plan_attention(body_, step);
  return step.attention_bytes;
}

std::size_t Executor::step_bytes(std::int64_t context, std::int64_t head_rows) {
  const std::int64_t workers = pool_.size(), block = block_rows(max_rows_);
  // Buffers that blocks have their own of are filled as a whole only by steps too small for blocks.
  const std::int64_t small_rows = block > 0 ? std::min(max_rows_, workers * kMinBlockRows) : max_rows_;
  std::size_t bytes = 0;
  for (const Buffer& buffer : buffers_) {
    std::int64_t rows = std::min(max_rows_, head_rows), own_rows = 0;
    if (buffer.in_body) {
      rows = buffer.crosses ? max_rows_ : small_rows;
      own_rows = buffer.crosses || block == 0 ? 0 : workers * kMaxBlockRows;
    }
    bytes += static_cast<std::size_t>(rows + own_rows) * buffer.bytes_per_row();
  }
  for (const Rotation& rotation : rotations_)
    bytes += 2 * sizeof(float) * static_cast<std::size_t>(max_rows_) * rotation.inverse_frequencies.size();
  std::int64_t widest = 0;
  for (const auto& matrix : matrices_) widest = std::max(widest, padded_k(matrix->k));
  // A correction for each group of at least 16 weights.
  bytes += sizeof(float) * static_cast<std::size_t>(workers * (block > 0 ? kMaxBlockRows : max_rows_) * (widest / 16));
  const std::int64_t prompt = std::min(max_rows_, context);
  std::size_t attention = attention_bytes(1, prompt, context);
  for (std::int64_t decodes = 1; decodes <= std::min(max_rows_, 4 * workers); ++decodes)
    attention = std::max(attention, attention_bytes(decodes, 1, context));
  return bytes + attention;
}

}  // namespace sojourn
