// Checks for tests of communicators: what each has to do, whatever the device and the medium, against a plain
// reference.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/collective/communicator.h"

namespace geopipe {

struct GroupOptions {
  int32_t size = 2;
  bool own_thread = false;
  int64_t longest_wait_ns = 60'000'000'000;
  std::vector<WaitWatch*> watches = {};  // by rank; empty: none
};

// The communicators of all ranks of a new group, by rank, in host memory; keeps alive what they need.
using GroupFactory = std::function<std::vector<std::unique_ptr<Communicator>>(const GroupOptions&)>;

// A communicator and what it needs.
class KeepingCommunicator final : public Communicator {
 public:
  KeepingCommunicator(std::shared_ptr<void> kept, std::unique_ptr<Communicator> of)
      : kept_(std::move(kept)), of_(std::move(of)) {}
  int32_t rank() const override { return of_->rank(); }
  int32_t size() const override { return of_->size(); }
  absl::StatusOr<Completion> Broadcast(int32_t root, const Elements& data) override {
    return of_->Broadcast(root, data);
  }
  absl::StatusOr<Completion> Reduce(ReduceOp op, int32_t root, const ConstElements& in, const Elements& out) override {
    return of_->Reduce(op, root, in, out);
  }
  absl::StatusOr<Completion> AllReduce(ReduceOp op, const ConstElements& in, const Elements& out) override {
    return of_->AllReduce(op, in, out);
  }
  absl::StatusOr<Completion> AllGather(const ConstElements& in, const Elements& out) override {
    return of_->AllGather(in, out);
  }
  absl::StatusOr<Completion> Gather(int32_t root, const ConstElements& in, const Elements& out) override {
    return of_->Gather(root, in, out);
  }
  absl::StatusOr<Completion> Scatter(int32_t root, const ConstElements& in, const Elements& out) override {
    return of_->Scatter(root, in, out);
  }
  absl::StatusOr<Completion> ReduceScatter(ReduceOp op, const ConstElements& in, const Elements& out) override {
    return of_->ReduceScatter(op, in, out);
  }
  absl::StatusOr<Completion> AllToAll(const ConstElements& in, const Elements& out) override {
    return of_->AllToAll(in, out);
  }
  absl::StatusOr<Completion> Barrier() override { return of_->Barrier(); }
  absl::Status Join(const Completion& done) override { return of_->Join(done); }
  void Abort(absl::Status why) override { of_->Abort(std::move(why)); }
  absl::Status status() const override { return of_->status(); }

 private:
  std::shared_ptr<void> kept_;
  std::unique_ptr<Communicator> of_;
};

// Runs `work` on a thread for each rank, and returns when all are done.
void OnAllRanks(std::vector<std::unique_ptr<Communicator>>& group, const std::function<void(Communicator&)>& work);

// An allocator-free operand with every bit pattern that makes the order of sums matter.
std::vector<std::byte> Operand(DType dtype, int64_t count, uint64_t seed);

// The reduction of rank 0 to n - 1 of their inputs, element by element and in this order.
std::vector<std::byte> ReducedInOrder(ReduceOp op, DType dtype, const std::vector<std::vector<std::byte>>& inputs);

// Broadcasts and all-reduces of many slots, without a look at results.
void SendMuch(Communicator& communicator);

// All operations, types and roots at these numbers of elements (of an operand's slice, where it has slices), in and out
// of place: one after the other in one group of each kind, and every rank's result is the reference's to the bit.
void CheckOperations(const GroupFactory& make, const std::vector<int32_t>& sizes, const std::vector<int64_t>& counts);
// Two groups of the same ranks, whose operations are under way at once.
void CheckTwoGroups(const GroupFactory& make);
// An abort, a rank that does not come, and ranks that are in different operations.
void CheckAbort(const GroupFactory& make);
void CheckDeadline(const GroupFactory& make);
void CheckMismatch(const GroupFactory& make);

}  // namespace geopipe
