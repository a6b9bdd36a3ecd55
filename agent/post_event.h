// The adapters' way to the core.
#pragma once

#include <functional>

#include "agent/events.h"

namespace geopipe::agent {

// Takes an event to the core; waits while its inbox is full. False when the core has ended. Any thread.
using PostEvent = std::function<bool(Event)>;

}  // namespace geopipe::agent
