// What every communicator has to do, whatever the device and the medium, against a plain reference: for the tests of
// each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
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

// Runs `work` on a thread for each rank, and returns when all are done.
void OnAllRanks(std::vector<std::unique_ptr<Communicator>>& group, const std::function<void(Communicator&)>& work);

// An allocator-free operand with every bit pattern that makes the order of sums matter.
std::vector<std::byte> Operand(DType dtype, int64_t count, uint64_t seed);

// The reduction of rank 0 to n - 1 of their inputs, element by element and in this order.
std::vector<std::byte> ReducedInOrder(ReduceOp op, DType dtype, const std::vector<std::vector<std::byte>>& inputs);

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
