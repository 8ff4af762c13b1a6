// The vector kernels compiled for this folder's instruction set.
#include "../vector_impl.h"

namespace sojourn {

const VectorKernels kVectorAvx2 = kVectorKernels;

}  // namespace sojourn
