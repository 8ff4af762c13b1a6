#include "checks.h"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "sojourn/dequantize.h"

namespace checks {
namespace {

constexpr int kPrinted = 20;
int failed = 0;

}  // namespace

void expect(bool holds, std::string_view what, std::string_view where) {
  if (holds) return;
  if (++failed <= kPrinted)
    std::printf("FAILED: %.*s (%.*s)\n", static_cast<int>(what.size()), what.data(), static_cast<int>(where.size()),
                where.data());
}

int failures() { return failed; }

std::uint32_t Numbers::bits() {
  state_ = state_ * 6364136223846793005u + 1442695040888963407u;
  return static_cast<std::uint32_t>(state_ >> 32);
}

std::vector<float> Numbers::draw(std::int64_t count, float scale) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = scale * (static_cast<float>(bits() >> 8) * 0x1p-23f - 1.0f);
  return values;
}

std::vector<std::uint8_t> Numbers::blocks(const sojourn::FormatInfo& info, std::int64_t count) {
  std::vector<std::uint8_t> data(static_cast<std::size_t>(count) * info.block_bytes);
  std::vector<float> values(info.block_elements);
  for (std::int64_t b = 0; b < count; ++b) {
    std::uint8_t* block = data.data() + static_cast<std::size_t>(b) * info.block_bytes;
    for (bool tame = false; !tame;) {  // draw again until the block decodes to moderate numbers
      for (std::size_t i = 0; i < info.block_bytes; ++i) block[i] = static_cast<std::uint8_t>(bits());
      sojourn::dequantize(info, block, 1, values.data(), 1);
      tame = true;
      for (const float value : values) tame = tame && std::isfinite(value) && std::fabs(value) < 100.0f;
    }
  }
  return data;
}

void Digest::add(const std::vector<float>& values) {
  for (const float value : values) {
    std::uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    hash_ = (hash_ ^ word) * 1099511628211u;
  }
}

}  // namespace checks
