// Lets the suite's operands, which lie in the host's memory, pass through a device's.
#pragma once

#include <memory>

#include "runtime/collective/communicator.h"
#include "runtime/tensor/allocator.h"

namespace geopipe {

// A communicator of host memory over one of a device's: fills memory of the device with the operands, in place where
// they are, and reads it back. `waits`: an operation is over when its call returns; else when it, or a later one, has
// been joined. `allocator`: of the device's memory; outlives it.
std::unique_ptr<Communicator> OverDevice(Allocator& allocator, bool waits, std::unique_ptr<Communicator> of);

}  // namespace geopipe
