#include "runtime/collective/host_communicator.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/collective_memory.h"
#include "runtime/base/thread_name.h"
#include "runtime/collective/message_exchange.h"
#include "runtime/collective/operations.h"
#include "runtime/collective/reduce_kernels.h"
#include "runtime/collective/region_handover.h"
#include "runtime/collective/shared_exchange.h"

namespace geopipe {
namespace {

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(const CommunicatorOptions& options, std::unique_ptr<Exchange> exchange, Reservation memory,
                   Buffer scratch)
      : options_(options),
        memory_(std::move(memory)),
        scratch_(std::move(scratch)),
        exchange_(std::move(exchange)),
        operations_(*exchange_, scratch_.data()) {
    if (options_.own_thread) {
      thread_ = std::thread([this] { RunThread(); });
    } else {
      exchange_->set_watch(options_.watch);
    }
  }
  HostCommunicator(const HostCommunicator&) = delete;
  HostCommunicator& operator=(const HostCommunicator&) = delete;
  ~HostCommunicator() override {
    if (thread_.joinable()) {
      {
        const std::lock_guard lock(mutex_);
        ends_ = true;
      }
      changed_.notify_all();
      thread_.join();
    }
  }

  int32_t rank() const override { return options_.rank; }
  int32_t size() const override { return options_.size; }

  absl::StatusOr<Completion> Broadcast(int32_t root, const Elements& data) override {
    return Run([=, this] { return operations_.Broadcast(root, data); });
  }
  absl::StatusOr<Completion> Reduce(ReduceOp op, int32_t root, const ConstElements& in, const Elements& out) override {
    return Run([=, this] { return operations_.Reduce(op, root, in, out); });
  }
  absl::StatusOr<Completion> AllReduce(ReduceOp op, const ConstElements& in, const Elements& out) override {
    return Run([=, this] { return operations_.AllReduce(op, in, out); });
  }
  absl::StatusOr<Completion> AllGather(const ConstElements& in, const Elements& out) override {
    return Run([=, this] { return operations_.AllGather(in, out); });
  }
  absl::StatusOr<Completion> Gather(int32_t root, const ConstElements& in, const Elements& out) override {
    return Run([=, this] { return operations_.Gather(root, in, out); });
  }
  absl::StatusOr<Completion> Scatter(int32_t root, const ConstElements& in, const Elements& out) override {
    return Run([=, this] { return operations_.Scatter(root, in, out); });
  }
  absl::StatusOr<Completion> ReduceScatter(ReduceOp op, const ConstElements& in, const Elements& out) override {
    return Run([=, this] { return operations_.ReduceScatter(op, in, out); });
  }
  absl::StatusOr<Completion> AllToAll(const ConstElements& in, const Elements& out) override {
    return Run([=, this] { return operations_.AllToAll(in, out); });
  }
  absl::StatusOr<Completion> Barrier() override {
    return Run([=, this] { return operations_.Barrier(); });
  }

  absl::Status Join(const Completion& done) override {
    if (!done.done()) {
      if (options_.watch != nullptr) {
        options_.watch->BeginWait();
      }
      const absl::Status waited = options_.allocator->device().Wait(done, std::numeric_limits<int64_t>::max());
      if (options_.watch != nullptr) {
        options_.watch->EndWait();
      }
      GP_RETURN_IF_ERROR(waited);
    }
    return status();
  }

  void Abort(absl::Status why) override {
    GP_CHECK(!why.ok(), "an abort without an error");
    exchange_->Abort(why);
  }
  absl::Status status() const override { return exchange_->aborted(); }

 private:
  using Operation = std::function<absl::Status()>;

  absl::StatusOr<Completion> Run(Operation operation) {
    GP_RETURN_IF_ERROR(status());
    if (!options_.own_thread) {
      const int64_t begun_ns = options_.clock->NowNs();
      GP_RETURN_IF_ERROR(RunNow(operation));
      return Completion(begun_ns, options_.clock->NowNs());
    }
    Completion done = Completion::Pending();
    {
      const std::lock_guard lock(mutex_);
      given_.emplace_back(std::move(operation), done);
    }
    changed_.notify_all();
    return done;
  }

  absl::Status RunNow(const Operation& operation) {
    const absl::Status result = operation();
    if (!result.ok()) {
      exchange_->Abort(result);  // the others would wait forever
      return status();           // which may be an earlier error
    }
    return absl::OkStatus();
  }

  void RunThread() {
    NameThisThread("collective");
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ends_ || !given_.empty(); });
      if (given_.empty()) {
        return;
      }
      auto [operation, done] = std::move(given_.front());
      given_.pop_front();
      lock.unlock();
      const int64_t begun_ns = options_.clock->NowNs();
      if (status().ok()) {
        static_cast<void>(RunNow(operation));  // the communicator keeps the error
      }
      done.Complete(begun_ns, options_.clock->NowNs());
      lock.lock();
    }
  }

  const CommunicatorOptions options_;
  const Reservation memory_;
  const Buffer scratch_;
  const std::unique_ptr<Exchange> exchange_;
  CollectiveOperations operations_;  // the thread's that runs operations

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Operation, Completion>> given_;
  bool ends_ = false;
  std::thread thread_;
};

absl::Status Check(const CommunicatorOptions& options) {
  GP_CHECK(options.size >= 1 && options.rank >= 0 && options.rank < options.size, "rank {} of {}", options.rank,
           options.size);
  GP_CHECK(options.allocator != nullptr && options.allocator->space() == MemorySpace::kHost,
           "a group of the processor works in the host's memory");
  if (!collective::ReduceKernelsRun()) {
    return absl::FailedPreconditionError(
        "this processor has no AVX2 instructions, which collective operations are compiled for; run the worker on one "
        "that has (Intel since 2013, AMD since 2015)");
  }
  return absl::OkStatus();
}

ExchangePlace PlaceOf(const CommunicatorOptions& options) {
  return {
      .rank = options.rank, .size = options.size, .longest_wait_ns = options.longest_wait_ns, .clock = options.clock};
}

// The exchange of a group of one, which exchanges nothing.
class Alone final : public Exchange {
 public:
  Alone() : Exchange({.rank = 0, .size = 1}) {}

  int64_t Capacity(bool /*parts*/, bool /*common*/) const override { return 64; }
  int64_t BytesInsteadOfRound() const override { return 0; }
  absl::Status Begin(const Round& /*round*/) override { return aborted(); }
  std::byte* PartFor(int32_t /*to*/) override { return nullptr; }
  std::byte* Common() override { return nullptr; }
  absl::Status Show() override { return absl::OkStatus(); }
  absl::StatusOr<View> Look(int32_t /*from*/) override { return View{}; }
  void Abort(const absl::Status& why) override {
    const std::lock_guard lock(mutex_);
    if (aborted_.ok()) {
      aborted_ = why;
    }
  }
  absl::Status aborted() const override {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }

 private:
  mutable std::mutex mutex_;
  absl::Status aborted_;
};

absl::StatusOr<std::unique_ptr<Communicator>> MakeOver(const CommunicatorOptions& options,
                                                       std::unique_ptr<Exchange> exchange, Reservation memory) {
  GP_ASSIGN_OR_RETURN(Buffer scratch,
                      options.allocator->Allocate(exchange->Capacity(true, true), MemoryCategory::kTransport));
  return std::make_unique<HostCommunicator>(options, std::move(exchange), std::move(memory), std::move(scratch));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeSharedMemoryCommunicator(const CommunicatorOptions& options,
                                                                           const SharedGroup& group) {
  GP_RETURN_IF_ERROR(Check(options));
  if (options.size == 1) {
    return MakeOver(options, std::make_unique<Alone>(), Reservation());
  }
  GP_ASSIGN_OR_RETURN(Reservation memory,
                      options.allocator->Reserve(SharedRegionBytes(options.size), MemoryCategory::kTransport));
  GP_ASSIGN_OR_RETURN(SharedRegion region, ShareRegion({.group = group.name,
                                                        .secret = group.secret,
                                                        .rank = options.rank,
                                                        .size = options.size,
                                                        .deadline_ns = group.join_deadline_ns,
                                                        .clock = options.clock,
                                                        .stop = group.stop}));
  return MakeOver(options, std::make_unique<SharedExchange>(PlaceOf(options), std::move(region)), std::move(memory));
}

absl::StatusOr<std::unique_ptr<Communicator>> MakeMessageCommunicator(const CommunicatorOptions& options,
                                                                      const MessageGroup& group,
                                                                      MessageTransport& transport) {
  GP_CHECK(options.size == static_cast<int32_t>(group.ranks.size()), "{} ranks in a group of {}", group.ranks.size(),
           options.size);
  GP_RETURN_IF_ERROR(Check(options));
  if (options.size == 1) {
    return MakeOver(options, std::make_unique<Alone>(), Reservation());
  }
  return MakeOver(options, std::make_unique<MessageExchange>(PlaceOf(options), group, transport, *options.allocator),
                  Reservation());
}

}  // namespace geopipe
