// The sampling kernels compiled for this folder's instruction set.
#include "../sampling_impl.h"
#include "../sampling_tables.h"

namespace sojourn {

const SamplingKernels kSamplingAvx512 = kSamplingKernels;

}  // namespace sojourn
