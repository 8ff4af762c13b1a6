// Counter-based random numbers; the twin of src/sojourn/executor/philox.py.
#pragma once

#include <cstdint>

namespace sojourn {

// A number in [0, 1) with 53 random bits for the token at `position` of the request with `seed`: Philox4x32-10 of Salmon,
// Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
inline double uniform(std::uint64_t seed, std::uint64_t position) {
  auto c0 = static_cast<std::uint32_t>(position), c1 = static_cast<std::uint32_t>(position >> 32);
  std::uint32_t c2 = 0, c3 = 0;
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return ((c0 >> 5) * 67108864.0 + (c1 >> 6)) / 9007199254740992.0;
}

}  // namespace sojourn
