// The way into a core's bounded inbox for threads that must not wait (gRPC's). What finds no room waits here, and its
// sender reads no more of its stream until it is taken: a full inbox becomes backpressure on the wire, and nothing is
// dropped.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/base/inbox.h"

namespace geopipe {

template <class Event>
class EventPort {
 public:
  // The inbox outlives the port.
  explicit EventPort(Inbox<Event>& inbox) : inbox_(inbox) {}
  EventPort(const EventPort&) = delete;
  EventPort& operator=(const EventPort&) = delete;

  // Never waits. The event reaches the inbox after all that were given before; `then` (may be empty) is called when it
  // is there: now, or later on the core's thread. A sender bounds what waits of it by giving its next event only then.
  // False when the inbox has been closed: the event is dropped. Any thread.
  bool Post(Event event, std::function<void()> then) {
    {
      const std::lock_guard lock(mutex_);
      if (inbox_.closed()) {
        return false;
      }
      if (!waiting_.empty() || !inbox_.TryPush(event)) {
        waiting_.push_back({std::move(event), std::move(then)});
        return true;
      }
    }
    if (then) {
      then();
    }
    return true;
  }

  // Posts without waiting, for calls that are asked to retry instead. False: there is no room, or others wait for it.
  // Any thread.
  bool TryPost(Event& event) {
    const std::lock_guard lock(mutex_);
    return waiting_.empty() && inbox_.TryPush(event);
  }

  // Called by the core's thread each time it has taken an event. Strictly in turn: a large event that waits for much
  // room is not overtaken by small ones.
  void RoomMade() {
    std::vector<std::function<void()>> posted;
    {
      const std::lock_guard lock(mutex_);
      while (!waiting_.empty() && inbox_.TryPush(waiting_.front().event)) {
        posted.push_back(std::move(waiting_.front().then));
        waiting_.pop_front();
      }
    }
    for (const std::function<void()>& then : posted) {
      if (then) {
        then();
      }
    }
  }

 private:
  struct Waiting {
    Event event;
    std::function<void()> then;
  };

  Inbox<Event>& inbox_;
  std::mutex mutex_;
  std::deque<Waiting> waiting_;  // a few for each stream at most
};

}  // namespace geopipe
