// Checks every kernel of every instruction set this machine runs against plain loops in double. Needs no Python, so it
// runs where the extension module can't: under an emulator, or with sanitizers. Exit status 1: something is wrong.
//
// Matrix products and sampling have the same bits on every instruction set, the other kernels on all that fuse multiply and
// add. The
// digests below are those bits; a change of the order of operations changes them, and with them every model's output.
#include <cinttypes>
#include <cstdio>

#include "checks.h"

namespace {

constexpr std::uint64_t kProducts = 0x1a8bc35fb7bfba08, kVectorOps = 0x77133b68039e9dfd, kAttention = 0x4e6b7f008e8fb91c,
                        kSampling = 0x73580d0d417f28f0;

bool fuses(sojourn::Isa isa) {
#if defined(__aarch64__)
  (void)isa;
  return true;
#else
  return isa != sojourn::Isa::Portable;
#endif
}

}  // namespace

int main() {
  for (const sojourn::Isa isa : {sojourn::Isa::Portable, sojourn::Isa::Avx2, sojourn::Isa::Avx512Vnni}) {
    const std::string_view name = sojourn::isa_name(isa);
    const int length = static_cast<int>(name.size());
    if (!sojourn::has_isa(isa)) {
      std::printf("%.*s: left out, this machine does not run it\n", length, name.data());
      continue;
    }
    const std::uint64_t products = checks::check_matmul(isa), vectors = checks::check_vector_ops(isa),
                        attention = checks::check_attention(isa), sampling = checks::check_sampling(isa);
    checks::check_executor(isa);
    checks::expect(products == kProducts, "the bits of matrix products have changed", name);
    checks::expect(sampling == kSampling, "the bits of sampling have changed", name);
    if (fuses(isa)) checks::expect(vectors == kVectorOps, "the bits of norms, gates and rotations have changed", name);
    if (fuses(isa)) checks::expect(attention == kAttention, "the bits of attention have changed", name);
    std::printf("%.*s: products %016" PRIx64 ", vector ops %016" PRIx64 ", attention %016" PRIx64 ", sampling %016" PRIx64 "\n",
                length, name.data(), products, vectors, attention, sampling);
  }
  const int failures = checks::failures();
  if (failures == 0) std::printf("all kernels agree\n");
  else std::printf("%d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}
