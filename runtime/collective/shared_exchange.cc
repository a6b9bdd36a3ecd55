#include "runtime/collective/shared_exchange.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// Waits on a word that processes share, hence not FUTEX_PRIVATE. Returns 0, or why it did not sleep until it was woken.
int FutexWait(std::atomic<uint32_t>& word, uint32_t value, int64_t deadline_ns) {
  const timespec until{.tv_sec = deadline_ns / 1'000'000'000, .tv_nsec = deadline_ns % 1'000'000'000};
  const auto result =
      syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, value, &until, nullptr, FUTEX_BITSET_MATCH_ANY);  // CLOCK_MONOTONIC
  return result == 0 ? 0 : errno;
}

void FutexWakeAll(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

bool HasShown(uint32_t word, uint32_t rounds) {
  return static_cast<int32_t>((word & ~SharedRank::kAbandoned) - 2 * rounds) >= 0;
}

}  // namespace

int64_t SharedExchange::Capacity(bool parts, bool common) const {
  const int64_t pieces = (parts ? size() : 0) + (common ? 1 : 0);
  GP_CHECK(pieces > 0, "a round of nothing");
  return kSharedSlotBytes / pieces / 64 * 64;
}

absl::Status SharedExchange::Await(int32_t rank, uint32_t rounds) {
  SharedRank& other = region_.rank(rank);
  uint32_t shown = other.shown.load(std::memory_order_acquire);
  if ((shown & SharedRank::kAbandoned) == 0 && HasShown(shown, rounds)) {
    return absl::OkStatus();
  }
  const Waiting waiting(watch());
  const int64_t deadline_ns = WaitDeadlineNs();
  // All accesses are sequentially consistent: either the other sees this count once it has shown, or this sees the
  // round.
  other.waiting.fetch_add(1);
  absl::Status result;
  while (true) {
    shown = other.shown.load();
    if ((shown & SharedRank::kAbandoned) != 0) {
      result = aborted();
      break;
    }
    if (HasShown(shown, rounds)) {
      break;
    }
    if (FutexWait(other.shown, shown, deadline_ns) == ETIMEDOUT && other.shown.load() == shown) {
      result = absl::DeadlineExceededError(fmt::format(
          "rank {} of a group of {} has not come in time to the collective operation that rank {} is in; it "
          "is stuck or has ended",
          rank, size(), this->rank()));
      break;
    }
  }
  other.waiting.fetch_sub(1);
  return result;
}

absl::Status SharedExchange::Begin(const Round& round) {
  const int64_t bytes = size() * round.part_bytes + round.common_bytes;
  GP_CHECK(bytes <= kSharedSlotBytes, "a round of {} bytes", bytes);
  round_ = round;
  ++number_;
  GP_RETURN_IF_ERROR(aborted());
  if (round.Shows(rank())) {
    for (int32_t other = 0; other < size(); ++other) {  // until all have read this slot's last contents
      if (other != rank()) {
        GP_RETURN_IF_ERROR(Await(other, number_));
      }
    }
  }
  return absl::OkStatus();
}

std::byte* SharedExchange::PartFor(int32_t to) { return region_.slot(rank(), slot()) + to * round_.part_bytes; }

std::byte* SharedExchange::Common() { return region_.slot(rank(), slot()) + size() * round_.part_bytes; }

absl::Status SharedExchange::Show() {
  SharedRank& own = region_.rank(rank());
  if (round_.Shows(rank())) {  // else others may still read this slot's last contents
    own.fingerprint[slot()].store(round_.fingerprint, std::memory_order_relaxed);
  }
  own.shown.fetch_add(2);
  if (own.waiting.load() > 0) {
    FutexWakeAll(own.shown);
  }
  return absl::OkStatus();
}

absl::StatusOr<Exchange::View> SharedExchange::Look(int32_t from) {
  GP_RETURN_IF_ERROR(Await(from, number_ + 1));
  if (region_.rank(from).fingerprint[slot()].load(std::memory_order_relaxed) != round_.fingerprint) {
    return absl::InternalError(
        fmt::format("rank {} of a group of {} is in another collective operation than rank {}, or gave it other sizes",
                    from, size(), rank()));
  }
  const std::byte* shown = region_.slot(from, slot());
  return View{.part = shown + rank() * round_.part_bytes, .common = shown + size() * round_.part_bytes};
}

void SharedExchange::Abort(const absl::Status& why) {
  GP_CHECK(!why.ok());
  const std::lock_guard lock(abort_mutex_);
  if (std::exchange(has_aborted_, true)) {
    return;
  }
  SharedRank& own = region_.rank(rank());
  own.why_code = static_cast<int32_t>(why.code());
  const size_t bytes = std::min(why.message().size(), sizeof(own.why) - 1);
  std::memcpy(own.why, why.message().data(), bytes);
  uint32_t nobody = 0;
  region_.abandoned_by().compare_exchange_strong(nobody, static_cast<uint32_t>(rank()) + 1);
  for (int32_t i = 0; i < size(); ++i) {
    std::atomic<uint32_t>& shown = region_.rank(i).shown;
    shown.fetch_or(SharedRank::kAbandoned);
    FutexWakeAll(shown);
  }
}

absl::Status SharedExchange::aborted() const {
  const uint32_t by = region_.abandoned_by().load(std::memory_order_acquire);
  if (by == 0) {
    return absl::OkStatus();
  }
  const SharedRank& other = region_.rank(static_cast<int32_t>(by) - 1);
  return absl::Status(static_cast<absl::StatusCode>(other.why_code), other.why);
}

}  // namespace geopipe
