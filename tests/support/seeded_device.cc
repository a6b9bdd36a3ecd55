#include "tests/support/seeded_device.h"

#include <cstring>
#include <limits>
#include <utility>

#include "runtime/base/clock.h"

namespace geopipe {
namespace {

constexpr int64_t kNeverNs = std::numeric_limits<int64_t>::max();

}  // namespace

SeededDevice::SeededDevice(uint64_t seed, DeviceFault fault)
    : fault_(fault), teller_([this] { RunTeller(); }), queues_(seed, kQueues) {}

SeededDevice::~SeededDevice() {
  ReleaseAll();
  Drain();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  told_.notify_all();
  teller_.join();
}

std::byte* SeededDevice::AllocateMemory(int64_t bytes, MemorySpace space) {
  std::byte* memory = HostDevice().Allocate(bytes, MemorySpace::kHost);
  if (memory == nullptr || space == MemorySpace::kHost) {
    return memory;
  }
  std::memset(memory, 0xFF, static_cast<size_t>(bytes));  // as floats and doubles: not a number
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(memory) + kForeign);
}

void SeededDevice::Free(std::byte* memory, int64_t bytes, MemorySpace space) {
  for (int queue = 1; queue < kQueues; ++queue) {
    queues_.WaitFor(0, queues_.Record(queue));
  }
  queues_.Enqueue(0, [memory, bytes, space] {
    std::byte* real = Real(memory);
    std::memset(real, 0xFF, static_cast<size_t>(bytes));
    HostDevice().Free(real, bytes, space);
  });
}

absl::Status SeededDevice::EnqueueCopy(const std::byte* from, std::byte* to, int64_t bytes, Queue queue) {
  Enqueue(
      [this, from, to, bytes] {
        const auto half = static_cast<size_t>(bytes / 2);
        std::memcpy(Real(to), Real(from), half);
        on_copies_();
        std::memcpy(Real(to) + half, Real(from) + half, static_cast<size_t>(bytes) - half);
        on_copies_();
        return absl::OkStatus();
      },
      static_cast<int64_t>(static_cast<double>(bytes) / copied_bytes_per_ns_), queue);
  return told_error();
}

Mark SeededDevice::Begin(Queue queue) { return {.ns = 0, .point = queues_.Record(static_cast<int>(queue))}; }

Completion SeededDevice::EnqueueRecord(Queue queue, const Mark& begun) {
  const int line = static_cast<int>(queue);
  {
    const std::lock_guard lock(mutex_);
    pending_records_ += queues_.pending() > 0 ? 1 : 0;
  }
  const auto end = std::make_shared<SeededQueues::Event>();
  Completion completion = Completion::Pending(end);
  const auto begin = std::static_pointer_cast<const SeededQueues::Event>(begun.point);
  auto finish = [completion, begin](const absl::Status& status) mutable {
    if (status.ok()) {
      const int64_t now_ns = Clock::Real().NowNs();
      completion.Complete(begin != nullptr && begin->happened() ? begin->real_ns() : now_ns, now_ns);
    } else {
      completion.Fail(status);
    }
  };
  if ((fault_ == DeviceFault::kLandsEarly && queue == Queue::kIn) ||
      (fault_ == DeviceFault::kLeavesEarly && queue == Queue::kOut)) {
    finish(told_error());
    queues_.Record(line, end, nullptr);
  } else {
    queues_.Record(line, end, [this, finish] { Tell([finish, status = told_error()]() mutable { finish(status); }); });
  }
  if (queue == Queue::kGroup) {
    queues_.Hurry();  // a communicator's thread looks out for it
  }
  return completion;
}

absl::Status SeededDevice::After(Queue queue, const Completion& work) {
  if (work.done()) {
    return work.status();
  }
  GP_CHECK(work.point() != nullptr, "the device is to wait for work that is not its own");
  if (fault_ != DeviceFault::kDropsAfter) {
    queues_.WaitFor(static_cast<int>(queue), std::static_pointer_cast<const SeededQueues::Event>(work.point()));
  }
  return told_error();
}

Completion SeededDevice::Past(Queue queue, int64_t position) {
  return fault_ == DeviceFault::kReleasesEarly ? Completion() : Device::Past(queue, position);
}

bool SeededDevice::Await(const Completion& work, int64_t deadline_ns) {
  if (work.point() == nullptr) {
    return Device::Await(work, deadline_ns);
  }
  const auto end = std::static_pointer_cast<const SeededQueues::Event>(work.point());
  if (queues_.Await(end, deadline_ns)) {
    return Device::Await(work, kNeverNs);  // its callbacks are being run
  }
  if (fault_ != DeviceFault::kIgnoresDeadlines) {
    return false;
  }
  ReleaseAll();
  return queues_.Await(end, kNeverNs) && Device::Await(work, kNeverNs);
}

void SeededDevice::Enqueue(std::function<absl::Status()> work, int64_t duration_ns, Queue queue) {
  queues_.Enqueue(
      static_cast<int>(queue),
      [this, work = std::move(work)] {
        if (error().ok()) {
          const absl::Status status = work();
          const std::lock_guard lock(mutex_);
          error_.Update(status);
        }
      },
      duration_ns);
}

void SeededDevice::Drain() {
  for (int queue = 0; queue < kQueues; ++queue) {
    (void)queues_.Await(queues_.Record(queue), DeviceDeadlineNs());
  }
  std::unique_lock lock(mutex_);
  told_.wait(lock, [this] { return news_.empty() && !tells_; });
}

void SeededDevice::Break(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  error_.Update(why);
}

void SeededDevice::ReleaseAll() {
  for (int queue = 0; queue < kQueues; ++queue) {
    queues_.Release(queue);
  }
}

absl::Status SeededDevice::told_error() const {
  return fault_ == DeviceFault::kHidesFailure ? absl::OkStatus() : error();
}

absl::Status SeededDevice::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

int64_t SeededDevice::pending_records() const {
  const std::lock_guard lock(mutex_);
  return pending_records_;
}

void SeededDevice::Tell(std::function<void()> news) {
  const std::lock_guard lock(mutex_);
  news_.push_back(std::move(news));
  told_.notify_all();
}

void SeededDevice::RunTeller() {
  std::unique_lock lock(mutex_);
  while (true) {
    told_.wait(lock, [this] { return closing_ || !news_.empty(); });
    if (news_.empty()) {
      return;
    }
    std::function<void()> news = std::move(news_.front());
    news_.pop_front();
    tells_ = true;
    lock.unlock();
    news();
    news = nullptr;
    lock.lock();
    tells_ = false;
    told_.notify_all();
  }
}

SeededBackend::SeededBackend(SeededDevice& device, Allocator& allocator)
    : device_(device), allocator_(allocator), cpu_(*CpuBackend::Create(/*threads=*/1, workspace_)) {}

MatrixView SeededBackend::Real(MatrixView view) {
  view.data = SeededDevice::Real(view.data);
  return view;
}

ConstMatrixView SeededBackend::Real(ConstMatrixView view) {
  view.data = SeededDevice::Real(view.data);
  return view;
}

AdamWStep SeededBackend::Real(AdamWStep step) {
  step.parameter = Real(step.parameter);
  step.gradient = Real(step.gradient);
  step.first_moment = Real(step.first_moment);
  step.second_moment = Real(step.second_moment);
  step.compute_weight = Real(step.compute_weight);
  return step;
}

}  // namespace geopipe
