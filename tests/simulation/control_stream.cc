#include "tests/simulation/control_stream.h"

#include <algorithm>
#include <utility>

namespace geopipe::simulation {

void ControlStream::Send(Way way, std::function<void()> arrive, bool may_double) {
  Flow& flow = FlowOf(way);
  const PathWay& path = WayOf(way);
  if (reset_) {
    return;
  }
  if (flow.damaged) {
    if (!path.swallowed && !path.held) {
      Reset();  // the other end's network answers what it cannot place
    }
    return;
  }
  if (path.swallowed) {
    flow.damaged = true;
    return;
  }
  if (path.held || !flow.held.empty()) {
    flow.held.push_back(std::move(arrive));
    return;
  }
  if (may_double && path.duplicates > 0 && world_.Chance(path.duplicates)) {
    Arrive(way, arrive);
  }
  Arrive(way, std::move(arrive));
}

void ControlStream::Arrive(Way way, std::function<void()> arrive) {
  Flow& flow = FlowOf(way);
  const int64_t delay_ns = world_.Between(1, 30) * kMillisecondNs + WayOf(way).extra_delay_ns;
  flow.last_ns = std::max(flow.last_ns + 1, world_.now_ns() + delay_ns);
  world_.In(flow.last_ns - world_.now_ns(), [self = shared_from_this(), arrive = std::move(arrive)] {
    if (!self->reset_) {
      arrive();
    }
  });
}

void ControlStream::Heal() {
  for (const Way way : {Way::kUp, Way::kDown}) {
    Flow& flow = FlowOf(way);
    while (!WayOf(way).held && !flow.held.empty()) {
      std::function<void()> arrive = std::move(flow.held.front());
      flow.held.pop_front();
      Arrive(way, std::move(arrive));
    }
  }
}

void ControlStream::Reset() {
  if (std::exchange(reset_, true)) {
    return;
  }
  world_.In(world_.Between(1, 50) * kMillisecondNs, [self = shared_from_this()] {
    if (self->client_closed) {
      self->client_closed();
    }
  });
  world_.In(world_.Between(1, 50) * kMillisecondNs, [self = shared_from_this()] {
    if (self->server_closed) {
      self->server_closed();
    }
  });
}

}  // namespace geopipe::simulation
