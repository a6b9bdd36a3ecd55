// A thread for work that may take its time and begins when a device is done, whose own callbacks must not wait.
#pragma once

#include <functional>
#include <memory>

namespace geopipe {

class LateWork {
 public:
  LateWork();
  LateWork(LateWork&&) noexcept = default;
  LateWork& operator=(LateWork&&) = delete;
  // Waits for the work under way; what has not begun is dropped.
  ~LateWork();

  // Returns a function that has `work` done on the thread, which the first of them starts; does nothing once this is
  // gone. Works are done one after the other. The function may be called on any thread, outlives this, and never waits.
  std::function<void()> Later(std::function<void()> work) const;

 private:
  class Queue;

  std::shared_ptr<Queue> queue_;  // null: moved from
};

}  // namespace geopipe
