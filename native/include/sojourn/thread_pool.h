// Persistent worker threads that compute a step together. The caller is worker 0, so n threads are n - 1 new ones.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace sojourn {

// Counts up, and threads wait until it has got somewhere. Cache-line sized, so that one worker's waiting doesn't slow
// another's writing.
struct alignas(128) PaddedCounter {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};
};

class ThreadPool {
 public:
  // New threads are pinned to one CPU each, of those the process may use; where that fails they stay unpinned.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(arrived_.size()); }

  // Runs work(worker) on every worker and returns when all have. `work` must not throw. The caller is on the first CPU
  // meanwhile, and may use all of its own again afterwards.
  void run(const std::function<void(int)>& work);

  // Called by every worker inside `run`: returns when all have called it, and makes their writes visible.
  void barrier(int worker);

 private:
  void serve(int worker);
  void await(PaddedCounter& counter, std::uint32_t target);

  std::vector<PaddedCounter> arrived_;  // barriers each worker has reached
  const std::function<void(int)>* work_ = nullptr;
  PaddedCounter started_;  // runs begun
  PaddedCounter done_;     // workers that finished the current run
  std::atomic<std::int64_t> late_ns_{0};  // of the current run: how long waits outlasted their spinning
  bool contended_ = false;                // whether that was much of the last run
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // guards falling asleep between runs
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
};

}  // namespace sojourn
