// Threads that share a loop's work out among them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace geopipe {

class ThreadPool {
 public:
  // Starts threads - 1 threads, because the thread that calls For works, too; at least one works.
  explicit ThreadPool(int32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Calls work(0) to work(count - 1), each once, several at once; returns when all are done. `work` must not throw.
  // One call at a time; any thread.
  void For(int64_t count, const std::function<void(int64_t)>& work);

  // Number of processors of the machine, at least one and at most `most`.
  static int32_t Processors(int32_t most);

 private:
  void Run();
  // Takes indices until none is left. REQUIRES: mutex_ held by `lock`; held again on return.
  void Drain(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable begun_;
  std::condition_variable done_;
  const std::function<void(int64_t)>* work_ = nullptr;
  int64_t next_ = 0;
  int64_t count_ = 0;
  int64_t finished_ = 0;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace geopipe
