// Posts events to the core, for its adapters.
#pragma once

#include <functional>

#include "agent/events.h"

namespace geopipe::agent {

// Takes an event to the core. False when the core has ended. Any thread. One that is made for threads of an adapter's
// own waits while the core's inbox is full; one for gRPC's threads never waits.
using PostEvent = std::function<bool(Event)>;

}  // namespace geopipe::agent
