// Workers wait in three ways: spinning inside a step, where a phase lasts microseconds; spinning briefly after it, since
// the next step usually follows at once; then asleep, so that an idle engine costs nothing.
#include "sojourn/thread_pool.h"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace sojourn {
namespace {

constexpr int kSpinsBeforeYield = 20'000;  // about 1 ms: longer than any phase, so the other worker was preempted
constexpr int kSpinsBeforeSleep = 4'000;   // about 0.2 ms between steps

void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void pin_to_nth_allowed_cpu(int n) {
#if defined(__linux__)
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || n-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    return;
  }
#else
  (void)n;
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) : arrived_(static_cast<std::size_t>(threads)) {
  for (int worker = 1; worker < threads; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(const std::function<void(int)>& work) {
  work_ = &work;
  done_.value.store(0, std::memory_order_relaxed);
  {
    std::lock_guard<std::mutex> lock(mutex_);  // a worker that is about to sleep sees either this or the wake-up
    started_.value.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  work(0);
  await(done_.value, static_cast<std::uint32_t>(threads_.size()));
}

void ThreadPool::barrier(int worker) {
  const std::size_t self = static_cast<std::size_t>(worker);
  const std::uint32_t reached = arrived_[self].value.load(std::memory_order_relaxed) + 1;
  arrived_[self].value.store(reached, std::memory_order_release);
  for (std::size_t other = 0; other < arrived_.size(); ++other)
    if (other != self) await(arrived_[other].value, reached);
}

// Waits until `counter` has reached `target`, modulo 2^32.
void ThreadPool::await(const std::atomic<std::uint32_t>& counter, std::uint32_t target) const {
  int spins = 0;
  while (static_cast<std::int32_t>(counter.load(std::memory_order_acquire) - target) < 0) {
    if (++spins < kSpinsBeforeYield) {
      relax();
    } else {
      std::this_thread::yield();
      spins = 0;
    }
  }
}

void ThreadPool::serve(int worker) {
  pin_to_nth_allowed_cpu(worker);
  std::uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; started_.value.load(std::memory_order_acquire) == seen && spins < kSpinsBeforeSleep; ++spins)
      relax();
    if (started_.value.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || started_.value.load(std::memory_order_acquire) != seen; });
      if (stopping_) return;
    }
    ++seen;
    (*work_)(worker);
    done_.value.fetch_add(1, std::memory_order_release);
  }
}

}  // namespace sojourn
