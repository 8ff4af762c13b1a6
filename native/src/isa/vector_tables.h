// The kernel tables of the instruction sets, each defined in the file compiled for its set; vector_ops.cpp chooses.
#pragma once

#include "sojourn/vector_ops.h"

namespace sojourn {

extern const VectorKernels kVectorPortable, kVectorAvx2, kVectorAvx512;

}  // namespace sojourn
