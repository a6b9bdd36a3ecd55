#include "tests/support/toy_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"

namespace geopipe {

ToyDevice::ToyDevice() : thread_([this] { Run(); }) {}

ToyDevice::~ToyDevice() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::byte* ToyDevice::Allocate(int64_t bytes, MemorySpace space) {
  std::byte* memory = HostDevice().Allocate(bytes, MemorySpace::kHost);
  if (memory == nullptr || space == MemorySpace::kHost) {
    return memory;
  }
  std::memset(memory, 0xFF, static_cast<size_t>(bytes));  // as floats and doubles: not a number
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(memory) + kForeign);
}

void ToyDevice::Free(std::byte* memory, int64_t bytes, MemorySpace space) {
  Enqueue([memory, bytes, space] {
    std::byte* real = Real(memory);
    std::memset(real, 0xFF, static_cast<size_t>(bytes));
    HostDevice().Free(real, bytes, space);
    return absl::OkStatus();
  });
}

absl::Status ToyDevice::Copy(const std::byte* from, std::byte* to, int64_t bytes) {
  Enqueue([from, to, bytes] { return HostDevice().Copy(Real(from), Real(to), bytes); });
  return absl::OkStatus();
}

Completion ToyDevice::Record(int64_t since_ns) {
  Completion completion = Completion::Pending();
  const std::lock_guard lock(mutex_);
  pending_records_ += !queue_.empty() || busy_ ? 1 : 0;
  queue_.emplace_back([this, completion, since_ns]() mutable {
    const int64_t now_ns = Clock::Real().NowNs();
    completion.Complete(std::max(since_ns, last_done_ns_), now_ns);
    last_done_ns_ = now_ns;
  });
  changed_.notify_all();
  return completion;
}

absl::Status ToyDevice::Wait(const Completion& completion) {
  {
    const std::lock_guard lock(mutex_);
    ++waits_;
  }
  (void)Device::Wait(completion);
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, absl::OkStatus());
}

void ToyDevice::Enqueue(std::function<absl::Status()> work) {
  const std::lock_guard lock(mutex_);
  queue_.emplace_back([this, work = std::move(work)] {
    const absl::Status status = work();
    const std::lock_guard error_lock(mutex_);
    error_.Update(status);
  });
  changed_.notify_all();
}

void ToyDevice::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

int64_t ToyDevice::waits() const {
  const std::lock_guard lock(mutex_);
  return waits_;
}

int64_t ToyDevice::pending_records() const {
  const std::lock_guard lock(mutex_);
  return pending_records_;
}

void ToyDevice::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

ToyBackend::ToyBackend(ToyDevice& device, Allocator& allocator)
    : device_(device), allocator_(allocator), cpu_(*CpuBackend::Create(/*threads=*/1, workspace_)) {}

MatrixView ToyBackend::Real(MatrixView view) {
  view.data = ToyDevice::Real(view.data);
  return view;
}

ConstMatrixView ToyBackend::Real(ConstMatrixView view) {
  view.data = ToyDevice::Real(view.data);
  return view;
}

AdamWStep ToyBackend::Real(AdamWStep step) {
  step.parameter = Real(step.parameter);
  step.gradient = Real(step.gradient);
  step.first_moment = Real(step.first_moment);
  step.second_moment = Real(step.second_moment);
  step.compute_weight = Real(step.compute_weight);
  return step;
}

}  // namespace geopipe
