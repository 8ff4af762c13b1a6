// Sixteen floats as one value, on whichever instruction set this file is compiled for; no kernels.
//
// Every set has the same functions with the same rounding, so a kernel written once gives the same bits wherever a
// fused multiply-add exists (AVX-512, AVX2, ARM). Without one (portable x86) `fma` is a product and a sum. Everything
// is in an unnamed namespace: the linker must never exchange code of one instruction set for another's.
#pragma once

#define SOJOURN_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

#include "simd_math.h"
