// The way into the core's bounded inbox for threads that must not wait (gRPC's). When there is no room the sender keeps
// its event and is called again when there is: it meanwhile reads no more of its stream, so a full inbox becomes
// backpressure on the wire, and nothing is dropped.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "coordinator/core/events.h"
#include "runtime/base/inbox.h"

namespace geopipe {

class EventPort {
 public:
  explicit EventPort(Inbox<Event>& inbox) : inbox_(inbox) {}

  // True: taken. False: `event` is left as it was, and `retry` will be called once, from the core's thread, when there
  // may be room (never, when the inbox has been closed). The order of one sender's events is the sender's own concern.
  bool TryPost(Event& event, std::function<void()> retry) {
    std::lock_guard lock(mutex_);
    if (inbox_.TryPush(event)) {
      return true;
    }
    waiting_.push_back(std::move(retry));
    return false;
  }

  // Posts an event of a call that is asked to retry instead of waiting.
  bool TryPost(Event& event) { return inbox_.TryPush(event); }

  // Called by the core's thread each time it has taken an event. Lets the sender that has waited longest try. (The lock
  // keeps a sender that has just found the inbox full from registering too late to be called.)
  void RoomMade() {
    std::function<void()> retry;
    {
      std::lock_guard lock(mutex_);
      if (waiting_.empty()) {
        return;
      }
      retry = std::move(waiting_.front());
      waiting_.pop_front();
    }
    retry();
  }

 private:
  Inbox<Event>& inbox_;
  std::mutex mutex_;
  std::deque<std::function<void()>> waiting_;  // one for each stream at most
};

// One sender's events, posted in the order they were given. A sender that gives the next event only when `then` of the
// last was called never has more than one waiting here.
class EventSender : public std::enable_shared_from_this<EventSender> {
 public:
  explicit EventSender(EventPort& port) : port_(port) {}

  // `then` (may be empty) is called when the event is in the inbox: now, or later on the core's thread.
  void Post(Event event, std::function<void()> then) {
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back({std::move(event), std::move(then)});
      if (waiting_.size() > 1) {
        return;  // the first one's retry goes on to this one
      }
    }
    PostWaiting();
  }

 private:
  struct Waiting {
    Event event;
    std::function<void()> then;
  };

  void PostWaiting() {
    std::vector<std::function<void()>> posted;
    {
      std::lock_guard lock(mutex_);
      while (!waiting_.empty() &&
             port_.TryPost(waiting_.front().event, [self = shared_from_this()] { self->PostWaiting(); })) {
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

  EventPort& port_;
  std::mutex mutex_;
  std::deque<Waiting> waiting_;
};

}  // namespace geopipe
