// A group of which only this rank exists: its operations do nothing, and are done at once.
#pragma once

#include <utility>

#include "runtime/collective/communicator.h"

namespace geopipe {

class IdleCommunicator final : public Communicator {
 public:
  IdleCommunicator(int32_t rank, int32_t size) : rank_(rank), size_(size) {}

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }

  absl::StatusOr<Completion> Broadcast(int32_t, const Elements&) override { return Done(); }
  absl::StatusOr<Completion> Reduce(ReduceOp, int32_t, const ConstElements&, const Elements&) override {
    return Done();
  }
  absl::StatusOr<Completion> AllReduce(ReduceOp, const ConstElements&, const Elements&) override { return Done(); }
  absl::StatusOr<Completion> AllGather(const ConstElements&, const Elements&) override { return Done(); }
  absl::StatusOr<Completion> Gather(int32_t, const ConstElements&, const Elements&) override { return Done(); }
  absl::StatusOr<Completion> Scatter(int32_t, const ConstElements&, const Elements&) override { return Done(); }
  absl::StatusOr<Completion> ReduceScatter(ReduceOp, const ConstElements&, const Elements&) override { return Done(); }
  absl::StatusOr<Completion> AllToAll(const ConstElements&, const Elements&) override { return Done(); }
  absl::StatusOr<Completion> Barrier() override { return Done(); }

  absl::Status Join(const Completion&) override { return status_; }
  void Abort(absl::Status why) override { status_.Update(std::move(why)); }
  absl::Status status() const override { return status_; }

 private:
  absl::StatusOr<Completion> Done() const { return status_.ok() ? absl::StatusOr<Completion>(Completion()) : status_; }

  int32_t rank_;
  int32_t size_;
  absl::Status status_;
};

}  // namespace geopipe
