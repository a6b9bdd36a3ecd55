// The port's runtime over the CUDA runtime: one call of the one for one of the other.
#pragma once

#include "runtime/gpu/port/gpu_port.h"

namespace geopipe::cuda {

// Devices of one process.
inline constexpr int32_t kMaxDevices = 64;

extern const GpRuntime kRuntime;

}  // namespace geopipe::cuda
