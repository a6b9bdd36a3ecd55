// Communicators among threads of one test: plain loops over each other's memory, between barriers. What they compute is
// what any communicator must, to the bit.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/collective/communicator.h"

namespace geopipe {

// One for each rank of a group; they share what they need, and none outlives its use by the others.
std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int32_t size);

}  // namespace geopipe
