// What the compiler's own flags let it use everywhere, say -march=native. The kernels in isa/ are chosen at run time; code
// outside them is not, so a processor without these can't even load the module. Python finds the text in the file's bytes.
#include "module.h"

namespace {

constexpr char kNeeds[] =
    "sojourn-needs:"
#if defined(__SSSE3__)
    " ssse3"
#endif
#if defined(__SSE4_1__)
    " sse4_1"
#endif
#if defined(__SSE4_2__)
    " sse4_2"
#endif
#if defined(__AVX__)
    " avx"
#endif
#if defined(__AVX2__)
    " avx2"
#endif
#if defined(__FMA__)
    " fma"
#endif
#if defined(__F16C__)
    " f16c"
#endif
#if defined(__BMI2__)
    " bmi2"
#endif
#if defined(__AVX512F__)
    " avx512f"
#endif
#if defined(__AVX512BW__)
    " avx512bw"
#endif
#if defined(__AVX512VL__)
    " avx512vl"
#endif
#if defined(__AVX512VNNI__)
    " avx512_vnni"
#endif
#if defined(__ARM_FEATURE_DOTPROD)
    " asimddp"
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
    " i8mm"
#endif
#if defined(__ARM_FEATURE_SVE)
    " sve"
#endif
    ";";

}  // namespace

void bind_needs(nanobind::module_& m) { m.attr("needs") = kNeeds; }
