#include "runtime/collective/staged_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/thread_name.h"

namespace geopipe {
namespace {

// One operand: runs of as many elements, one after the other in the device's memory, and from run `at` on in a pinned
// buffer. Without runs, this rank gives or gets nothing.
template <class Byte>
struct Runs {
  Byte* data = nullptr;
  int32_t count = 0;
  int32_t at = 0;
  int32_t kept = -1;  // the run that is not copied, because it is there already
};

struct Operation {
  DType dtype = DType::kInt32;
  int64_t elements = 0;  // of a run
  int32_t runs = 1;      // of a pinned buffer
  Runs<const std::byte> in = {};
  Runs<std::byte> out = {};
  // The host's operation on a piece: `elements` of each run of the buffer.
  std::function<absl::StatusOr<Completion>(std::byte* buffer, int64_t elements)> run;

  Completion given = Completion();  // the kernels before it
  Completion done = Completion::Pending();
  // Guarded by the shared mutex. The device has been given all of the operation, which ends with `last`.
  bool is_enqueued = false;
  Completion last = Completion();

  int64_t RunBytes(int64_t count) const { return count * ByteSize(dtype); }
};

// State that callbacks of the device share with the communicator, which may be gone by then.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  Communicator* host = nullptr;  // null: gone

  void Abort(const absl::Status& why) {
    {
      const std::lock_guard lock(mutex);
      if (host != nullptr) {
        host->Abort(why);
      }
    }
    changed.notify_all();
  }
};

// The error of a group one of whose ranks has a device that failed: no failure of the others.
absl::Status DeviceFailure(const std::string& rank, const absl::Status& why) {
  return absl::AbortedError(fmt::format("the device of {} has failed: {}", rank, std::string(why.message())));
}

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(const StagedOptions& options, std::unique_ptr<Communicator> host, std::array<Buffer, 2> buffers)
      : options_(options),
        device_(options.allocator->device()),
        host_(std::move(host)),
        name_(fmt::format("rank {} of {}", host_->rank(), host_->size())),
        buffers_(std::make_shared<std::array<Buffer, 2>>(std::move(buffers))) {
    shared_->host = host_.get();
    thread_ = std::thread([this] { RunThread(); });
  }
  StagedCommunicator(const StagedCommunicator&) = delete;
  StagedCommunicator& operator=(const StagedCommunicator&) = delete;
  ~StagedCommunicator() override {
    {
      const std::lock_guard lock(shared_->mutex);
      ends_ = true;
    }
    shared_->changed.notify_all();
    thread_.join();
    if (!last_.done()) {
      (void)device_.Wait(last_, DeviceDeadlineNs());
      last_.Then([kept = buffers_] {});  // a device that is stuck may still use them
    }
    const std::lock_guard lock(shared_->mutex);
    shared_->host = nullptr;
  }

  int32_t rank() const override { return host_->rank(); }
  int32_t size() const override { return host_->size(); }

  absl::StatusOr<Completion> Broadcast(int32_t root, const Elements& data) override {
    const bool gives = rank() == root;
    return Enqueue({.dtype = data.dtype,
                    .elements = data.count,
                    .in = {.data = data.data, .count = gives ? 1 : 0},
                    .out = {.data = data.data, .count = gives ? 0 : 1},
                    .run = [=, this](std::byte* buffer, int64_t elements) {
                      return host_->Broadcast(root, {buffer, elements, data.dtype});
                    }});
  }

  absl::StatusOr<Completion> Reduce(ReduceOp op, int32_t root, const ConstElements& in, const Elements& out) override {
    const bool gets = rank() == root;
    CheckSizes(in, gets ? ConstElements(out) : in, 1);
    return Enqueue({.dtype = in.dtype,
                    .elements = in.count,
                    .in = {.data = in.data, .count = 1},
                    .out = {.data = out.data, .count = gets ? 1 : 0},
                    .run = [=, this, dtype = in.dtype](std::byte* buffer, int64_t elements) {
                      const Elements piece{buffer, elements, dtype};
                      return host_->Reduce(op, root, piece, piece);
                    }});
  }

  absl::StatusOr<Completion> AllReduce(ReduceOp op, const ConstElements& in, const Elements& out) override {
    CheckSizes(in, out, 1);
    return Enqueue({.dtype = in.dtype,
                    .elements = in.count,
                    .in = {.data = in.data, .count = 1},
                    .out = {.data = out.data, .count = 1},
                    .run = [=, this, dtype = in.dtype](std::byte* buffer, int64_t elements) {
                      const Elements piece{buffer, elements, dtype};
                      return host_->AllReduce(op, piece, piece);
                    }});
  }

  absl::StatusOr<Completion> AllGather(const ConstElements& in, const Elements& out) override {
    return Collect(in, out, /*gets=*/true,
                   [this](const ConstElements& own, const Elements& all) { return host_->AllGather(own, all); });
  }
  absl::StatusOr<Completion> Gather(int32_t root, const ConstElements& in, const Elements& out) override {
    return Collect(in, out, rank() == root,
                   [=, this](const ConstElements& own, const Elements& all) { return host_->Gather(root, own, all); });
  }

  absl::StatusOr<Completion> Scatter(int32_t root, const ConstElements& in, const Elements& out) override {
    return Distribute(in, out, rank() == root, [=, this](const ConstElements& all, const Elements& own) {
      return host_->Scatter(root, all, own);
    });
  }
  absl::StatusOr<Completion> ReduceScatter(ReduceOp op, const ConstElements& in, const Elements& out) override {
    return Distribute(in, out, /*gives=*/true, [=, this](const ConstElements& all, const Elements& own) {
      return host_->ReduceScatter(op, all, own);
    });
  }

  absl::StatusOr<Completion> AllToAll(const ConstElements& in, const Elements& out) override {
    CheckSizes(in, out, 1);
    GP_CHECK(in.count % size() == 0, "{} elements in a group of {}", in.count, size());
    return Enqueue({.dtype = in.dtype,
                    .elements = in.count / size(),
                    .runs = 2 * size(),
                    .in = {.data = in.data, .count = size()},
                    .out = {.data = out.data, .count = size(), .at = size()},
                    .run = [this, dtype = in.dtype](std::byte* buffer, int64_t elements) {
                      const Elements piece{buffer, size() * elements, dtype};
                      return host_->AllToAll(piece, {buffer + piece.bytes(), piece.count, dtype});
                    }});
  }

  absl::StatusOr<Completion> Barrier() override {
    return Enqueue({.run = [this](std::byte*, int64_t) { return host_->Barrier(); }});
  }

  // An operation that has failed may have left copies in the queue: kernels, and so the next users of its operands,
  // wait for these, too.
  absl::Status Join(const Completion& done) override {
    if (!done.done()) {
      if (const absl::Status behind = device_.After(Queue::kCompute, Enqueued(done)); !behind.ok()) {
        shared_->Abort(DeviceFailure(name_, behind));
      }
    }
    return status();
  }

  void Abort(absl::Status why) override {
    GP_CHECK(!why.ok(), "an abort without an error");
    shared_->Abort(why);
  }
  absl::Status status() const override { return host_->status(); }

 private:
  using OfPiece = std::function<absl::StatusOr<Completion>(const ConstElements& in, const Elements& out)>;

  void CheckSizes(const ConstElements& part, const ConstElements& whole, int64_t ratio) const {
    GP_CHECK(part.dtype == whole.dtype, "{} beside {}", DTypeName(part.dtype), DTypeName(whole.dtype));
    GP_CHECK(part.count >= 0 && whole.count == ratio * part.count, "{} elements beside {} of a group of {}", part.count,
             whole.count, size());
  }

  // All ranks' `in`, one after the other, become `out` of those that get them.
  absl::StatusOr<Completion> Collect(const ConstElements& in, const Elements& out, bool gets, const OfPiece& collect) {
    if (gets) {
      CheckSizes(in, out, size());
    }
    const bool in_place = gets && in.data == out.data + rank() * in.bytes();
    return Enqueue({.dtype = in.dtype,
                    .elements = in.count,
                    .runs = size(),
                    .in = {.data = in.data, .count = 1, .at = rank()},
                    .out = {.data = out.data, .count = gets ? size() : 0, .kept = in_place ? rank() : -1},
                    .run = [this, collect, dtype = in.dtype](std::byte* buffer, int64_t elements) {
                      const Elements all{buffer, size() * elements, dtype};
                      return collect(SliceOf(all), all);
                    }});
  }

  // Slices of `in`, of those ranks that give it, become the ranks' `out`.
  absl::StatusOr<Completion> Distribute(const ConstElements& in, const Elements& out, bool gives,
                                        const OfPiece& distribute) {
    if (gives) {
      CheckSizes(out, in, size());
    }
    return Enqueue({.dtype = out.dtype,
                    .elements = out.count,
                    .runs = size(),
                    .in = {.data = in.data, .count = gives ? size() : 0},
                    .out = {.data = out.data, .count = 1, .at = rank()},
                    .run = [this, distribute, dtype = out.dtype](std::byte* buffer, int64_t elements) {
                      const Elements all{buffer, size() * elements, dtype};
                      return distribute(all, SliceOf(all));
                    }});
  }

  Elements SliceOf(const Elements& all) const {
    return {all.data + rank() * (all.bytes() / size()), all.count / size(), all.dtype};
  }

  absl::StatusOr<Completion> Enqueue(Operation operation) {
    GP_RETURN_IF_ERROR(status());
    operation.given = device_.Record(Queue::kCompute);
    const Completion done = operation.done;
    {
      const std::lock_guard lock(shared_->mutex);
      while (!operations_.empty() && operations_.front()->done.done()) {
        operations_.pop_front();
      }
      operations_.push_back(std::make_shared<Operation>(std::move(operation)));
      given_.push_back(operations_.back());
    }
    shared_->changed.notify_all();
    return done;
  }

  // Waits until the device has been given all of the operation, and returns its end.
  Completion Enqueued(const Completion& done) {
    std::unique_lock lock(shared_->mutex);
    const auto found = std::ranges::find_if(operations_, [&](const auto& each) { return each->done.SameAs(done); });
    GP_CHECK(found != operations_.end() || done.done(), "a join with another communicator's operation");
    if (found == operations_.end()) {
      return done;
    }
    const std::shared_ptr<const Operation> operation = *found;
    if (!operation->is_enqueued) {
      // It waits for its own device first, which may be stuck, and then for other ranks.
      lock.unlock();
      NotifyAfter(operation->given);
      lock.lock();
      shared_->changed.wait(lock, [&] { return operation->is_enqueued || operation->given.done(); });
    }
    if (!operation->is_enqueued) {
      lock.unlock();
      if (options_.watch != nullptr) {
        options_.watch->BeginWait();
      }
      lock.lock();
      shared_->changed.wait(lock, [&] { return operation->is_enqueued; });
      lock.unlock();
      if (options_.watch != nullptr) {
        options_.watch->EndWait();
      }
    }
    return operation->last;  // nobody changes it any more
  }

  void RunThread() {
    NameThisThread("collective");
    std::unique_lock lock(shared_->mutex);
    while (true) {
      shared_->changed.wait(lock, [this] { return ends_ || !given_.empty(); });
      if (given_.empty()) {
        return;
      }
      const std::shared_ptr<Operation> operation = std::move(given_.front());
      given_.pop_front();
      lock.unlock();
      Run(*operation);
      lock.lock();
      operation->last = last_;
      operation->is_enqueued = true;
      shared_->changed.notify_all();
    }
  }

  void Run(const Operation& operation) {
    absl::Status status = host_->status();
    if (status.ok()) {
      status = device_.After(Queue::kGroup, operation.given);
      const Mark begun = device_.Begin(Queue::kGroup);
      if (status.ok()) {
        status = RunPieces(operation);
      }
      last_ = device_.Record(Queue::kGroup, begun);
    }
    if (!status.ok()) {
      host_->Abort(DeviceFailure(name_, status));  // the others would wait forever
      status = host_->status();
    }
    last_.Then([shared = shared_, status, done = operation.done, last = last_, name = name_]() mutable {
      if (status.ok() && !last.status().ok()) {
        status = DeviceFailure(name, last.status());
      }
      if (status.ok()) {
        done.Complete(last.begun_ns(), last.ready_ns());
      } else {
        shared->Abort(status);
        done.Fail(status);
      }
    });
  }

  // The next piece is copied out while the host works on one. The queue's order keeps a buffer's copies apart.
  absl::Status RunPieces(const Operation& operation) {
    const int64_t room = options_.piece_bytes / operation.runs / ByteSize(operation.dtype);
    GP_CHECK(room > 0, "pinned buffers of {} bytes for {} runs", options_.piece_bytes, operation.runs);
    const auto length = [&](int64_t first) { return std::min(room, operation.elements - first); };
    const auto buffer = [&](int64_t first) { return (*buffers_)[static_cast<size_t>(first / room % 2)].data(); };
    const auto copy_out = [&](int64_t first) -> absl::StatusOr<Completion> {
      GP_RETURN_IF_ERROR(CopyOut(operation, first, length(first), buffer(first)));
      return device_.Record(Queue::kGroup);
    };
    GP_ASSIGN_OR_RETURN(Completion copied, copy_out(0));
    int64_t first = 0;
    do {
      Completion next_copied;
      if (first + room < operation.elements) {
        GP_ASSIGN_OR_RETURN(next_copied, copy_out(first + room));
      }
      GP_RETURN_IF_ERROR(Await(copied));
      GP_ASSIGN_OR_RETURN(const Completion done, operation.run(buffer(first), length(first)));
      GP_CHECK(done.done(), "the host's operation is under way");
      GP_RETURN_IF_ERROR(CopyBack(operation, first, length(first), buffer(first)));
      copied = next_copied;
      first += room;
    } while (first < operation.elements);
    return absl::OkStatus();
  }

  absl::Status CopyOut(const Operation& operation, int64_t first, int64_t elements, std::byte* buffer) {
    const int64_t bytes = operation.RunBytes(elements);
    for (int32_t i = 0; i < operation.in.count && bytes > 0; ++i) {
      GP_RETURN_IF_ERROR(device_.Copy(operation.in.data + operation.RunBytes(i * operation.elements + first),
                                      buffer + (operation.in.at + i) * bytes, bytes, Queue::kGroup));
    }
    return absl::OkStatus();
  }

  absl::Status CopyBack(const Operation& operation, int64_t first, int64_t elements, const std::byte* buffer) {
    const int64_t bytes = operation.RunBytes(elements);
    for (int32_t i = 0; i < operation.out.count && bytes > 0; ++i) {
      if (i != operation.out.kept) {
        GP_RETURN_IF_ERROR(device_.Copy(buffer + (operation.out.at + i) * bytes,
                                        operation.out.data + operation.RunBytes(i * operation.elements + first), bytes,
                                        Queue::kGroup));
      }
    }
    return absl::OkStatus();
  }

  // Wakes those that wait when the work is over. REQUIRES: the shared mutex is free.
  void NotifyAfter(const Completion& work) {
    work.Then([shared = shared_] {
      { const std::lock_guard lock(shared->mutex); }
      shared->changed.notify_all();
    });
  }

  // Waits for the device, asleep, until the group fails. An abort wakes it.
  absl::Status Await(const Completion& copied) {
    NotifyAfter(copied);
    const auto deadline = std::chrono::steady_clock::time_point(
        std::chrono::nanoseconds(Clock::Real().NowNs() + options_.longest_wait_ns));
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait_until(lock, deadline, [&] { return copied.done() || !host_->status().ok(); });
    if (copied.done()) {
      return copied.status();
    }
    GP_RETURN_IF_ERROR(host_->status());
    return absl::DeadlineExceededError(
        fmt::format("it has not done the work before a collective operation within {:.1f} s; it is stuck: look at its "
                    "driver's log",
                    static_cast<double>(options_.longest_wait_ns) * 1e-9));
  }

  const StagedOptions options_;
  Device& device_;
  const std::unique_ptr<Communicator> host_;
  const std::string name_;                                // of the rank
  const std::shared_ptr<std::array<Buffer, 2>> buffers_;  // of the staging allocator
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Completion last_;  // the thread's: the end of what it has given the device

  // Guarded by the shared mutex.
  std::deque<std::shared_ptr<Operation>> operations_;  // that may not be over yet
  std::deque<std::shared_ptr<Operation>> given_;       // that the thread has not begun
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeStagedCommunicator(const StagedOptions& options,
                                                                     std::unique_ptr<Communicator> host) {
  GP_CHECK(options.allocator != nullptr && options.allocator->space() == MemorySpace::kDevice,
           "a staged group of a device without memory of its own");
  std::array<Buffer, 2> buffers;
  for (Buffer& buffer : buffers) {
    GP_ASSIGN_OR_RETURN(buffer, options.allocator->staging().Allocate(options.piece_bytes, MemoryCategory::kTransport));
  }
  return std::make_unique<StagedCommunicator>(options, std::move(host), std::move(buffers));
}

}  // namespace geopipe
