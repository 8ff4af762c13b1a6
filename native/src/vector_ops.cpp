// Chooses the vector kernels of an instruction set. The kernels themselves are in src/isa/.
#include "sojourn/vector_ops.h"

#include "isa/vector_tables.h"
#include "sojourn/isa.h"

namespace sojourn {

std::size_t kv_block_bytes(const AttentionShape& shape) {
  const std::size_t element = shape.kv_type == KVType::F16 ? 2 : 4;
  return element * static_cast<std::size_t>(shape.num_kv_heads * shape.head_dim * shape.block_size);
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
