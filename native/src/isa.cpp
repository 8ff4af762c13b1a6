// Asks the processor what it can do. The kernels themselves are in src/isa/.
#include "sojourn/isa.h"

namespace sojourn {

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::Avx512Vnni: return "avx512_vnni";
    case Isa::Avx2: return "avx2";
    case Isa::Portable: break;
  }
  return "portable";
}

bool has_isa(Isa isa) {
#if defined(__x86_64__) || defined(_M_X64)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (isa == Isa::Avx2) return avx2;
  if (isa == Isa::Avx512Vnni)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
#endif
  return isa == Isa::Portable;
}

Isa best_isa() {
  for (const Isa isa : {Isa::Avx512Vnni, Isa::Avx2})
    if (has_isa(isa)) return isa;
  return Isa::Portable;
}

}  // namespace sojourn
