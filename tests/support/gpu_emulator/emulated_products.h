// The emulated GPU's products: in fp32, in the order of k, rounded once.
#pragma once

#include "runtime/gpu/port/gpu_port.h"

namespace geopipe::emulator {

extern const GpProducts kProducts;

}  // namespace geopipe::emulator
