// What the parts of self_check share: the count of failures, numbers that are the same on every machine, digests.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sojourn/formats.h"
#include "sojourn/isa.h"

namespace checks {

// Counts and prints a check that does not hold; `where` says in which case.
void expect(bool holds, std::string_view what, std::string_view where);
int failures();

// A generator of our own: the distributions of <random> differ from one standard library to the next.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  std::uint32_t bits();
  // Between -scale and scale.
  std::vector<float> draw(std::int64_t count, float scale = 1.0f);
  // Stored blocks of any codes whose scales are moderate.
  std::vector<std::uint8_t> blocks(const sojourn::FormatInfo& info, std::int64_t count);

 private:
  std::uint64_t state_;
};

// FNV-1a over the bits of all results it is given.
class Digest {
 public:
  void add(const std::vector<float>& values);
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 14695981039346656037u;
};

// Each checks one instruction set and returns the digest of what its kernels made of fixed inputs.
std::uint64_t check_matmul(sojourn::Isa isa);
std::uint64_t check_vector_ops(sojourn::Isa isa);
std::uint64_t check_attention(sojourn::Isa isa);
std::uint64_t check_sampling(sojourn::Isa isa);
void check_executor(sojourn::Isa isa);

}  // namespace checks
