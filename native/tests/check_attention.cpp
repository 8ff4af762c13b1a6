// Attention over scattered blocks against softmax in double: both storage types, windows, caps, every number of queries.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "checks.h"

namespace checks {
namespace {

using namespace sojourn;

constexpr std::int64_t kTokens = 300, kChunks = 2;
static_assert(12 * kQueryTile <= kTokens, "every query has a position");

// K and V of one sequence, in blocks that lie in reverse order; what no token wrote is NaN.
struct Case {
  AttentionShape shape;
  std::vector<float> k, v, q;
  std::vector<std::uint8_t> keys, values;
  std::vector<std::int32_t> table;
  std::string where;

  Case(const VectorKernels& kernels, const AttentionShape& given, Numbers& numbers)
      : shape(given), k(numbers.draw(kTokens * shape.num_kv_heads * shape.head_dim, 2.0f)), v(numbers.draw(kTokens * shape.num_kv_heads * shape.head_dim, 2.0f)), q(numbers.draw(kQueryTile * shape.head_dim, 2.0f)) {
    const std::int64_t blocks = (kTokens + shape.block_size - 1) / shape.block_size, width = shape.num_kv_heads * shape.head_dim;
    keys.assign(kv_block_bytes(shape) * static_cast<std::size_t>(blocks), 0xff);
    values = keys;
    for (std::int64_t b = blocks; b > 0; --b) table.push_back(static_cast<std::int32_t>(b - 1));
    for (std::int64_t t = 0; t < kTokens; ++t)
      kernels.write_kv(shape, layer(), table[static_cast<std::size_t>(t / shape.block_size)], t % shape.block_size, &k[static_cast<std::size_t>(t * width)], &v[static_cast<std::size_t>(t * width)]);
    where = "head_dim " + std::to_string(shape.head_dim) + ", block " + std::to_string(shape.block_size) + ", window " + std::to_string(shape.window);
  }

  KVLayer layer() { return {keys.data(), values.data()}; }

  static std::int64_t position_of(std::int64_t query) { return kTokens - 1 - 12 * query; }  // in both chunks

  // Queries [first, last) of one KV head in one item.
  std::vector<float> attend(const VectorKernels& kernels, std::int64_t kv_head, std::int64_t first, std::int64_t last) {
    const std::int64_t dim = shape.head_dim, count = last - first;
    std::vector<float> partials(static_cast<std::size_t>(count * kChunks * (dim + 2))), out(static_cast<std::size_t>(count * dim));
    AttentionItem item{};
    item.count = count, item.kv_head = kv_head, item.block_table = table.data();
    for (item.chunk = 0, item.chunks = 1; item.chunk < kChunks; ++item.chunk) {  // one by one, unlike the executor's tiles
      for (std::int64_t i = 0; i < count; ++i) {
        item.q[i] = q.data() + (first + i) * dim;
        item.positions[i] = position_of(first + i);
        item.partial[i] = partials.data() + (i * kChunks + item.chunk) * (dim + 2);
      }
      kernels.attend(shape, layer(), item);
    }
    for (std::int64_t i = 0; i < count; ++i)
      kernels.merge(partials.data() + i * kChunks * (dim + 2), kChunks, dim, out.data() + i * dim);
    return out;
  }

  void check(std::int64_t kv_head, std::int64_t query, const std::vector<float>& found) const {
    const std::int64_t dim = shape.head_dim, position = position_of(query);
    std::vector<double> exact(static_cast<std::size_t>(dim));
    double total = 0;
    for (std::int64_t t = shape.window > 0 ? std::max<std::int64_t>(0, position - shape.window + 1) : 0; t <= position; ++t) {
      const auto at = static_cast<std::size_t>((t * shape.num_kv_heads + kv_head) * dim);
      double score = 0;
      for (std::int64_t d = 0; d < dim; ++d)
        score += static_cast<double>(q[static_cast<std::size_t>(query * dim + d)]) * k[at + static_cast<std::size_t>(d)];
      score *= shape.scale;
      if (shape.softcap > 0) score = shape.softcap * std::tanh(score / shape.softcap);
      const double weight = std::exp(score);
      total += weight;
      for (std::int64_t d = 0; d < dim; ++d)
        exact[static_cast<std::size_t>(d)] += weight * v[at + static_cast<std::size_t>(d)];
    }
    const double tolerance = shape.kv_type == KVType::F32 ? 2e-5 : shape.kv_type == KVType::F16 ? 4e-3 : 6e-2;
    for (std::int64_t d = 0; d < dim; ++d)
      expect(std::fabs(found[static_cast<std::size_t>(d)] - exact[static_cast<std::size_t>(d)] / total) < tolerance, "attention is wrong", where);
  }
};

void check_case(const VectorKernels& kernels, const AttentionShape& shape, Numbers& numbers, Digest& digest) {
  Case one(kernels, shape, numbers);
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
    std::vector<float> alone;
    for (std::int64_t query = 0; query < kQueryTile; ++query) {
      const auto found = one.attend(kernels, head, query, query + 1);
      one.check(head, query, found);
      alone.insert(alone.end(), found.begin(), found.end());
    }
    for (std::int64_t count = 2; count <= kQueryTile; ++count) {
      const std::int64_t first = kQueryTile - count;
      const auto together = one.attend(kernels, head, first, kQueryTile);
      expect(std::memcmp(together.data(), alone.data() + static_cast<std::size_t>(first) * dim, together.size() * sizeof(float)) == 0,
             "a query depends on those computed with it", one.where);
    }
    digest.add(alone);
  }
}

}  // namespace

std::uint64_t check_attention(Isa isa) {
  const VectorKernels& kernels = vector_kernels(isa);
  Numbers numbers(4);
  Digest digest;
  for (const KVType type : {KVType::F16, KVType::F32, KVType::Int8}) {
    check_case(kernels, {6, 2, 64, 32, 0.125f, 0, 0.0f, type}, numbers, digest);
    check_case(kernels, {8, 2, 80, 48, 0.1f, 0, 0.0f, type}, numbers, digest);
    check_case(kernels, {2, 1, 16, 16, 0.2f, 70, 0.0f, type}, numbers, digest);
    check_case(kernels, {4, 1, 256, 16, 0.05f, 1, 0.0f, type}, numbers, digest);
    check_case(kernels, {4, 2, 112, 512, 0.1f, 290, 5.0f, type}, numbers, digest);
  }
  return digest.value();
}

}  // namespace checks
