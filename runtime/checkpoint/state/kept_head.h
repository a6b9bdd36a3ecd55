// The head of the memory in which states are kept (kept_states.h): whose they are, where they lie and which there are.
#pragma once

#include <absl/status/status.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "optimizer/model/state_identity.h"
#include "runtime/checkpoint/state/kept_layout.h"

namespace geopipe {

inline constexpr uint64_t kKeptMagic = 0x3153'4554'4154'5347;  // "GSTATES1"
inline constexpr uint32_t kKeptVersion = 3;

struct KeptSlot {
  // 0: no whole state is held. Else the greater, the later the state was saved.
  std::atomic<uint64_t> order;
  int64_t iteration;
  uint64_t epoch;
  uint32_t crc32c;  // SumOf
  uint32_t unused;

  StateIdentity state() const { return {.iteration = iteration, .epoch = epoch}; }
  bool Holds(const StateIdentity& state) const {
    return order.load(std::memory_order_acquire) != 0 && this->state() == state;
  }
};

// The layout's text follows.
struct KeptHead {
  uint64_t magic;
  uint32_t version;
  uint32_t crc32c;  // of the three below and the layout
  uint64_t run_incarnation;
  int32_t rank;
  uint32_t layout_bytes;
  std::array<KeptSlot, 2> slots;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);  // or another process would not understand it

// Returns KeptHead::crc32c.
uint32_t ChecksumOf(const KeptHead& head, std::span<const std::byte> layout);

// Returns the checksum of which state it is, which that of its bytes continues.
uint32_t SumOf(const StateIdentity& state);
// The same with the bytes of the tensors, which lie in `room`.
uint32_t SumOf(const StateIdentity& state, const std::byte* room, const std::vector<KeptTensor>& tensors);

// Writes to the memory of the descriptor, from `at` on.
absl::Status WriteAt(int fd, int64_t at, std::span<const std::byte> bytes);
// Writes a slot there so that its order, with which the state counts, comes last.
absl::Status WriteSlot(int fd, int64_t at, const KeptSlot& slot);

}  // namespace geopipe
