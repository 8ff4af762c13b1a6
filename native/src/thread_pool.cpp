// Workers wait in three ways: spinning while what they wait for is microseconds away, inside a step and between two;
// asleep between steps, so that an idle engine costs nothing; and asleep inside a step where other programs have taken
// much of the last one. There a worker that spun on would use up its share of the machine with waiting, and then be
// made to wait when it has work. Elsewhere it spins on: a core given away for a moment is not had back in a moment.
#include "sojourn/thread_pool.h"

#include <chrono>

#if defined(__linux__)
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace sojourn {
namespace {

constexpr int kPatientSpins = 20'000;      // about 1 ms: longer than any phase, so the other worker lost its core
constexpr int kImpatientSpins = 1'000;     // about 50 us: workers that all have their cores seldom wait longer
constexpr int kSpinsBetweenSteps = 4'000;  // about 0.2 ms
constexpr int kContendedPart = 4;          // cores are contended when a quarter of a run was such waiting

void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
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

// Keeps the caller of a run on the first CPU while the run lasts: on one of the others it would share that CPU with the
// worker pinned there, and each would wait for the other's time slice to end. Between runs it has its own CPUs back.
class PinnedCaller {
 public:
#if defined(__linux__)
  explicit PinnedCaller(bool others) : pinned_(others && sched_getaffinity(0, sizeof before_, &before_) == 0) {
    if (pinned_) pin_to_nth_allowed_cpu(0);
  }
  ~PinnedCaller() {
    if (pinned_) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
  }

 private:
  bool pinned_;
  cpu_set_t before_;
#else
  explicit PinnedCaller(bool) {}
#endif
};

// Returns when `counter` no longer is `value`, or earlier.
void sleep_while(std::atomic<std::uint32_t>& counter, std::uint32_t value) {
#if defined(__linux__)
  syscall(SYS_futex, &counter, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
  if (counter.load(std::memory_order_relaxed) == value) std::this_thread::yield();
#endif
}

void wake_sleepers(std::atomic<std::uint32_t>& counter) {
#if defined(__linux__)
  syscall(SYS_futex, &counter, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
  (void)counter;
#endif
}

void sleep_until(PaddedCounter& counter, std::uint32_t target) {
  counter.sleepers.fetch_add(1);
  for (std::uint32_t value = counter.value.load(); static_cast<std::int32_t>(value - target) < 0;
       value = counter.value.load())
    sleep_while(counter.value, value);
  counter.sleepers.fetch_sub(1);
}

// Sequentially consistent, like the sleeper's announcement: either it sees the new value or this sees it.
void count_up(PaddedCounter& counter) {
  counter.value.fetch_add(1);
  if (counter.sleepers.load() > 0) wake_sleepers(counter.value);
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
  const PinnedCaller pinned(!threads_.empty());
  work_ = &work;
  late_ns_.store(0, std::memory_order_relaxed);
  const std::int64_t start = now_ns();
  done_.value.store(0, std::memory_order_relaxed);
  {
    std::lock_guard<std::mutex> lock(mutex_);  // a worker that is about to sleep sees either this or the wake-up
    started_.value.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  work(0);
  await(done_, static_cast<std::uint32_t>(threads_.size()));
  contended_ = late_ns_.load(std::memory_order_relaxed) * kContendedPart > now_ns() - start;
}

void ThreadPool::barrier(int worker) {
  const std::size_t self = static_cast<std::size_t>(worker);
  const std::uint32_t reached = arrived_[self].value.load(std::memory_order_relaxed) + 1;
  count_up(arrived_[self]);
  for (std::size_t other = 0; other < arrived_.size(); ++other)
    if (other != self) await(arrived_[other], reached);
}

// Waits until `counter` has reached `target`, modulo 2^32.
void ThreadPool::await(PaddedCounter& counter, std::uint32_t target) {
  const auto reached = [&] {
    return static_cast<std::int32_t>(counter.value.load(std::memory_order_acquire) - target) >= 0;
  };
  for (int spins = contended_ ? kImpatientSpins : kPatientSpins; spins > 0; --spins) {
    if (reached()) return;
    relax();
  }
  const std::int64_t start = now_ns();
  if (contended_) {
    sleep_until(counter, target);
  } else {
    while (!reached()) {
      std::this_thread::yield();
      for (int spins = kImpatientSpins; spins > 0 && !reached(); --spins) relax();
    }
  }
  late_ns_.fetch_add(now_ns() - start, std::memory_order_relaxed);
}

void ThreadPool::serve(int worker) {
  pin_to_nth_allowed_cpu(worker);
  std::uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; started_.value.load(std::memory_order_acquire) == seen && spins < kSpinsBetweenSteps; ++spins)
      relax();
    if (started_.value.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || started_.value.load(std::memory_order_acquire) != seen; });
      if (stopping_) return;
    }
    ++seen;
    (*work_)(worker);
    count_up(done_);
  }
}

}  // namespace sojourn
