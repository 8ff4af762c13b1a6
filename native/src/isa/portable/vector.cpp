// The vector kernels compiled for this folder's instruction set.
#include "../vector_impl.h"

namespace sojourn {

const VectorKernels kVectorPortable = kVectorKernels;

}  // namespace sojourn
