// The ladder of instruction sets: which there are, which this machine can run, and the kernels of each.
#pragma once

#include <string_view>
#include <vector>

#include "sojourn/matmul.h"
#include "sojourn/sampling_kernels.h"
#include "sojourn/vector_ops.h"

namespace sojourn {

enum class Isa { Portable, Avx2, Avx512Vnni };

inline constexpr Isa kIsas[] = {Isa::Avx512Vnni, Isa::Avx2, Isa::Portable};  // best first

// "portable", "avx2", "avx512_vnni".
std::string_view isa_name(Isa isa);

// Whether this build holds kernels for it.
bool in_build(Isa isa);

// What this machine's processor lacks of what the kernels of this instruction set use, as Linux spells it.
std::vector<std::string_view> missing_features(Isa isa);

// Whether this build holds it and this machine runs it. Portable always is.
bool has_isa(Isa isa);

// The best that `has_isa` allows.
Isa best_isa();

// Kernels of an instruction set that `has_isa` allows; undefined for others.
const MatmulKernels& matmul_kernels(Isa isa);
const VectorKernels& vector_kernels(Isa isa);
const SamplingKernels& sampling_kernels(Isa isa);

}  // namespace sojourn
