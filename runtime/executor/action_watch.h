// The compute action that a rank is at, for the worker's supervisor: a rank that computes for too long is stuck,
// whether its thread or its device is; one that waits for messages is held up by another.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "optimizer/schedule/action.h"
#include "runtime/base/clock.h"
#include "runtime/tensor/completion.h"

namespace geopipe {

// Thread-safe for one writer, the executor's thread, and any number of readers.
class ActionWatch {
 public:
  struct UnderWay {
    Action action;
    int64_t since_ns = 0;  // monotonic
  };

  // `action` is under way while the scope lives, and then until its work is over. `watch` may be null.
  class Scope {
   public:
    Scope(ActionWatch* watch, const Action& action, const Clock& clock);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

    // The device has been given the action's work. Its time begins when that of the action before ends.
    void Enqueued(const Completion& work) { work_ = work; }

   private:
    ActionWatch* const watch_;
    uint64_t number_ = 0;
    Completion work_;
  };

  // Suspends the action that is being enqueued, if any, while the scope lives, because it waits for other ranks; its
  // time then begins anew.
  class Break {
   public:
    Break(ActionWatch& watch, const Clock& clock);
    Break(const Break&) = delete;
    Break& operator=(const Break&) = delete;
    ~Break();

   private:
    ActionWatch& watch_;
    const Clock& clock_;
    bool suspends_ = false;
  };

  // The oldest action under way; nullopt: there is none.
  std::optional<UnderWay> Now() const;

 private:
  struct Entry {
    uint64_t number = 0;
    UnderWay under_way;
  };
  // Shared with the callbacks of work, which may outlive the watch.
  struct State {
    std::mutex mutex;
    std::deque<Entry> entries;  // in their order on the device
    uint64_t next_number = 0;
    bool enqueues = false;  // a scope lives: the last entry is its action
    bool suspended = false;

    // Forgets the actions up to this one, which ended at `end_ns`.
    void End(uint64_t number, int64_t end_ns);
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace geopipe
