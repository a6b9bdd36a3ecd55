#include "runtime/tensor/staging.h"

#include <memory>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// Keeps the staging buffer until the device no longer uses it; only then may the host have it back.
void KeepUntilDone(Device& device, Tensor staging) {
  device.Record().Then([kept = std::make_shared<Tensor>(std::move(staging))] {});
}

absl::StatusOr<Tensor> StagingFor(const Tensor& tensor, MemoryCategory category) {
  return Tensor::Create(tensor.allocator().staging(), category, tensor.dtype(), tensor.shape());
}

// Copies between the tensor and its staging buffer.
absl::Status Copy(Device& device, const Tensor& from, const Tensor& to) {
  GP_CHECK(from.bytes() == to.bytes(), "{} bytes copied to {}", from.bytes(), to.bytes());
  return device.Copy(from.address(), to.address(), to.bytes());
}

}  // namespace

absl::Status Copy(const Tensor& from, const Tensor& to) { return Copy(to.allocator().device(), from, to); }

absl::Status FillFromHost(const Tensor& tensor, absl::FunctionRef<absl::Status(const Tensor&)> fill) {
  if (tensor.space() == MemorySpace::kHost) {
    return fill(tensor);
  }
  GP_ASSIGN_OR_RETURN(Tensor host, StagingFor(tensor, MemoryCategory::kWorkspace));
  GP_RETURN_IF_ERROR(fill(host));
  Device& device = tensor.allocator().device();
  GP_RETURN_IF_ERROR(Copy(device, host, tensor));
  KeepUntilDone(device, std::move(host));
  return absl::OkStatus();
}

absl::StatusOr<Timed<Tensor>> StagedCopy(const Tensor& tensor) {
  Device& device = tensor.allocator().device();
  Tensor staging;
  if (tensor.space() != MemorySpace::kHost) {
    GP_ASSIGN_OR_RETURN(staging, StagingFor(tensor, MemoryCategory::kWorkspace));
    GP_RETURN_IF_ERROR(Copy(device, tensor, staging));
  }
  return Timed<Tensor>{std::move(staging), device.Record()};
}

absl::Status ReadOnHost(const Tensor& tensor, absl::FunctionRef<void(const Tensor&)> read) {
  GP_ASSIGN_OR_RETURN(const Timed<Tensor> staged, StagedCopy(tensor));
  GP_RETURN_IF_ERROR(tensor.allocator().device().Wait(staged.ready));
  read(staged.value.empty() ? tensor : staged.value);
  return absl::OkStatus();
}

absl::StatusOr<Timed<Tensor>> ToHost(Timed<Tensor> tensor) {
  if (tensor.value.space() == MemorySpace::kHost) {
    return tensor;
  }
  GP_ASSIGN_OR_RETURN(Tensor host, StagingFor(tensor.value, MemoryCategory::kTransport));
  Device& device = tensor.value.allocator().device();
  GP_RETURN_IF_ERROR(Copy(device, tensor.value, host));
  return Timed<Tensor>{std::move(host), device.Record()};
}

absl::StatusOr<Tensor> ToDevice(Tensor host, Allocator& allocator, MemoryCategory category) {
  if (allocator.space() == MemorySpace::kHost) {
    host.SetCategory(category);
    return host;
  }
  GP_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Create(allocator, category, host.dtype(), host.shape()));
  GP_RETURN_IF_ERROR(Copy(allocator.device(), host, tensor));
  KeepUntilDone(allocator.device(), std::move(host));
  return tensor;
}

}  // namespace geopipe
