#include "runtime/tensor/late_work.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/thread_name.h"

namespace geopipe {

class LateWork::Queue {
 public:
  void Push(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) {
        return;
      }
      waiting_.push_back(std::move(work));
      if (!thread_.joinable()) {
        thread_ = std::thread([this] { Run(); });
      }
    }
    changed_.notify_one();
  }

  void Close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      waiting_.clear();
    }
    changed_.notify_one();
    if (thread_.joinable()) {  // nobody starts it any more
      thread_.join();
    }
  }

 private:
  void Run() {
    NameThisThread("late work");
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
      if (closed_) {
        return;
      }
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool closed_ = false;
  std::thread thread_;
};

LateWork::LateWork() : queue_(std::make_shared<Queue>()) {}

LateWork::~LateWork() {
  if (queue_ != nullptr) {
    queue_->Close();
  }
}

std::function<void()> LateWork::Later(std::function<void()> work) const {
  return [queue = queue_, work = std::move(work)] { queue->Push(work); };
}

}  // namespace geopipe
