// The last two states of a rank, in memory that outlives its process: a memfd that the node's keeper holds
// (agent/keeper.h), so that the successor of a killed process resumes from there without reading a checkpoint.
//
// Layout: a head with the owner, the tensors and a checksum of both, then room for two states. One word of each state
// says which it is, and is zero while the state is being copied; a process that is killed at any instant thus leaves
// the other state whole. The states themselves have no checksum, which would take as long as the copy: bytes that a
// killed process has written to shared memory stay as it wrote them, in the order of its program, and the word is
// written last.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/model/state_identity.h"
#include "runtime/base/unique_fd.h"
#include "runtime/model/parameters.h"
#include "runtime/model/weight_source.h"
#include "runtime/tensor/completion.h"
#include "runtime/tensor/device.h"

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

  // Takes the memory of `fd` with its contents. Contents that are damaged, or not of this version, are ignored. Errors:
  // it is no shared memory, or cannot be mapped.
  static absl::StatusOr<KeptStates> Open(UniqueFd fd);

  KeptStates(KeptStates&&) noexcept = default;
  KeptStates& operator=(KeptStates&&) noexcept = default;

  // Bytes of memory that two states of these stages take: 24 per parameter that the rank updates, and a little.
  static int64_t BytesFor(std::span<const Stage> stages);

  // Takes room for two states of these stages, of whose parameters only `piece` matters. States of the same owner and
  // tensors stay; any others are forgotten and their memory given back. ResourceExhausted names the bytes: there is too
  // little memory; no state is held then, and there is no room. DeadlineExceeded: a device is still at a copy.
  absl::Status Prepare(const Owner& owner, std::span<const Stage> stages);

  // Lets the device copy to the room that Prepare took, until Detach, which comes before the device goes, or until
  // Prepare takes another. Errors: those of Device::Register.
  absl::Status Attach(Device& device);
  // Waits for copies that are under way.
  void Detach();

  // Begins to copy weights and moments, as the kernels enqueued before leave them, over the older of the two states;
  // the state is held when the copy, on the device's out queue, is over. Waits for the copy before, if that is not
  // over: two at once would leave no whole state. A state that is held already is not copied again (states of one run
  // and identity have the same bits), but counts as the newer of the two from now on: a process that resumes from the
  // older one saves it first, and so does not lose it before there is another. Errors: those of the device, at once or
  // of the copy; the older state is then lost, the newer one is not. REQUIRES: Prepare, of the same stages, was ok;
  // nothing writes to weights and moments, nor gives up their memory, before the copy is over.
  absl::StatusOr<Completion> Save(const StateIdentity& state, std::span<const Stage> stages);

  // Owner of the states that are held or would be; nullopt: there is no room for any.
  std::optional<Owner> owner() const;

  // Lists the states of this run that are held whole, the one saved last first. Also before Prepare.
  std::vector<StateIdentity> List(uint64_t run_incarnation) const;

  // Returns a source of a stage's weights and moments in a state. NotFound: the state is not held. The source fails for
  // tensors that the stage does not have (NotFound) or has in another shape (InvalidArgument); it must not be used
  // after the next call of Prepare or Forget, nor after a Save that takes the state's place, nor outlive this.
  absl::StatusOr<std::unique_ptr<WeightSource>> Read(const Owner& owner, const StateIdentity& state,
                                                     int32_t stage) const;

  // Forgets all states; the room for them stays.
  void Forget();

 private:
  struct Head;
  struct Slot;
  // The piece of one tensor whose states the rank has.
  struct KeptTensor {
    int32_t stage = 0;
    std::string name;
    std::vector<int64_t> shape;  // of the whole tensor
    int64_t tensor_ranks = 1;    // a TensorPiece's
    int64_t tensor_rank = 0;
    int64_t first = 0;
    int64_t elements = 0;
    int64_t offset = 0;  // in a state, of the value; the moments follow it

    friend bool operator==(const KeptTensor&, const KeptTensor&) = default;
  };
  struct Layout {
    std::vector<KeptTensor> tensors;
    int64_t head_bytes = 0;
    int64_t state_bytes = 0;

    int64_t bytes() const;
    friend bool operator==(const Layout&, const Layout&) = default;
  };
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };
  class Source;

  explicit KeptStates(UniqueFd fd) : fd_(std::move(fd)) {}

  static std::string LayoutText(const std::vector<KeptTensor>& tensors);
  static std::optional<std::vector<KeptTensor>> ParseLayout(std::span<const std::byte> text);
  static Layout LayoutOf(std::vector<KeptTensor> tensors);
  static Layout LayoutOf(std::span<const Stage> stages);
  static uint32_t Checksum(const Head& head, std::span<const std::byte> layout);

  absl::Status Map(int64_t bytes);
  bool TakeWhatIsThere(int64_t bytes);
  absl::Status TakeRoom(int64_t bytes);
  void GiveBack();
  void WriteHead(const Owner& owner);
  void CheckStages(std::span<const Stage> stages) const;
  // Enqueues the copy of a state to its room.
  absl::StatusOr<Completion> CopyTo(std::byte* room, std::span<const Stage> stages) const;
  // Waits until no copy is under way. DeadlineExceeded: the device is stuck.
  absl::Status Settle() const;

  Head& head() const;
  Slot* Find(const StateIdentity& state) const;
  std::byte* RoomOf(const Slot& slot) const;
  uint64_t NextOrder() const;

  UniqueFd fd_;
  std::unique_ptr<std::byte, Unmap> memory_;  // null: no room
  Layout layout_;                             // of memory_
  Device* attached_ = nullptr;
  StateIdentity copied_;  // the latest copy's
  Completion copy_;
};

}  // namespace geopipe
