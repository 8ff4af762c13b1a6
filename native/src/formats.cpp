// The table of storage formats; the names are GGUF's.
#include "sojourn/formats.h"

namespace sojourn {
namespace {

constexpr FormatInfo kFormats[] = {
    {Format::F32, "F32", 1, 4},
    {Format::F16, "F16", 1, 2},
    {Format::BF16, "BF16", 1, 2},
    {Format::Q4_0, "Q4_0", kSmallBlock, sizeof(BlockQ4_0)},
    {Format::Q4_1, "Q4_1", kSmallBlock, sizeof(BlockQ4_1)},
    {Format::Q5_0, "Q5_0", kSmallBlock, sizeof(BlockQ5_0)},
    {Format::Q5_1, "Q5_1", kSmallBlock, sizeof(BlockQ5_1)},
    {Format::Q8_0, "Q8_0", kSmallBlock, sizeof(BlockQ8_0)},
    {Format::Q2_K, "Q2_K", kSuperBlock, sizeof(BlockQ2_K)},
    {Format::Q3_K, "Q3_K", kSuperBlock, sizeof(BlockQ3_K)},
    {Format::Q4_K, "Q4_K", kSuperBlock, sizeof(BlockQ4_K)},
    {Format::Q5_K, "Q5_K", kSuperBlock, sizeof(BlockQ5_K)},
    {Format::Q6_K, "Q6_K", kSuperBlock, sizeof(BlockQ6_K)},
    {Format::IQ4_NL, "IQ4_NL", kSmallBlock, sizeof(BlockIQ4_NL)},
};

}  // namespace

const FormatInfo* find_format(std::string_view name) {
  for (const FormatInfo& info : kFormats)
    if (info.name == name) return &info;
  return nullptr;
}

const FormatInfo* all_formats(std::size_t* count) {
  *count = sizeof(kFormats) / sizeof(kFormats[0]);
  return kFormats;
}

}  // namespace sojourn
