// Opens what a rank computes with: the device and the backend of a kind, wherever they are implemented.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "optimizer/model/run_options.h"
#include "runtime/backend/backend.h"
#include "runtime/tensor/device.h"

namespace geopipe {

// Tells whether workers of this host can run the kind on device `ordinal` of those that this process sees; processors
// are one. `gpu_library`: file of the GPU library; empty: beside this program. Errors: one sentence, which ends with
// the remedy (GpuDevice::Check's).
absl::Status CanOpen(BackendKind kind, int32_t ordinal, const std::string& gpu_library);

// The device that backends of the kind compute on: `ordinal` of those that this process sees, or the processor for a
// kind that does not compute. Errors: CanOpen's, and the device's own.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(BackendKind kind, const std::string& gpu_library = "",
                                                   int32_t ordinal = 0);

// Opens a backend. `allocator`, of that device's memory, provides workspace; it and the device outlive the backend.
// `threads` of the processor are the cpu backend's. Errors: those of the backend's start. REQUIRES: the kind computes,
// and its device was opened.
absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(BackendKind kind, int threads, Allocator& allocator);

// The processor's instructions that the kind's products run on here: where they differ, so may the last bits of results
// (own kernels' bits do not depend on them). Empty for a kind that does not compute, or elsewhere.
std::string_view InstructionsOf(BackendKind kind);

// nullopt for processors, on whose InstructionsOf results depend.
std::optional<DeviceVersions> VersionsOf(const Device& device);

}  // namespace geopipe
