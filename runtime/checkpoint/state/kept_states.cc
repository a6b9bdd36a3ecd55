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
#include "runtime/base/crc32c.h"
#include "runtime/base/files.h"
#include "runtime/base/host_memory.h"

namespace geopipe {
namespace {

constexpr uint64_t kKeptMagic = 0x3153'4554'4154'5347;  // "GSTATES1"
constexpr uint32_t kKeptVersion = 2;
constexpr int64_t kTensorAlignment = 64;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kBytesBetweenLooks = int64_t{256} << 20;
constexpr int64_t kMaxElements = int64_t{1} << 48;  // of all tensors; so no sum of bytes overflows

constexpr int64_t RoundUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

// Bytes of a value or a moment.
int64_t RoomFor(int64_t elements) { return RoundUp(elements * static_cast<int64_t>(sizeof(float)), kTensorAlignment); }

template <class Number>
void Put(std::string& text, Number number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

class LayoutReader {
 public:
  explicit LayoutReader(std::span<const std::byte> text) : text_(text) {}

  // Reads a number; false: the text ends before it.
  template <class Number>
  bool Get(Number& number) {
    const std::span<const std::byte> bytes = Next(sizeof(number));
    if (bytes.empty()) {
      return false;
    }
    std::memcpy(&number, bytes.data(), sizeof(number));
    return true;
  }
  bool Get(std::string& value, uint32_t size) {
    const std::span<const std::byte> bytes = Next(size);
    value.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return bytes.size() == size;
  }
  bool at_end() const { return text_.empty(); }

 private:
  std::span<const std::byte> Next(size_t size) {
    if (text_.size() < size) {
      return {};
    }
    const std::span<const std::byte> bytes = text_.first(size);
    text_ = text_.subspan(size);
    return bytes;
  }

  std::span<const std::byte> text_;
};

absl::Status NoRoom(int64_t bytes, std::string_view reason) {
  return OfNode(absl::ResourceExhaustedError(fmt::format(
      "{} of shared memory ({} bytes) for the last two states of this rank cannot be had: {}; free memory on "
      "this node or choose another recovery than memory",
      FormatBytes(bytes), bytes, reason)));
}

std::string NameOfState(const StateIdentity& state) {
  return fmt::format("the state before iteration {} (epoch {})", state.iteration, state.epoch);
}

}  // namespace

struct KeptStates::Slot {
  // 0: no whole state is held. Else the greater, the later the state was saved.
  std::atomic<uint64_t> order;
  int64_t iteration;
  uint64_t epoch;

  bool Holds(const StateIdentity& state) const {
    return order.load(std::memory_order_acquire) != 0 && iteration == state.iteration && epoch == state.epoch;
  }
};

// The head of the memory; the layout's text follows.
struct KeptStates::Head {
  uint64_t magic;
  uint32_t version;
  uint32_t crc32c;  // of the three below and the layout
  uint64_t run_incarnation;
  int32_t rank;
  uint32_t layout_bytes;
  std::array<Slot, 2> slots;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);  // or another process would not understand it

// A stage of a state, where it is held.
class KeptStates::Source final : public WeightSource {
 public:
  Source(const KeptStates& states, const Slot& slot, int32_t stage)
      : slot_(slot), state_{.iteration = slot.iteration, .epoch = slot.epoch}, room_(states.RoomOf(slot)) {
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
    std::memcpy(values.data(), room_ + tensor.offset + number * RoomFor(tensor.elements), values.size_bytes());
  }

  const Slot& slot_;
  const StateIdentity state_;
  const std::byte* room_;
  std::vector<KeptTensor> tensors_;
};

int64_t KeptStates::Layout::bytes() const { return head_bytes + 2 * state_bytes; }

void KeptStates::Unmap::operator()(std::byte* memory) const { munmap(memory, bytes); }

std::string KeptStates::LayoutText(const std::vector<KeptTensor>& tensors) {
  std::string text;
  for (const KeptTensor& tensor : tensors) {
    Put(text, tensor.stage);
    Put(text, static_cast<uint32_t>(tensor.name.size()));
    text += tensor.name;
    Put(text, static_cast<uint32_t>(tensor.shape.size()));
    for (const int64_t extent : tensor.shape) {
      Put(text, extent);
    }
    for (const int64_t number : {tensor.tensor_ranks, tensor.tensor_rank, tensor.first, tensor.elements}) {
      Put(text, number);
    }
  }
  return text;
}

// Parses a layout; nullopt: it is not one that LayoutText made of tensors that fit kMaxElements.
std::optional<std::vector<KeptStates::KeptTensor>> KeptStates::ParseLayout(std::span<const std::byte> text) {
  std::vector<KeptTensor> tensors;
  LayoutReader reader(text);
  int64_t left = kMaxElements;
  while (!reader.at_end()) {
    KeptTensor tensor;
    uint32_t size = 0;
    uint32_t dimensions = 0;
    if (!reader.Get(tensor.stage) || !reader.Get(size) || !reader.Get(tensor.name, size) || !reader.Get(dimensions)) {
      return std::nullopt;
    }
    for (uint32_t i = 0; i < dimensions; ++i) {
      int64_t extent = 0;
      if (!reader.Get(extent)) {
        return std::nullopt;
      }
      tensor.shape.push_back(extent);
    }
    if (!reader.Get(tensor.tensor_ranks) || !reader.Get(tensor.tensor_rank) || !reader.Get(tensor.first) ||
        !reader.Get(tensor.elements) || tensor.elements < 1 || tensor.elements >= left) {
      return std::nullopt;
    }
    left -= tensor.elements;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

KeptStates::Layout KeptStates::LayoutOf(std::vector<KeptTensor> tensors) {
  Layout layout;
  layout.head_bytes = RoundUp(static_cast<int64_t>(sizeof(Head) + LayoutText(tensors).size()), kPageBytes);
  for (KeptTensor& tensor : tensors) {
    tensor.offset = layout.state_bytes;
    layout.state_bytes += 3 * RoomFor(tensor.elements);
  }
  layout.state_bytes = RoundUp(layout.state_bytes, kPageBytes);
  layout.tensors = std::move(tensors);
  return layout;
}

KeptStates::Layout KeptStates::LayoutOf(std::span<const Stage> stages) {
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
  return LayoutOf(std::move(tensors));
}

uint32_t KeptStates::Checksum(const Head& head, std::span<const std::byte> layout) {
  const auto of = [](const auto& field, uint32_t crc) { return Crc32c(std::as_bytes(std::span(&field, 1)), crc); };
  return Crc32c(layout, of(head.layout_bytes, of(head.rank, of(head.run_incarnation, 0))));
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
  if (info.st_size >= static_cast<int64_t>(sizeof(Head))) {
    GP_RETURN_IF_ERROR(states.Map(info.st_size));
    if (!states.TakeWhatIsThere(info.st_size)) {
      states.memory_.reset();
    }
  }
  return states;
}

absl::Status KeptStates::Map(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (address == MAP_FAILED) {
    return ErrnoStatus(errno, fmt::format("cannot map {} of memory for states", FormatBytes(bytes)));
  }
  memory_ = std::unique_ptr<std::byte, Unmap>(static_cast<std::byte*>(address), Unmap{size});
  return absl::OkStatus();
}

// Takes over the mapped contents; false: this version did not write them.
bool KeptStates::TakeWhatIsThere(int64_t bytes) {
  const Head& head = this->head();
  if (head.magic != kKeptMagic || head.version != kKeptVersion ||
      head.layout_bytes > bytes - static_cast<int64_t>(sizeof(Head))) {
    return false;
  }
  const std::span<const std::byte> text(memory_.get() + sizeof(Head), head.layout_bytes);
  if (Checksum(head, text) != head.crc32c) {
    return false;
  }
  std::optional<std::vector<KeptTensor>> tensors = ParseLayout(text);
  if (!tensors.has_value()) {
    return false;
  }
  layout_ = LayoutOf(*std::move(tensors));
  return layout_.bytes() == bytes;
}

absl::Status KeptStates::Prepare(const Owner& owner, std::span<const Stage> stages) {
  GP_RETURN_IF_ERROR(Settle());
  Layout layout = LayoutOf(stages);
  if (this->owner() != owner || layout_ != layout) {
    Detach();
    memory_.reset();
    layout_ = std::move(layout);
    absl::Status status = TakeRoom(layout_.bytes());
    if (status.ok()) {
      status = Map(layout_.bytes());
    }
    if (!status.ok()) {
      GiveBack();
      return status;
    }
    WriteHead(owner);
  }
  // The pages are taken now, so that no Save waits for them one by one. A system that cannot do this takes them in the
  // first Saves.
#ifdef MADV_POPULATE_WRITE
  madvise(memory_.get(), static_cast<size_t>(layout_.bytes()), MADV_POPULATE_WRITE);
#endif
  return absl::OkStatus();
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
void KeptStates::WriteHead(const Owner& owner) {
  const std::string text = LayoutText(layout_.tensors);
  Head& head = this->head();
  std::memcpy(memory_.get() + sizeof(Head), text.data(), text.size());
  head.version = kKeptVersion;
  head.run_incarnation = owner.run_incarnation;
  head.rank = owner.rank;
  head.layout_bytes = static_cast<uint32_t>(text.size());
  head.crc32c = Checksum(head, std::as_bytes(std::span(text)));
  head.magic = kKeptMagic;
}

KeptStates::Head& KeptStates::head() const { return *reinterpret_cast<Head*>(memory_.get()); }

std::byte* KeptStates::RoomOf(const Slot& slot) const {
  return memory_.get() + layout_.head_bytes + (&slot - head().slots.data()) * layout_.state_bytes;
}

// The slot of a state; nullptr: it is not held.
KeptStates::Slot* KeptStates::Find(const StateIdentity& state) const {
  const auto found = std::ranges::find_if(head().slots, [&](const Slot& slot) { return slot.Holds(state); });
  return found == head().slots.end() ? nullptr : &*found;
}

uint64_t KeptStates::NextOrder() const {
  uint64_t last = 0;
  for (const Slot& slot : head().slots) {
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
        to += RoomFor(kept->elements);
      }
      ++kept;
    }
  }
  return device == nullptr ? Completion() : device->Record(Queue::kOut);
}

absl::Status KeptStates::Attach(Device& device) {
  GP_CHECK(memory_ != nullptr, "there is no room for a state; Prepare was not called");
  Detach();
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
  }
}

absl::Status KeptStates::Settle() const {
  const absl::Status status = copy_.done() ? absl::OkStatus() : HostDevice().Wait(copy_, DeviceDeadlineNs());
  return copy_.done() ? absl::OkStatus() : status;  // a copy that has failed is over, too
}

absl::StatusOr<Completion> KeptStates::Save(const StateIdentity& state, std::span<const Stage> stages) {
  GP_CHECK(memory_ != nullptr, "there is no room for a state; Prepare was not called");
  CheckStages(stages);
  if (!copy_.done() && copied_ == state) {
    return copy_;
  }
  GP_RETURN_IF_ERROR(Settle());
  const uint64_t order = NextOrder();
  if (Slot* held = Find(state); held != nullptr) {
    held->order.store(order, std::memory_order_release);
    return Completion();
  }
  Slot& slot = *std::ranges::min_element(head().slots, {},
                                         [](const Slot& each) { return each.order.load(std::memory_order_relaxed); });
  slot.order.store(0, std::memory_order_relaxed);
  // The copy must not begin before the store. A fence for the compiler suffices: a killed process has executed all
  // instructions before the one it was killed at and none after, and the reader starts later.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  GP_ASSIGN_OR_RETURN(copy_, CopyTo(RoomOf(slot), stages));
  copied_ = state;
  copy_.Then([&slot, copy = copy_, state, order] {
    if (copy.status().ok()) {
      slot.iteration = state.iteration;
      slot.epoch = state.epoch;
      slot.order.store(order, std::memory_order_release);
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
  std::array<const Slot*, 2> slots{&head().slots[0], &head().slots[1]};
  std::ranges::sort(slots, std::greater<>(), [](const Slot* slot) { return slot->order.load(); });
  for (const Slot* slot : slots) {
    if (slot->order.load(std::memory_order_acquire) != 0) {
      states.push_back({.iteration = slot->iteration, .epoch = slot->epoch});
    }
  }
  return states;
}

absl::StatusOr<std::unique_ptr<WeightSource>> KeptStates::Read(const Owner& owner, const StateIdentity& state,
                                                               int32_t stage) const {
  const Slot* slot = this->owner() == owner ? Find(state) : nullptr;
  if (slot == nullptr) {
    return absl::NotFoundError(
        fmt::format("{} of rank {} is not kept in memory on this device; read a checkpoint instead", NameOfState(state),
                    owner.rank));
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
    for (Slot& slot : head().slots) {
      slot.order.store(0, std::memory_order_relaxed);
    }
  }
}

}  // namespace geopipe
