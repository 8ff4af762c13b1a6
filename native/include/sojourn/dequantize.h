// Blocks of any storage format to float32. Owns nothing; the caller owns both buffers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sojourn/formats.h"

namespace sojourn {

// Writes blocks * info.block_elements floats to `out`, which must not overlap `blocks_data`.
// `threads` (at least 1) split the blocks into equal runs; the result does not depend on their number.
void dequantize(const FormatInfo& info, const std::uint8_t* blocks_data, std::size_t blocks, float* out, int threads);

}  // namespace sojourn
