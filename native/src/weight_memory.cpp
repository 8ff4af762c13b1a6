// Chunks of weight memory. Most matrices of a small model are smaller than a huge page, so each alone would get none.
#include "weight_memory.h"

#include <algorithm>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace sojourn {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kChunk = std::size_t{32} << 20;

class Chunk {
 public:
  explicit Chunk(std::size_t bytes) : size_((bytes + kHugePage - 1) / kHugePage * kHugePage) {
    memory_ = static_cast<std::uint8_t*>(::operator new(size_, std::align_val_t{kHugePage}));
#if defined(__linux__)
    madvise(memory_, size_, MADV_HUGEPAGE);  // only advice: without huge pages the weights are read all the same
#endif
  }
  ~Chunk() { ::operator delete(memory_, std::align_val_t{kHugePage}); }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  // nullptr where `bytes` do not fit any more.
  std::uint8_t* take(std::size_t bytes) {
    if (size_ - used_ < bytes) return nullptr;
    std::uint8_t* place = memory_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return place;
  }

 private:
  std::size_t size_, used_ = 0;
  std::uint8_t* memory_;
};

}  // namespace

std::shared_ptr<std::uint8_t> allocate_weights(std::size_t bytes) {
  static std::mutex mutex;
  static std::weak_ptr<Chunk> newest;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Chunk> chunk = newest.lock();
  std::uint8_t* place = chunk ? chunk->take(bytes) : nullptr;
  if (place == nullptr) {
    chunk = std::make_shared<Chunk>(std::max(bytes, kChunk));
    place = chunk->take(bytes);
    newest = chunk;
  }
  return {chunk, place};
}

}  // namespace sojourn
