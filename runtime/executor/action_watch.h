// The compute action that a rank's executor is running, for the worker's supervisor: a rank that computes for too long
// is stuck; one that waits for messages is held up by another.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "optimizer/schedule/action.h"
#include "runtime/base/clock.h"

namespace geopipe {

// Thread-safe for one writer, the executor's thread, and any number of readers.
class ActionWatch {
 public:
  struct UnderWay {
    Action action;
    int64_t since_ns = 0;  // monotonic
  };

  // `action` is under way while the scope lives. `watch` may be null.
  class Scope {
   public:
    Scope(ActionWatch* watch, const Action& action, const Clock& clock) : watch_(watch) {
      if (watch_ != nullptr) {
        watch_->action_ = Pack(action);
        watch_->since_ns_ = clock.NowNs();
        watch_->Turn();
      }
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      if (watch_ != nullptr) {
        watch_->Turn();
      }
    }

   private:
    ActionWatch* watch_;
  };

  // Suspends the action under way, if any, while the scope lives, because it waits for other ranks; its time then
  // begins anew.
  class Break {
   public:
    Break(ActionWatch& watch, const Clock& clock)
        : watch_(watch), clock_(clock), under_way_(watch.turns_.load() % 2 == 1) {
      if (under_way_) {
        watch_.Turn();
      }
    }
    Break(const Break&) = delete;
    Break& operator=(const Break&) = delete;
    ~Break() {
      if (under_way_) {
        watch_.since_ns_ = clock_.NowNs();
        watch_.Turn();
      }
    }

   private:
    ActionWatch& watch_;
    const Clock& clock_;
    const bool under_way_;
  };

  // The action under way; nullopt: none is, or it is just changing.
  std::optional<UnderWay> Now() const {
    const uint64_t turn = turns_.load();
    const UnderWay now{.action = Unpack(action_), .since_ns = since_ns_};
    return turn % 2 == 1 && turns_.load() == turn ? std::optional(now) : std::nullopt;
  }

 private:
  static constexpr int kKindShift = 32;
  static constexpr int kStageShift = 40;

  static uint64_t Pack(const Action& action) {
    return static_cast<uint64_t>(action.stage) << kStageShift | static_cast<uint64_t>(action.kind) << kKindShift |
           static_cast<uint32_t>(action.micro_batch);
  }
  static Action Unpack(uint64_t word) {
    return {.stage = static_cast<int32_t>(word >> kStageShift),
            .kind = static_cast<ActionKind>(word >> kKindShift & 0xff),
            .micro_batch = static_cast<int32_t>(static_cast<uint32_t>(word))};
  }

  void Turn() { turns_.fetch_add(1); }

  std::atomic<uint64_t> turns_ = 0;  // odd while an action is under way
  std::atomic<uint64_t> action_ = 0;
  std::atomic<int64_t> since_ns_ = 0;
};

}  // namespace geopipe
