// Asks the processor what it can do. The kernels themselves are in src/isa/.
#include "sojourn/isa.h"

#if (defined(__x86_64__) || defined(_M_X64)) && !defined(_MSC_VER)
#define SOJOURN_X86_KERNELS 1
#include <cpuid.h>
#endif

namespace sojourn {
namespace {

#if defined(SOJOURN_X86_KERNELS)
// Not every compiler's __builtin_cpu_supports knows this one.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::Avx512Vnni: return "avx512_vnni";
    case Isa::Avx2: return "avx2";
    case Isa::Portable: break;
  }
  return "portable";
}

bool in_build([[maybe_unused]] Isa isa) {
#if defined(SOJOURN_X86_KERNELS)
  return true;
#else
  return isa == Isa::Portable;
#endif
}

std::vector<std::string_view> missing_features([[maybe_unused]] Isa isa) {
  std::vector<std::string_view> missing;
#if defined(SOJOURN_X86_KERNELS)
  const auto need = [&](bool present, std::string_view name) {
    if (!present) missing.push_back(name);
  };
  if (isa == Isa::Portable) return missing;
  need(__builtin_cpu_supports("avx2"), "avx2");
  need(__builtin_cpu_supports("fma"), "fma");
  need(has_f16c(), "f16c");
  if (isa == Isa::Avx2) return missing;
  need(__builtin_cpu_supports("avx512f"), "avx512f");
  need(__builtin_cpu_supports("avx512bw"), "avx512bw");
  need(__builtin_cpu_supports("avx512vl"), "avx512vl");
  need(__builtin_cpu_supports("avx512dq"), "avx512dq");
  need(__builtin_cpu_supports("avx512vnni"), "avx512_vnni");
#endif
  return missing;
}

bool has_isa(Isa isa) { return in_build(isa) && missing_features(isa).empty(); }

Isa best_isa() {
  for (const Isa isa : kIsas)
    if (has_isa(isa)) return isa;
  return Isa::Portable;
}

}  // namespace sojourn
