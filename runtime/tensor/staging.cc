#include "runtime/tensor/staging.h"

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
