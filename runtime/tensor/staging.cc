#include "runtime/tensor/staging.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// Keeps the staging buffer until the work no longer uses it; only then may the host have it back.
void KeepUntilDone(const Completion& work, Tensor staging) {
  work.Then([kept = std::make_shared<Tensor>(std::move(staging))] {});
}

absl::StatusOr<Tensor> StagingFor(const Tensor& tensor, MemoryCategory category) {
  return Tensor::Create(tensor.allocator().staging(), category, tensor.dtype(), tensor.shape());
}

// Copies between the tensor and its staging buffer.
absl::Status Copy(Device& device, const Tensor& from, const Tensor& to, Queue queue) {
  GP_CHECK(from.bytes() == to.bytes(), "{} bytes copied to {}", from.bytes(), to.bytes());
  return device.Copy(from.address(), to.address(), to.bytes(), queue);
}

// The runs of a large tensor, and two staging buffers that they take turns in.
class Runs {
 public:
  // `deadline_ns`: of each wait for a copy.
  Runs(const Tensor& tensor, int64_t (*deadline_ns)())
      : tensor_(tensor), device_(tensor.allocator().device()), deadline_ns_(deadline_ns) {}
  ~Runs() {
    for (Buffer& buffer : buffers_) {
      if (!buffer.memory.empty()) {
        KeepUntilDone(buffer.copied, std::move(buffer.memory));
      }
    }
  }
  Runs(const Runs&) = delete;
  Runs& operator=(const Runs&) = delete;

  int64_t count() const { return (tensor_.bytes() + kRunBytes - 1) / kRunBytes; }
  int64_t bytes(int64_t run) const { return std::min(kRunBytes, tensor_.bytes() - run * kRunBytes); }

  // The run's staging buffer, when the copy that used it last is done.
  absl::StatusOr<const Tensor*> Take(int64_t run) {
    Buffer& buffer = BufferOf(run);
    if (buffer.memory.empty()) {
      GP_ASSIGN_OR_RETURN(buffer.memory, Tensor::Create(tensor_.allocator().staging(), MemoryCategory::kWorkspace,
                                                        DType::kInt32, {kRunBytes / ByteSize(DType::kInt32)}));
    }
    GP_RETURN_IF_ERROR(device_.Wait(buffer.copied, deadline_ns_()));
    return &buffer.memory;
  }
  // Enqueue the copy of the run from its buffer, or to it. REQUIRES: it is taken.
  absl::Status Put(int64_t run) { return Move(run, BufferOf(run).memory.address(), At(run)); }
  absl::Status Get(int64_t run) { return Move(run, At(run), BufferOf(run).memory.address()); }

  absl::Status WaitForAll() {
    for (const Buffer& buffer : buffers_) {
      GP_RETURN_IF_ERROR(device_.Wait(buffer.copied, deadline_ns_()));
    }
    return absl::OkStatus();
  }

 private:
  struct Buffer {
    Tensor memory;
    Completion copied;
  };

  Buffer& BufferOf(int64_t run) { return buffers_.at(static_cast<size_t>(run % 2)); }
  std::byte* At(int64_t run) const { return tensor_.address() + run * kRunBytes; }
  absl::Status Move(int64_t run, const std::byte* from, std::byte* to) {
    GP_RETURN_IF_ERROR(device_.Copy(from, to, bytes(run), Queue::kCompute));
    BufferOf(run).copied = device_.Record(Queue::kCompute);
    return absl::OkStatus();
  }

  const Tensor& tensor_;
  Device& device_;
  int64_t (*const deadline_ns_)();
  std::array<Buffer, 2> buffers_;
};

// Fills or reads a tensor that is longer than a run in memory that only the host limits.
absl::Status FillLong(Runs& runs, const Tensor& tensor, absl::FunctionRef<absl::Status(const Tensor&)> fill) {
  Allocator memory(kUnlimitedMemoryBytes);
  GP_ASSIGN_OR_RETURN(const Tensor whole,
                      Tensor::Create(memory, MemoryCategory::kWorkspace, tensor.dtype(), tensor.shape()));
  GP_RETURN_IF_ERROR(fill(whole));
  for (int64_t run = 0; run < runs.count(); ++run) {
    GP_ASSIGN_OR_RETURN(const Tensor* const buffer, runs.Take(run));
    std::memcpy(buffer->data(), whole.data() + run * kRunBytes, static_cast<size_t>(runs.bytes(run)));
    GP_RETURN_IF_ERROR(runs.Put(run));
  }
  return runs.WaitForAll();
}

absl::Status ReadLong(Runs& runs, const Tensor& tensor, absl::FunctionRef<void(const Tensor&)> read) {
  Allocator memory(kUnlimitedMemoryBytes);
  GP_ASSIGN_OR_RETURN(const Tensor whole,
                      Tensor::Create(memory, MemoryCategory::kWorkspace, tensor.dtype(), tensor.shape()));
  for (int64_t run = 0; run <= runs.count(); ++run) {
    if (run < runs.count()) {
      GP_RETURN_IF_ERROR(runs.Take(run).status());
      GP_RETURN_IF_ERROR(runs.Get(run));
    }
    if (run > 0) {  // the one before, while the device copies this one
      GP_ASSIGN_OR_RETURN(const Tensor* const buffer, runs.Take(run - 1));
      std::memcpy(whole.data() + (run - 1) * kRunBytes, buffer->data(), static_cast<size_t>(runs.bytes(run - 1)));
    }
  }
  read(whole);
  return absl::OkStatus();
}

}  // namespace

absl::Status Copy(const Tensor& from, const Tensor& to, Queue queue) {
  return Copy(to.allocator().device(), from, to, queue);
}

absl::Status FillFromHost(const Tensor& tensor, absl::FunctionRef<absl::Status(const Tensor&)> fill) {
  if (tensor.space() == MemorySpace::kHost) {
    return fill(tensor);
  }
  GP_ASSIGN_OR_RETURN(Tensor host, StagingFor(tensor, MemoryCategory::kWorkspace));
  GP_RETURN_IF_ERROR(fill(host));
  Device& device = tensor.allocator().device();
  GP_RETURN_IF_ERROR(Copy(device, host, tensor, Queue::kCompute));
  KeepUntilDone(device.Record(Queue::kCompute), std::move(host));
  return absl::OkStatus();
}

absl::Status FillInRuns(const Tensor& tensor, absl::FunctionRef<absl::Status(const Tensor&)> fill) {
  if (tensor.space() == MemorySpace::kHost) {
    return fill(tensor);
  }
  if (tensor.bytes() <= kMaxWholeBytes) {
    GP_RETURN_IF_ERROR(FillFromHost(tensor, fill));
    Device& device = tensor.allocator().device();
    return device.Wait(device.Record(Queue::kCompute), SetUpDeadlineNs());
  }
  Runs runs(tensor, SetUpDeadlineNs);
  if (runs.count() > 1) {
    return FillLong(runs, tensor, fill);
  }
  GP_ASSIGN_OR_RETURN(const Tensor* const buffer, runs.Take(0));
  GP_RETURN_IF_ERROR(fill(buffer->As(tensor.dtype(), tensor.shape())));
  GP_RETURN_IF_ERROR(runs.Put(0));
  return runs.WaitForAll();
}

absl::StatusOr<Timed<Tensor>> StagedCopy(const Tensor& tensor) {
  Device& device = tensor.allocator().device();
  Tensor staging;
  if (tensor.space() != MemorySpace::kHost) {
    GP_ASSIGN_OR_RETURN(staging, StagingFor(tensor, MemoryCategory::kWorkspace));
    GP_RETURN_IF_ERROR(Copy(device, tensor, staging, Queue::kCompute));
  }
  return Timed<Tensor>{std::move(staging), device.Record(Queue::kCompute)};
}

absl::Status ReadOnHost(const Tensor& tensor, absl::FunctionRef<void(const Tensor&)> read) {
  if (Runs runs(tensor, DeviceDeadlineNs); tensor.space() == MemorySpace::kDevice && runs.count() > 1) {
    return ReadLong(runs, tensor, read);
  }
  GP_ASSIGN_OR_RETURN(Timed<Tensor> staged, StagedCopy(tensor));
  const absl::Status copied = tensor.allocator().device().Wait(staged.ready, DeviceDeadlineNs());
  if (copied.ok()) {
    read(staged.value.empty() ? tensor : staged.value);
  } else {
    KeepUntilDone(staged.ready, std::move(staged.value));
  }
  return copied;
}

absl::StatusOr<Timed<Tensor>> ToHost(Timed<Tensor> tensor) {
  if (tensor.value.space() == MemorySpace::kHost) {
    return tensor;
  }
  GP_ASSIGN_OR_RETURN(Tensor host, StagingFor(tensor.value, MemoryCategory::kTransport));
  Device& device = tensor.value.allocator().device();
  GP_RETURN_IF_ERROR(device.After(Queue::kOut, tensor.ready));
  const Mark begun = device.Begin(Queue::kOut);
  GP_RETURN_IF_ERROR(Copy(device, tensor.value, host, Queue::kOut));
  tensor.value.NoteUse(Queue::kOut);
  return Timed<Tensor>{std::move(host), device.Record(Queue::kOut, begun)};
}

absl::StatusOr<Timed<Tensor>> ToDevice(Timed<Tensor> host, Allocator& allocator, MemoryCategory category) {
  if (allocator.space() == MemorySpace::kHost) {
    host.value.SetCategory(category);
    return host;
  }
  GP_ASSIGN_OR_RETURN(Tensor tensor,
                      Tensor::Create(allocator, category, host.value.dtype(), host.value.shape(), Queue::kIn));
  Device& device = allocator.device();
  const Mark begun = device.Begin(Queue::kIn);
  GP_RETURN_IF_ERROR(Copy(device, host.value, tensor, Queue::kIn));
  tensor.NoteUse(Queue::kIn);
  const Completion copied = device.Record(Queue::kIn, begun);
  KeepUntilDone(copied, std::move(host.value));
  return Timed<Tensor>{std::move(tensor), copied.NotBefore(host.ready.ready_ns())};
}

}  // namespace geopipe
