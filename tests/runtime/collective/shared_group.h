// Groups on one host for tests: the ranks are threads, each with a mapping of its own.
#pragma once

#include <memory>
#include <vector>

#include "runtime/tensor/allocator.h"
#include "tests/runtime/collective/communicator_suite.h"

namespace geopipe {

// The memory of all ranks of all groups.
Allocator& SharedMemory();

std::vector<std::unique_ptr<Communicator>> SharedGroupOf(const GroupOptions& options);

}  // namespace geopipe
