#include "runtime/compute/open.h"

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/backend/cpu_backend.h"
#include "runtime/gpu/gpu_backend.h"
#include "runtime/gpu/gpu_device.h"

namespace geopipe {

absl::Status CanOpen(BackendKind kind, int32_t ordinal, const std::string& gpu_library) {
  return kind == BackendKind::kCuda ? GpuDevice::Check(gpu_library, ordinal) : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(BackendKind kind, const std::string& gpu_library, int32_t ordinal) {
  if (kind == BackendKind::kCuda) {
    return GpuDevice::Open(gpu_library, ordinal);
  }
  return MakeHostDevice();
}

absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(BackendKind kind, int threads, Allocator& allocator) {
  if (kind == BackendKind::kCuda) {
    auto* gpu = dynamic_cast<GpuDevice*>(&allocator.device());
    GP_CHECK(gpu != nullptr, "the cuda backend on another device's memory");
    return std::make_unique<GpuBackend>(*gpu, allocator);
  }
  GP_CHECK(kind == BackendKind::kCpu, "no kernels of the {} backend", BackendKindName(kind));
  return CpuBackend::Create(threads, allocator);
}

std::string_view InstructionsOf(BackendKind kind) {
  return kind == BackendKind::kCpu ? CpuBackend::ProductInstructions() : std::string_view();
}

std::optional<DeviceVersions> VersionsOf(const Device& device) {
  const auto* gpu = dynamic_cast<const GpuDevice*>(&device);
  return gpu == nullptr ? std::nullopt : std::optional(gpu->versions());
}

}  // namespace geopipe
