// Chooses the implementation of an instruction set and owns the scratch memory the kernels share.
#include "sojourn/matmul.h"

#include <vector>

#include "sojourn/isa.h"

namespace sojourn {

extern const MatmulKernels kPortableMatmul;
#if (defined(__x86_64__) || defined(_M_X64)) && !defined(_MSC_VER)
#define SOJOURN_X86_KERNELS 1
extern const MatmulKernels kAvx2Matmul;
extern const MatmulKernels kAvx512VnniMatmul;
#endif

const MatmulKernels& matmul_kernels(Isa isa) {
#if defined(SOJOURN_X86_KERNELS)
  if (isa == Isa::Avx512Vnni) return kAvx512VnniMatmul;
  if (isa == Isa::Avx2) return kAvx2Matmul;
#else
  (void)isa;
#endif
  return kPortableMatmul;
}

std::uint32_t* matmul_scratch(std::size_t count) {
  thread_local std::vector<std::uint32_t> scratch;
  if (scratch.size() < count) scratch.resize(count);
  return scratch.data();
}

}  // namespace sojourn
