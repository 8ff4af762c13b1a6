// Chunks of weight memory. Most matrices of a small model are smaller than a huge page, so each alone would get none.
#include "weight_memory.h"

#include <algorithm>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(place, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(place, bytes)
#endif

namespace sojourn {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kChunk = std::size_t{32} << 20;
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kGap = 4096;  // between matrices, so that reading past one does not end in the next
#else
constexpr std::size_t kGap = 0;
#endif

class Chunk {
 public:
  explicit Chunk(std::size_t bytes) : size_((bytes + kHugePage - 1) / kHugePage * kHugePage) {
    memory_ = static_cast<std::uint8_t*>(::operator new(size_, std::align_val_t{kHugePage}));
#if defined(__linux__)
    madvise(memory_, size_, MADV_HUGEPAGE);  // only advice: without huge pages the weights are read all the same
#endif
    ASAN_POISON_MEMORY_REGION(memory_, size_);  // matrices lie side by side; a kernel must not read past its own
  }
  ~Chunk() {
    ASAN_UNPOISON_MEMORY_REGION(memory_, size_);
    ::operator delete(memory_, std::align_val_t{kHugePage});
  }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  // nullptr where `bytes` do not fit any more.
  std::uint8_t* take(std::size_t bytes) {
    if (size_ - used_ < bytes) return nullptr;
    std::uint8_t* place = memory_ + used_;
    used_ = std::min(size_, used_ + (bytes + 63) / 64 * 64 + kGap);
    ASAN_UNPOISON_MEMORY_REGION(place, bytes);
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
