// Memory that a rank of a group holds for the group's collective operations (runtime/collective), in bytes, category
// transport; of the host, where its device has memory of its own. It does not depend on the operations' sizes: they go
// through slots piece by piece.
#pragma once

#include <cstdint>

namespace geopipe {

// Ranks of one host: each has this many slots of this size in memory that all of them share.
inline constexpr int64_t kSharedSlotBytes = int64_t{1} << 20;
inline constexpr int32_t kSharedSlots = 2;
// Header before a rank's slots: how far each rank has come, and why a rank has given up.
inline constexpr int64_t kSharedRankHeaderBytes = 4096;

// Ranks of several hosts: a channel from each to each, with this many slots of this size at the receiver.
inline constexpr int64_t kCollectiveMessageBytes = int64_t{256} << 10;
inline constexpr int32_t kCollectiveMessageSlots = 2;
// Bytes of one more message, for the reason why a rank has given up.
inline constexpr int64_t kAbortMessageBytes = 512;

// A rank's own part of the shared memory.
inline constexpr int64_t SharedRegionBytes(int32_t ranks) {
  return ranks < 2 ? 0 : kSharedRankHeaderBytes + kSharedSlots * kSharedSlotBytes;
}

// Bytes of that and of the slice that the rank has added up and not shown yet.
inline constexpr int64_t SharedCollectiveBytes(int32_t ranks) {
  return ranks < 2 ? 0 : SharedRegionBytes(ranks) + kSharedSlotBytes / (ranks + 1);
}

// A rank whose device has memory of its own: two pinned buffers of this size for each group, beside what the group has.
inline constexpr int64_t kStagedPieceBytes = int64_t{16} << 20;

// Bytes of a rank whose group spans hosts. For each other rank: its slots, one message that has been taken and is being
// read, and as many messages to it as there are slots, made or not acknowledged. Besides, one message, because the
// first ones of a channel are copied, and half of one that has been added up and not been sent yet.
inline constexpr int64_t MessageCollectiveBytes(int32_t ranks) {
  if (ranks < 2) {
    return 0;
  }
  const int64_t others = ranks - 1;
  return (others * (2 * kCollectiveMessageSlots + 1) + 1) * kCollectiveMessageBytes + kCollectiveMessageBytes / 2 +
         2 * others * kAbortMessageBytes;
}

// Messages of a channel that a transport keeps memory for, by its slots, at either end, where that memory is not the
// device's: at the receiver slots, and as many messages that the device still copies; at the sender those that the
// slots hold, and as many that await acknowledgement.
inline constexpr int64_t kReadyPerSlot = 2;

// MessageCollectiveBytes of a rank whose device has memory of its own. Pieces that are shorter than a slot have memory
// of their own.
inline constexpr int64_t ReadyMessageCollectiveBytes(int32_t ranks) {
  if (ranks < 2) {
    return 0;
  }
  const int64_t others = ranks - 1;
  const int64_t shorter = kCollectiveMessageSlots + 1;
  return others * (2 * kReadyPerSlot * kCollectiveMessageSlots + shorter) * kCollectiveMessageBytes +
         kCollectiveMessageBytes / 2 + others * 2 * kReadyPerSlot * kAbortMessageBytes;
}

}  // namespace geopipe
