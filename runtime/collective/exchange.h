// Rounds in which ranks show each other data, through slots of fixed size. Operations are written once, in such rounds;
// each medium implements this interface.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/collective/communicator.h"

namespace geopipe {

inline constexpr int32_t kEveryRank = -1;

// One round, described alike on all ranks.
struct Round {
  int64_t part_bytes = 0;     // for each other rank a part of its own
  int64_t common_bytes = 0;   // and the same for all
  int32_t from = kEveryRank;  // sender
  int32_t to = kEveryRank;    // receiver
  // Identifies the operation, so that ranks that are in different ones notice it.
  uint32_t fingerprint = 0;

  bool Shows(int32_t sender) const { return from == kEveryRank || from == sender; }
  bool Carries(int32_t sender, int32_t receiver) const {
    return sender != receiver && Shows(sender) && (to == kEveryRank || to == receiver);
  }
};

// A rank's place in its group, and how long it waits for another.
struct ExchangePlace {
  int32_t rank = 0;
  int32_t size = 1;
  int64_t longest_wait_ns = 0;
  Clock* clock = &Clock::Real();
};

// One thread runs the rounds: Begin, write the data to show, Show, Look at others. The other members may be called by
// any thread.
class Exchange {
 public:
  explicit Exchange(const ExchangePlace& place) : place_(place) {}
  virtual ~Exchange() = default;

  int32_t rank() const { return place_.rank; }
  int32_t size() const { return place_.size; }
  // Sets the watch that hears of waits from now on; may be null.
  void set_watch(WaitWatch* watch) { watch_ = watch; }

  // Greatest number of bytes, a multiple of 64, of a round's part and of its common bytes, in rounds that have one or
  // both.
  virtual int64_t Capacity(bool parts, bool common) const = 0;

  // Number of bytes that a rank reads in the time of one more round.
  virtual int64_t BytesInsteadOfRound() const = 0;

  // Begins the next round; views of the one before end. Waits for room in this rank's slot, if it shows anything.
  // DeadlineExceeded, like Look's, names the rank that is missing.
  virtual absl::Status Begin(const Round& round) = 0;
  // Memory for the data that this rank shows. REQUIRES: it shows some; of PartFor: `to` is another rank.
  virtual std::byte* PartFor(int32_t to) = 0;
  virtual std::byte* Common() = 0;
  virtual absl::Status Show() = 0;

  struct View {
    const std::byte* part = nullptr;  // for this rank
    const std::byte* common = nullptr;
  };
  // Waits for the data that `from` shows. REQUIRES: the round carries data from there to here.
  virtual absl::StatusOr<View> Look(int32_t from) = 0;

  // Ends all waits and rounds with `why` on all ranks. The first status stays.
  virtual void Abort(const absl::Status& why) = 0;
  // OK, or the first status of which this rank has heard.
  virtual absl::Status aborted() const = 0;

 protected:
  // Tells the watch that this thread waits, while it lives.
  class Waiting {
   public:
    explicit Waiting(WaitWatch* watch) : watch_(watch) {
      if (watch_ != nullptr) {
        watch_->BeginWait();
      }
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() {
      if (watch_ != nullptr) {
        watch_->EndWait();
      }
    }

   private:
    WaitWatch* watch_;
  };
  WaitWatch* watch() const { return watch_; }
  const Clock& clock() const { return *place_.clock; }
  // Time (monotonic) at which a wait that begins now has lasted too long.
  int64_t WaitDeadlineNs() const { return clock().NowNs() + place_.longest_wait_ns; }

 private:
  const ExchangePlace place_;
  WaitWatch* watch_ = nullptr;
};

}  // namespace geopipe
