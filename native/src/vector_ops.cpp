// Chooses the vector kernels of an instruction set. The kernels themselves are in src/isa/.
#include "sojourn/vector_ops.h"

#include "isa/vector_tables.h"
#include "sojourn/isa.h"

namespace sojourn {

std::size_t kv_block_bytes(const AttentionShape& shape) {
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  std::size_t row = 0;
  switch (shape.kv_type) {
    case KVType::F16: row = 2 * dim; break;
    case KVType::F32: row = 4 * dim; break;
    case KVType::Int8: row = dim + sizeof(float); break;
  }
  return row * static_cast<std::size_t>(shape.num_kv_heads * shape.block_size);
}

const VectorKernels& vector_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512Vnni) return kVectorAvx512;
  if (isa == Isa::Avx2) return kVectorAvx2;
#endif
  static_cast<void>(isa);
  return kVectorPortable;
}

}  // namespace sojourn
