#include "runtime/base/thread_pool.h"

#include <algorithm>

namespace geopipe {

ThreadPool::ThreadPool(int32_t threads) {
  for (int32_t i = 1; i < threads; ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

int32_t ThreadPool::Processors(int32_t most) {
  return std::clamp(static_cast<int32_t>(std::thread::hardware_concurrency()), 1, std::max(1, most));
}

void ThreadPool::For(int64_t count, const std::function<void(int64_t)>& work) {
  std::unique_lock lock(mutex_);
  work_ = &work;
  next_ = 0;
  count_ = count;
  finished_ = 0;
  begun_.notify_all();
  Drain(lock);
  done_.wait(lock, [this] { return finished_ == count_; });
  work_ = nullptr;
  count_ = 0;
  next_ = 0;
}

void ThreadPool::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [this] { return ends_ || next_ < count_; });
    if (ends_) {
      return;
    }
    Drain(lock);
  }
}

void ThreadPool::Drain(std::unique_lock<std::mutex>& lock) {
  while (next_ < count_) {
    const int64_t index = next_++;
    const std::function<void(int64_t)>* work = work_;
    lock.unlock();
    (*work)(index);
    lock.lock();
    if (++finished_ == count_) {
      done_.notify_all();
    }
  }
}

}  // namespace geopipe
