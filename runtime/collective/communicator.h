// Collective operations among the ranks of a group, on any device and any medium. Every sum adds in the order of the
// ranks, for every element and with every algorithm, so that all ranks, all runs and all media have the same bits:
// AllReduce is ReduceScatter and AllGather.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>

#include "runtime/tensor/completion.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

// Sums of fp32, fp64 and int32 are in that type (int32 wraps around), of bf16 in fp32, rounded once, to nearest even.
// kMax is NaN where any rank has a NaN.
enum class ReduceOp : uint8_t { kSum, kMax };

// Consecutive elements of one type in the memory of the communicator's device. Reductions: fp32, bf16, fp64, int32.
struct ConstElements {
  const std::byte* data = nullptr;
  int64_t count = 0;
  DType dtype = DType::kFp32;

  int64_t bytes() const { return count * ByteSize(dtype); }
};
struct Elements {
  std::byte* data = nullptr;
  int64_t count = 0;
  DType dtype = DType::kFp32;

  int64_t bytes() const { return count * ByteSize(dtype); }
  operator ConstElements() const { return {data, count, dtype}; }  // NOLINT(google-explicit-constructor): as span's
};

// The elements of a whole tensor.
inline Elements ElementsOf(const Tensor& tensor) { return {tensor.address(), tensor.elements(), tensor.dtype()}; }

// Hears when the thread that calls the communicator begins and ends to wait, asleep, for other ranks.
class WaitWatch {
 public:
  virtual ~WaitWatch() = default;
  virtual void BeginWait() = 0;
  virtual void EndWait() = 0;
};

// All ranks call the same operations with the same types and sizes in the same order; a rank that does not fails the
// group where the medium notices. Operands are disjoint unless stated otherwise; sizes that do not match are bugs
// (GP_CHECK). One thread calls operations and Join; any thread the others.
//
// An operation is enqueued behind earlier kernels of the device and earlier operations of this communicator. Its
// completion ends whether it succeeds or fails; operands stay until then, or until Join: the device's memory is
// released in order with kernels. A failure is final: the error is the communicator's, which Join, status and every
// later call return, on all ranks. The contents of `out` are then undefined.
class Communicator {
 public:
  // Waits until its operations are over; Abort ends them early.
  virtual ~Communicator() = default;

  virtual int32_t rank() const = 0;  // in the group, from 0
  virtual int32_t size() const = 0;

  // Copies the root's data to all ranks, in place.
  virtual absl::StatusOr<Completion> Broadcast(int32_t root, const Elements& data) = 0;
  // out: the root's alone, as large as in, and may be in; that of other ranks is ignored.
  virtual absl::StatusOr<Completion> Reduce(ReduceOp op, int32_t root, const ConstElements& in,
                                            const Elements& out) = 0;
  // out may be in.
  virtual absl::StatusOr<Completion> AllReduce(ReduceOp op, const ConstElements& in, const Elements& out) = 0;
  // out.count = size * in.count; in may be this rank's slice of out.
  virtual absl::StatusOr<Completion> AllGather(const ConstElements& in, const Elements& out) = 0;
  // Does as AllGather, but at the root alone; `out` of other ranks is ignored.
  virtual absl::StatusOr<Completion> Gather(int32_t root, const ConstElements& in, const Elements& out) = 0;
  // in: the root's alone, in.count = size * out.count; out may be the root's slice of in.
  virtual absl::StatusOr<Completion> Scatter(int32_t root, const ConstElements& in, const Elements& out) = 0;
  // in.count = size * out.count; out may be this rank's slice of in.
  virtual absl::StatusOr<Completion> ReduceScatter(ReduceOp op, const ConstElements& in, const Elements& out) = 0;
  // Slice j of rank i's in becomes slice i of rank j's out; both have the same count, a multiple of size.
  virtual absl::StatusOr<Completion> AllToAll(const ConstElements& in, const Elements& out) = 0;
  // Completes when all ranks have called it.
  virtual absl::StatusOr<Completion> Barrier() = 0;

  // Makes kernels that are enqueued from now on wait for the operation: on the processor this waits, asleep. Returns
  // the communicator's error, if it has failed.
  virtual absl::Status Join(const Completion& done) = 0;

  // Ends every waiting and later operation with the error, on all ranks. The first status stays. REQUIRES: an error.
  virtual void Abort(absl::Status why) = 0;
  // OK, or the reason for the failure, as far as this rank knows.
  virtual absl::Status status() const = 0;
};

}  // namespace geopipe
