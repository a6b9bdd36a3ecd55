// The groups of ranks with which one rank divides its stages.
#pragma once

#include "runtime/collective/communicator.h"

namespace geopipe {

// Communicators of one epoch; null: the rank is alone. They outlive their use.
struct RankGroups {
  Communicator* tensor = nullptr;     // the tensor ranks of a replica: their results are needed at once
  Communicator* key_value = nullptr;  // those of them that share key-value heads
  Communicator* data = nullptr;       // the replicas: their operations run while other work continues
};

}  // namespace geopipe
