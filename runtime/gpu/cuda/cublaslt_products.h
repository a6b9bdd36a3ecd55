// The port's products over cuBLASLt.
#pragma once

#include "runtime/gpu/port/gpu_port.h"

namespace geopipe::cuda {

extern const GpProducts kProducts;

}  // namespace geopipe::cuda
