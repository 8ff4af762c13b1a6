// Memory of packed weights: matrices packed one after the other share chunks that the system can map with huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace sojourn {

// `bytes` of memory at a multiple of 64. A chunk is given back when the last matrix in it is gone. Any thread may call.
std::shared_ptr<std::uint8_t> allocate_weights(std::size_t bytes);

}  // namespace sojourn
