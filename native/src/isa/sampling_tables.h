// The sampling kernels of the instruction sets, each defined in the file compiled for its set; sampler.cpp chooses.
#pragma once

#include "sojourn/sampling_kernels.h"

namespace sojourn {

extern const SamplingKernels kSamplingPortable, kSamplingAvx2, kSamplingAvx512;

}  // namespace sojourn
