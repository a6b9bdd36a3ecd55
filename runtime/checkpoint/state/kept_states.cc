#include "runtime/checkpoint/state/kept_states.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <iterator>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "runtime/base/clock.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/files.h"
#include "runtime/base/host_memory.h"
#include "runtime/base/log.h"

namespace geopipe {
namespace {

constexpr int64_t kBytesBetweenLooks = int64_t{256} << 20;
// Bytes that are copied and summed at a time: they stay in the cache from the one to the other.
constexpr size_t kPieceBytes = size_t{256} << 10;

absl::Status NoRoom(int64_t bytes, std::string_view reason) {
  return OfNode(absl::ResourceExhaustedError(fmt::format(
      "{} of shared memory ({} bytes) for the last two states of this rank cannot be had: {}; free memory on "
      "this node or choose another recovery than memory",
      FormatBytes(bytes), bytes, reason)));
}

std::string NameOfState(const StateIdentity& state) {
  return fmt::format("the state before iteration {} (epoch {})", state.iteration, state.epoch);
}

absl::Status Protect(std::byte* memory, int64_t bytes, bool writes) {
  if (mprotect(memory, static_cast<size_t>(bytes), writes ? PROT_READ | PROT_WRITE : PROT_READ) != 0) {
    return ErrnoStatus(errno, "cannot change how the memory for states is protected");
  }
  return absl::OkStatus();
}

}  // namespace

// A stage of a state, where it is held.
class KeptStates::Source final : public WeightSource {
 public:
  Source(const KeptStates& states, const KeptSlot& slot, int32_t stage)
      : slot_(slot), state_(slot.state()), room_(states.RoomOf(slot)) {
    std::ranges::copy_if(states.layout_.tensors, std::back_inserter(tensors_),
                         [stage](const KeptTensor& tensor) { return tensor.stage == stage; });
  }

  bool empty() const { return tensors_.empty(); }

  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override {
    return ReadPiece(WholeTensor(name, shape), values);
  }
  absl::StatusOr<bool> ReadMoments(std::string_view name, const std::vector<int64_t>& shape, std::span<float> first,
                                   std::span<float> second) override {
    return ReadMomentsPiece(WholeTensor(name, shape), first, second);
  }

  absl::Status ReadPiece(const TensorPiece& piece, std::span<float> values) override {
    GP_ASSIGN_OR_RETURN(const KeptTensor* tensor, Find(piece));
    Copy(*tensor, 0, values);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> ReadMomentsPiece(const TensorPiece& piece, std::span<float> first,
                                        std::span<float> second) override {
    GP_ASSIGN_OR_RETURN(const KeptTensor* tensor, Find(piece));
    Copy(*tensor, 1, first);
    Copy(*tensor, 2, second);
    return true;
  }

 private:
  absl::StatusOr<const KeptTensor*> Find(const TensorPiece& piece) const {
    const std::string& name = piece.tensor.name;
    const auto found = std::ranges::find(tensors_, name, &KeptTensor::name);
    if (found == tensors_.end()) {
      return absl::NotFoundError(
          fmt::format("the state that is kept in memory has no tensor {}; read a checkpoint instead", name));
    }
    if (found->shape != piece.tensor.shape) {
      return absl::InvalidArgumentError(
          fmt::format("the tensor {} that is kept in memory has shape [{}], not [{}]; read a checkpoint instead", name,
                      fmt::join(found->shape, ", "), fmt::join(piece.tensor.shape, ", ")));
    }
    if (found->tensor_ranks != piece.tensor_ranks || found->tensor_rank != piece.tensor_rank ||
        found->first != piece.first || found->elements != piece.count) {
      return absl::InvalidArgumentError(fmt::format(
          "of the tensor {} elements {} to {} of tensor rank {} of {} are kept in memory, not {} to {} of {} of {}; "
          "read a checkpoint instead",
          name, found->first, found->first + found->elements, found->tensor_rank, found->tensor_ranks, piece.first,
          piece.first + piece.count, piece.tensor_rank, piece.tensor_ranks));
    }
    return &*found;
  }

  // Copies the value (number 0) or a moment (1 and 2).
  void Copy(const KeptTensor& tensor, int64_t number, std::span<float> values) const {
    GP_CHECK(slot_.Holds(state_), "{} is gone while it is read", NameOfState(state_));
    GP_CHECK(std::ssize(values) == tensor.elements, "{} elements of {} are wanted, it has {}", values.size(),
             tensor.name, tensor.elements);
    std::memcpy(values.data(), room_ + tensor.offset + number * tensor.room_bytes(), values.size_bytes());
  }

  const KeptSlot& slot_;
  const StateIdentity state_;
  const std::byte* room_;
  std::vector<KeptTensor> tensors_;
};

void KeptStates::Unmap::operator()(std::byte* memory) const { munmap(memory, bytes); }

KeptLayout KeptStates::LayoutOf(std::span<const Stage> stages) {
  std::vector<KeptTensor> tensors;
  for (const Stage& stage : stages) {
    for (const Parameter& parameter : stage.parameters) {
      const TensorPiece& piece = parameter.piece;
      if (piece.count > 0) {
        tensors.push_back({.stage = stage.stage,
                           .name = piece.tensor.name,
                           .shape = piece.tensor.shape,
                           .tensor_ranks = piece.tensor_ranks,
                           .tensor_rank = piece.tensor_rank,
                           .first = piece.first,
                           .elements = piece.count,
                           .offset = 0});
      }
    }
  }
  return KeptLayout::Of(std::move(tensors), sizeof(KeptHead));
}

int64_t KeptStates::BytesFor(std::span<const Stage> stages) { return LayoutOf(stages).bytes(); }

absl::StatusOr<KeptStates> KeptStates::Open(UniqueFd fd) {
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) {
    return ErrnoStatus(errno, fmt::format("cannot look at the memory for states, descriptor {}", fd.get()));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        fmt::format("descriptor {} is no shared memory for states; give one that memfd_create has made", fd.get()));
  }
  KeptStates states(std::move(fd));
  if (info.st_size >= static_cast<int64_t>(sizeof(KeptHead))) {
    GP_RETURN_IF_ERROR(states.Map(info.st_size));
    if (!states.TakeWhatIsThere(info.st_size)) {
      states.memory_.reset();
    }
  }
  return states;
}

absl::Status KeptStates::Map(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* address = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd_.get(), 0);  // LetWrite
  if (address == MAP_FAILED) {
    return ErrnoStatus(errno, fmt::format("cannot map {} of memory for states", FormatBytes(bytes)));
  }
  memory_ = std::unique_ptr<std::byte, Unmap>(static_cast<std::byte*>(address), Unmap{size});
  is_writable_ = false;
  is_checked_ = {};
  return absl::OkStatus();
}

absl::Status KeptStates::LetWrite(bool writes) {
  if (is_writable_ != writes) {
    GP_RETURN_IF_ERROR(Protect(memory_.get(), layout_.bytes(), writes));
    is_writable_ = writes;
  }
  return absl::OkStatus();
}

// Takes over the mapped contents; false: this version did not write them.
bool KeptStates::TakeWhatIsThere(int64_t bytes) {
  const KeptHead& head = this->head();
  if (head.magic != kKeptMagic || head.version != kKeptVersion ||
      head.layout_bytes > bytes - static_cast<int64_t>(sizeof(KeptHead))) {
    return false;
  }
  const std::span<const std::byte> text(memory_.get() + sizeof(KeptHead), head.layout_bytes);
  if (ChecksumOf(head, text) != head.crc32c) {
    return false;
  }
  std::optional<std::vector<KeptTensor>> tensors = KeptLayout::Parse(text);
  if (!tensors.has_value()) {
    return false;
  }
  layout_ = KeptLayout::Of(*std::move(tensors), sizeof(KeptHead));
  return layout_.bytes() == bytes && ForgetDamaged();
}

bool KeptStates::IsAsSaved(const KeptSlot& slot) const {
  bool& is_checked = is_checked_[static_cast<size_t>(&slot - head().slots.data())];
  is_checked = is_checked || SumOf(slot.state(), RoomOf(slot), layout_.tensors) == slot.crc32c;
  return is_checked;
}

bool KeptStates::ForgetDamaged() {
  for (const KeptSlot& slot : head().slots) {
    if (slot.order.load(std::memory_order_acquire) == 0 || IsAsSaved(slot)) {
      continue;
    }
    LogError(
        "{} of rank {} that was kept in memory is not used: its bytes are not those of its checksum, so the process "
        "before has damaged it, or this node's memory is bad; another state, a replica or a checkpoint serves",
        NameOfState(slot.state()), head().rank);
    if (!SetOrder(slot, 0).ok()) {
      return false;
    }
  }
  return true;
}

absl::Status KeptStates::Prepare(const Owner& owner, std::span<const Stage> stages) {
  GP_RETURN_IF_ERROR(Settle());
  KeptLayout layout = LayoutOf(stages);
  if (this->owner() != owner || layout_ != layout) {
    Detach();
    memory_.reset();
    layout_ = std::move(layout);
    absl::Status status = TakeRoom(layout_.bytes());
    if (status.ok()) {
      status = Map(layout_.bytes());
    }
    if (status.ok()) {
      status = WriteHead(owner);
    }
    if (!status.ok()) {
      memory_.reset();
      GiveBack();
      return status;
    }
  }
  // The pages are taken now, so that no Save waits for them one by one. A system that cannot do this takes them in the
  // first Saves.
  GP_RETURN_IF_ERROR(LetWrite(true));
#ifdef MADV_POPULATE_WRITE
  madvise(memory_.get(), static_cast<size_t>(layout_.bytes()), MADV_POPULATE_WRITE);
#endif
  return LetWrite(attached_ != nullptr && attached_->space() == MemorySpace::kDevice);
}

// Gives back the old memory and takes `bytes` of zeros, every page of them: one that is missing later would end the
// process.
absl::Status KeptStates::TakeRoom(int64_t bytes) {
  if (ftruncate(fd_.get(), 0) != 0) {
    return NoRoom(bytes, std::string(ErrnoStatus(errno, "cannot give the old memory back").message()));
  }
  for (int64_t taken = 0; taken < bytes;) {
    // Taking more than there is would not fail: the system would begin to end processes. Others may take some, too,
    // the other ranks of the node for one.
    if (const std::optional<int64_t> available = AvailableMemoryBytes();
        available.has_value() && bytes - taken > *available) {
      return NoRoom(bytes, fmt::format("{} are available", FormatBytes(taken + *available)));
    }
    const int64_t part = std::min(bytes - taken, kBytesBetweenLooks);
    if (fallocate(fd_.get(), 0, taken, part) == 0) {
      taken += part;
    } else if (errno != EINTR) {
      return NoRoom(bytes, std::string(ErrnoStatus(errno, "cannot take it").message()));
    }
  }
  return absl::OkStatus();
}

void KeptStates::GiveBack() {
  const int ignored = ftruncate(fd_.get(), 0);  // else it goes with the keeper's descriptor
  (void)ignored;
}

// Writes the head. A process that is killed meanwhile leaves a wrong checksum, or two empty slots. REQUIRES: the memory
// is all zeros.
absl::Status KeptStates::WriteHead(const Owner& owner) {
  const std::string text = KeptLayout::Text(layout_.tensors);
  GP_RETURN_IF_ERROR(Write(sizeof(KeptHead), std::as_bytes(std::span(text))));
  KeptHead head{};
  head.magic = kKeptMagic;
  head.version = kKeptVersion;
  head.run_incarnation = owner.run_incarnation;
  head.rank = owner.rank;
  head.layout_bytes = static_cast<uint32_t>(text.size());
  head.crc32c = ChecksumOf(head, std::as_bytes(std::span(text)));
  return Write(0, std::as_bytes(std::span(&head, 1)));
}

absl::Status KeptStates::Write(int64_t at, std::span<const std::byte> bytes) const {
  return WriteAt(fd_.get(), at, bytes);
}

absl::Status KeptStates::SetOrder(const KeptSlot& slot, uint64_t order) const {
  return Write(reinterpret_cast<const std::byte*>(&slot.order) - memory_.get(), std::as_bytes(std::span(&order, 1)));
}

const KeptHead& KeptStates::head() const { return *reinterpret_cast<const KeptHead*>(memory_.get()); }

std::byte* KeptStates::RoomOf(const KeptSlot& slot) const {
  return memory_.get() + layout_.head_bytes + (&slot - head().slots.data()) * layout_.state_bytes;
}

// The slot of a state; nullptr: it is not held.
const KeptSlot* KeptStates::Find(const StateIdentity& state) const {
  const auto found = std::ranges::find_if(head().slots, [&](const KeptSlot& slot) { return slot.Holds(state); });
  return found == head().slots.end() ? nullptr : &*found;
}

uint64_t KeptStates::NextOrder() const {
  uint64_t last = 0;
  for (const KeptSlot& slot : head().slots) {
    last = std::max(last, slot.order.load(std::memory_order_relaxed));
  }
  return last + 1;
}

void KeptStates::CheckStages(std::span<const Stage> stages) const {
  auto tensor = layout_.tensors.begin();
  for (const Stage& stage : stages) {
    for (const Parameter& parameter : stage.parameters) {
      if (parameter.piece.count == 0) {
        continue;
      }
      GP_CHECK(tensor != layout_.tensors.end() && tensor->stage == stage.stage && tensor->name == parameter.spec.name &&
                   tensor->elements == parameter.master.elements(),
               "{} of stage {} is saved where there is no room for it", parameter.spec.name, stage.stage);
      ++tensor;
    }
  }
  GP_CHECK(tensor == layout_.tensors.end(), "a state is saved without {}", tensor->name);
}

uint32_t KeptStates::CopySummed(std::byte* room, const StateIdentity& state, std::span<const Stage> stages) const {
  uint32_t sum = SumOf(state);
  auto kept = layout_.tensors.begin();
  for (const Stage& stage : stages) {
    for (const Parameter& parameter : stage.parameters) {
      if (parameter.piece.count == 0) {
        continue;
      }
      std::byte* to = room + kept->offset;
      for (const Tensor* tensor : {&parameter.master, &parameter.first_moment, &parameter.second_moment}) {
        const std::span<const std::byte> bytes(tensor->address(), static_cast<size_t>(tensor->bytes()));
        for (size_t at = 0; at < bytes.size(); at += kPieceBytes) {
          const std::span<const std::byte> piece = bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at));
          std::memcpy(to + at, piece.data(), piece.size());
          sum = Crc32c({to + at, piece.size()}, sum);
        }
        to += kept->room_bytes();
      }
      ++kept;
    }
  }
  return sum;
}

bool KeptStates::LieOnHost(std::span<const Stage> stages) {
  for (const Stage& stage : stages) {
    for (const Parameter& parameter : stage.parameters) {
      if (parameter.piece.count > 0) {
        return parameter.master.allocator().device().space() == MemorySpace::kHost;
      }
    }
  }
  return true;  // there is nothing to copy
}

absl::StatusOr<Completion> KeptStates::CopyTo(std::byte* room, std::span<const Stage> stages) const {
  Device* device = nullptr;
  auto kept = layout_.tensors.begin();
  for (const Stage& stage : stages) {
    for (const Parameter& parameter : stage.parameters) {
      if (parameter.piece.count == 0) {
        continue;
      }
      if (device == nullptr) {
        device = &parameter.master.allocator().device();
        GP_RETURN_IF_ERROR(device->After(Queue::kOut, device->Record(Queue::kCompute)));
      }
      std::byte* to = room + kept->offset;
      for (const Tensor* tensor : {&parameter.master, &parameter.first_moment, &parameter.second_moment}) {
        GP_RETURN_IF_ERROR(device->Copy(tensor->address(), to, tensor->bytes(), Queue::kOut));
        to += kept->room_bytes();
      }
      ++kept;
    }
  }
  return device == nullptr ? Completion() : device->Record(Queue::kOut);
}

absl::Status KeptStates::Attach(Device& device) {
  GP_CHECK(memory_ != nullptr, "there is no room for a state; Prepare was not called");
  Detach();
  if (device.space() == MemorySpace::kDevice) {
    GP_RETURN_IF_ERROR(LetWrite(true));
  }
  if (const absl::Status status = device.Register(memory_.get(), layout_.bytes()); !status.ok()) {
    return Reworded(status,
                    fmt::format("the device cannot copy to the memory for the last two states of this rank: {}; "
                                "choose another recovery than memory",
                                std::string(status.message())));
  }
  attached_ = &device;
  return absl::OkStatus();
}

void KeptStates::Detach() {
  if (attached_ != nullptr) {
    static_cast<void>(Settle());
    std::exchange(attached_, nullptr)->Unregister(memory_.get());
    static_cast<void>(LetWrite(false));
  }
}

absl::Status KeptStates::Settle() const {
  for (const Completion* each : {&copy_, &held_}) {
    const absl::Status status = each->done() ? absl::OkStatus() : HostDevice().Wait(*each, DeviceDeadlineNs());
    if (!each->done()) {
      return status;
    }
  }
  return absl::OkStatus();  // what has failed is over, too
}

absl::StatusOr<Completion> KeptStates::Save(const StateIdentity& state, std::span<const Stage> stages) {
  GP_CHECK(memory_ != nullptr, "there is no room for a state; Prepare was not called");
  CheckStages(stages);
  if (!held_.done() && copied_ == state) {
    return copy_;
  }
  GP_RETURN_IF_ERROR(Settle());
  const uint64_t order = NextOrder();
  if (const KeptSlot* held = Find(state); held != nullptr) {
    GP_RETURN_IF_ERROR(SetOrder(*held, order));
    return Completion();
  }
  const KeptSlot& slot = *std::ranges::min_element(
      head().slots, {}, [](const KeptSlot& each) { return each.order.load(std::memory_order_relaxed); });
  GP_RETURN_IF_ERROR(SetOrder(slot, 0));
  is_checked_[static_cast<size_t>(&slot - head().slots.data())] = false;
  const int64_t slot_at = reinterpret_cast<const std::byte*>(&slot) - memory_.get();
  if (LieOnHost(stages)) {
    // The room is mapped for reading, but for the time of the copy.
    GP_RETURN_IF_ERROR(Protect(RoomOf(slot), layout_.state_bytes, /*writes=*/true));
    const uint32_t sum = CopySummed(RoomOf(slot), state, stages);
    GP_RETURN_IF_ERROR(Protect(RoomOf(slot), layout_.state_bytes, /*writes=*/false));
    GP_RETURN_IF_ERROR(WriteSlot(
        fd_.get(), slot_at,
        KeptSlot{.order = order, .iteration = state.iteration, .epoch = state.epoch, .crc32c = sum, .unused = 0}));
    return Completion::At(Clock::Real().NowNs());
  }
  GP_RETURN_IF_ERROR(LetWrite(true));
  GP_ASSIGN_OR_RETURN(copy_, CopyTo(RoomOf(slot), stages));
  copied_ = state;
  held_ = Completion::Pending();
  const std::function<void()> sum = late_.Later(
      [fd = fd_.get(), slot_at, room = RoomOf(slot), tensors = layout_.tensors, state, order, held = held_]() mutable {
        const absl::Status status = WriteSlot(fd, slot_at,
                                              KeptSlot{.order = order,
                                                       .iteration = state.iteration,
                                                       .epoch = state.epoch,
                                                       .crc32c = SumOf(state, room, tensors),
                                                       .unused = 0});
        const int64_t now_ns = Clock::Real().NowNs();
        if (status.ok()) {
          held.Complete(now_ns, now_ns);
        } else {
          held.Fail(status);
        }
      });
  copy_.Then([sum, copy = copy_, held = held_]() mutable {
    if (copy.status().ok()) {
      sum();
    } else {
      held.Fail(copy.status());
    }
  });
  return copy_;
}

std::optional<KeptStates::Owner> KeptStates::owner() const {
  return memory_ == nullptr ? std::nullopt
                            : std::optional(Owner{.run_incarnation = head().run_incarnation, .rank = head().rank});
}

std::vector<StateIdentity> KeptStates::List(uint64_t run_incarnation) const {
  std::vector<StateIdentity> states;
  if (memory_ == nullptr || head().run_incarnation != run_incarnation) {
    return states;
  }
  std::array<const KeptSlot*, 2> slots{&head().slots[0], &head().slots[1]};
  std::ranges::sort(slots, std::greater<>(), [](const KeptSlot* slot) { return slot->order.load(); });
  for (const KeptSlot* slot : slots) {
    if (slot->order.load(std::memory_order_acquire) != 0) {
      states.push_back(slot->state());
    }
  }
  return states;
}

absl::StatusOr<std::unique_ptr<WeightSource>> KeptStates::Read(const Owner& owner, const StateIdentity& state,
                                                               int32_t stage) const {
  const KeptSlot* slot = this->owner() == owner ? Find(state) : nullptr;
  if (slot == nullptr) {
    return absl::NotFoundError(
        fmt::format("{} of rank {} is not kept in memory on this device; read a checkpoint instead", NameOfState(state),
                    owner.rank));
  }
  if (!IsAsSaved(*slot)) {
    return absl::InternalError(fmt::format(
        "{} of rank {}, which this process has kept in memory, has other bytes than it was saved with; this "
        "process or this node's memory damages what it holds",
        NameOfState(state), owner.rank));
  }
  auto source = std::make_unique<Source>(*this, *slot, stage);
  if (source->empty()) {
    return absl::NotFoundError(
        fmt::format("{} of rank {} is kept in memory without stage {}; read a checkpoint instead", NameOfState(state),
                    owner.rank, stage));
  }
  return source;
}

void KeptStates::Forget() {
  static_cast<void>(Settle());
  if (memory_ != nullptr) {
    for (const KeptSlot& slot : head().slots) {
      static_cast<void>(SetOrder(slot, 0));
    }
  }
}

}  // namespace geopipe
