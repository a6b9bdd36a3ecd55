// The last two states of a rank, in memory that outlives its process: a memfd that the node's keeper holds
// (agent/keeper.h), so that the successor of a killed process resumes from there without reading a checkpoint.
//
// Layout: a head with the owner, the tensors and a checksum of both, then room for two states. One word of each state
// says which of the two is the newer, and is zero while the state is being copied; it is written last, so that a
// process that is killed at any instant leaves the other state whole.
//
// A process that crashes may have written anywhere before. Each state therefore has a checksum (CRC-32C) of its bytes
// and of the state that it is, and counts only with it; whoever takes the memory over checks both states, and forgets
// one that is not as it was saved. A state in memory of the host is copied and summed piece by piece, while the piece
// is in the cache. A device with memory of its own copies by itself; a thread sums its copy when it is over. A process
// that dies in between leaves the state before.
//
// The mapping is for reading only, so that stray writes do not reach it, but for the room of a state while the host
// copies to it, and for all of it as long as it is registered with a device that copies. The head is written through
// the descriptor.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "optimizer/model/state_identity.h"
#include "runtime/base/unique_fd.h"
#include "runtime/checkpoint/state/kept_head.h"
#include "runtime/checkpoint/state/kept_layout.h"
#include "runtime/model/parameters.h"
#include "runtime/model/weight_source.h"
#include "runtime/tensor/completion.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/late_work.h"

namespace geopipe {

// Move-only; one thread at a time, and one process at a time per memory.
class KeptStates {
 public:
  // Identity of the rank that the states belong to.
  struct Owner {
    uint64_t run_incarnation = 0;
    int32_t rank = 0;

    friend bool operator==(const Owner&, const Owner&) = default;
  };
  // A stage of the rank, by its number.
  struct Stage {
    int32_t stage = 0;
    std::span<const Parameter> parameters{};
  };

  // Takes the memory of `fd` with its contents. Contents of which the head is damaged, or not of this version, are
  // ignored; a state whose bytes are not those of its checksum is forgotten, and the log says so. This reads both
  // states, at some 8 GB/s. Errors: it is no shared memory, or cannot be mapped.
  static absl::StatusOr<KeptStates> Open(UniqueFd fd);

  KeptStates(KeptStates&&) noexcept = default;
  KeptStates& operator=(KeptStates&&) = delete;

  // Bytes of memory that two states of these stages take: 24 per parameter that the rank updates, and a little.
  static int64_t BytesFor(std::span<const Stage> stages);

  // Takes room for two states of these stages, of whose parameters only `piece` matters. States of the same owner and
  // tensors stay; any others are forgotten and their memory given back. ResourceExhausted names the bytes: there is too
  // little memory; no state is held then, and there is no room. DeadlineExceeded: a device is still at a copy.
  absl::Status Prepare(const Owner& owner, std::span<const Stage> stages);

  // Lets the device copy to the room that Prepare took, until Detach, which comes before the device goes, or until
  // Prepare takes another. Errors: those of Device::Register; the system does not let the room be written to.
  absl::Status Attach(Device& device);
  // Waits for a state that is on its way.
  void Detach();

  // Begins to copy weights and moments, as the kernels enqueued before leave them, over the older of the two states;
  // returns the copy, on the device's out queue. The state is held when it has been summed, too: from memory of the
  // host when this returns, else some time after the copy, without anybody waiting (Settle does). Waits for the state
  // before, if that is not held yet: two at once would leave no whole state. A state that is held already is not copied
  // again (states of one run and identity have the same bits), but counts as the newer of the two from now on: a
  // process that resumes from the older one saves it first, and so does not lose it before there is another. Errors:
  // those of the device, at once or of the copy; the older state is then lost, the newer one is not. REQUIRES: Prepare,
  // of the same stages, was ok; nothing writes to weights and moments, nor gives up their memory, before the copy is
  // over.
  absl::StatusOr<Completion> Save(const StateIdentity& state, std::span<const Stage> stages);

  // Waits until no state is on its way: the last one that was saved is held, or was lost. DeadlineExceeded: the device
  // is stuck.
  absl::Status Settle() const;

  // Owner of the states that are held or would be; nullopt: there is no room for any.
  std::optional<Owner> owner() const;

  // Lists the states of this run that are held whole, the one saved last first. Also before Prepare.
  std::vector<StateIdentity> List(uint64_t run_incarnation) const;

  // Returns a source of a stage's weights and moments in a state. NotFound: the state is not held. Internal: the state,
  // which this process has saved, is not as it was saved, so that this process is not to be trusted. The source fails
  // for tensors that the stage does not have (NotFound) or has in another shape (InvalidArgument); it must not be used
  // after the next call of Prepare or Forget, nor after a Save that takes the state's place, nor outlive this.
  absl::StatusOr<std::unique_ptr<WeightSource>> Read(const Owner& owner, const StateIdentity& state,
                                                     int32_t stage) const;

  // Forgets all states; the room for them stays.
  void Forget();

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };
  class Source;

  explicit KeptStates(UniqueFd fd) : fd_(std::move(fd)) {}

  static KeptLayout LayoutOf(std::span<const Stage> stages);

  absl::Status Map(int64_t bytes);
  bool TakeWhatIsThere(int64_t bytes);
  // Forgets the states that are not as they were saved; false: it cannot.
  bool ForgetDamaged();
  absl::Status TakeRoom(int64_t bytes);
  void GiveBack();
  absl::Status WriteHead(const Owner& owner);
  // Lets this process and its devices write to all of the mapping, or no more. Errors: the system's.
  absl::Status LetWrite(bool writes);
  void CheckStages(std::span<const Stage> stages) const;
  static bool LieOnHost(std::span<const Stage> stages);
  // Copies a state from the host's memory to its room, and returns its checksum.
  uint32_t CopySummed(std::byte* room, const StateIdentity& state, std::span<const Stage> stages) const;
  // Enqueues a device's copy of a state to its room.
  absl::StatusOr<Completion> CopyTo(std::byte* room, std::span<const Stage> stages) const;
  // Checks the slot's state against its checksum, once.
  bool IsAsSaved(const KeptSlot& slot) const;

  // Writes to the head through the descriptor.
  absl::Status Write(int64_t at, std::span<const std::byte> bytes) const;
  absl::Status SetOrder(const KeptSlot& slot, uint64_t order) const;

  const KeptHead& head() const;
  const KeptSlot* Find(const StateIdentity& state) const;
  std::byte* RoomOf(const KeptSlot& slot) const;
  uint64_t NextOrder() const;

  UniqueFd fd_;
  std::unique_ptr<std::byte, Unmap> memory_;  // null: no room
  bool is_writable_ = false;                  // the mapping
  KeptLayout layout_;                         // of memory_
  mutable std::array<bool, 2> is_checked_{};  // the states of the slots, since they were written
  Device* attached_ = nullptr;
  StateIdentity copied_;  // the latest copy's
  Completion copy_;
  Completion held_;  // its state is, or is lost
  LateWork late_;    // goes first: it works with the memory
};

}  // namespace geopipe
