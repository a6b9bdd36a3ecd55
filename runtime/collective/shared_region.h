// Memory that the ranks of a group on one host share, and its layout. The file has no name; a process that is given its
// descriptor maps it.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "optimizer/model/collective_memory.h"
#include "runtime/base/unique_fd.h"

namespace geopipe {

// The state of one rank: written by it, but for `kAbandoned` in `shown` and for `waiting`. Zeros at first.
struct SharedRank {
  static constexpr size_t kLine = 128;  // two cache lines, because processors fetch them in pairs
  static constexpr uint32_t kAbandoned = 1;

  // Twice the number of rounds that the rank has shown, wrapping around, and kAbandoned. A futex.
  alignas(kLine) std::atomic<uint32_t> shown;
  // Number of other ranks that wait for `shown`.
  alignas(kLine) std::atomic<uint32_t> waiting;
  // Round::fingerprint of the last rounds, by slot.
  alignas(kLine) std::atomic<uint32_t> fingerprint[kSharedSlots];
  // The reason why this rank has given up, complete before `abandoned_by` names it.
  alignas(kLine) int32_t why_code;
  char why[kAbortMessageBytes];
};
static_assert(sizeof(SharedRank) <= kSharedRankHeaderBytes);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

class SharedRegion {
 public:
  // Makes a region for `ranks` ranks and takes its memory at once. ResourceExhausted when there is too little.
  static absl::StatusOr<std::pair<SharedRegion, UniqueFd>> Create(int32_t ranks);
  // Maps a region of another process. FailedPrecondition when it is not of this size, or its size could change.
  static absl::StatusOr<SharedRegion> Map(const UniqueFd& file, int32_t ranks);

  SharedRegion(SharedRegion&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_), ranks_(other.ranks_) {}
  SharedRegion& operator=(SharedRegion&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    std::swap(ranks_, other.ranks_);
    return *this;
  }
  ~SharedRegion();

  int32_t ranks() const { return ranks_; }
  SharedRank& rank(int32_t rank) const {
    return *reinterpret_cast<SharedRank*>(memory_ + kSharedRankHeaderBytes * (1 + int64_t{rank}));
  }
  // 1 + the rank that gave up first; 0: none has.
  std::atomic<uint32_t>& abandoned_by() const { return *reinterpret_cast<std::atomic<uint32_t>*>(memory_); }
  // A slot of kSharedSlotBytes.
  std::byte* slot(int32_t rank, uint32_t slot) const {
    return memory_ + kSharedRankHeaderBytes * (1 + int64_t{ranks_}) +
           (int64_t{rank} * kSharedSlots + slot) * kSharedSlotBytes;
  }

 private:
  SharedRegion(std::byte* memory, int64_t bytes, int32_t ranks) : memory_(memory), bytes_(bytes), ranks_(ranks) {}
  static absl::StatusOr<SharedRegion> MapFile(int file, int64_t bytes, int32_t ranks);

  std::byte* memory_;
  int64_t bytes_;
  int32_t ranks_;
};

}  // namespace geopipe
