// A simulated stream between an agent and the coordinator, over a path of the site that may delay, hold, lose and break
// what goes over it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>

#include "tests/simulation/world.h"

namespace geopipe::simulation {

// One direction between a site and the coordinator.
struct PathWay {
  bool held = false;       // nothing arrives until it is healed; then everything does, in order
  bool swallowed = false;  // what is sent is lost, and so is all that follows on the stream; nobody is told
  int64_t extra_delay_ns = 0;
  double duplicates = 0;  // probability that a message comes twice
};

class ControlStream;

struct Path {
  PathWay up;            // to the coordinator
  PathWay down;          // to the site
  bool blocked = false;  // no new stream comes about
  std::list<std::weak_ptr<ControlStream>> streams;

  bool disturbed() const {
    return blocked || up.held || up.swallowed || down.held || down.swallowed || up.extra_delay_ns > 0;
  }
};

class ControlStream : public std::enable_shared_from_this<ControlStream> {
 public:
  enum class Way : uint8_t { kUp, kDown };

  ControlStream(World& world, Path& path) : world_(world), path_(path) {}

  // Hands a message over. `arrive` is called when it arrives, perhaps never. `may_double`: it does no harm twice.
  void Send(Way way, std::function<void()> arrive, bool may_double = false);
  // Lets the messages held meanwhile pass.
  void Heal();
  // Cuts the ends off from each other: they hear only that the stream has ended.
  void Reset();

  // Called at each end when the stream has ended; at most once each.
  std::function<void()> client_closed;
  std::function<void()> server_closed;

 private:
  struct Flow {
    int64_t last_ns = 0;
    bool damaged = false;
    std::deque<std::function<void()>> held;
  };
  PathWay& WayOf(Way way) { return way == Way::kUp ? path_.up : path_.down; }
  Flow& FlowOf(Way way) { return way == Way::kUp ? up_ : down_; }
  void Arrive(Way way, std::function<void()> arrive);

  World& world_;
  Path& path_;
  Flow up_;
  Flow down_;
  bool reset_ = false;
};

}  // namespace geopipe::simulation
