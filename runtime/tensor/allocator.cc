#include "runtime/tensor/allocator.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"

namespace geopipe {
namespace {

// Blocks are not kept for reuse under AddressSanitizer: it would not notice a use after release.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kKeepFreeBlocks = false;
#else
constexpr bool kKeepFreeBlocks = true;
#endif

int Index(MemoryCategory category) { return static_cast<int>(category); }

}  // namespace

std::string_view MemoryCategoryName(MemoryCategory category) {
  static constexpr std::array<std::string_view, kMemoryCategories> kNames{
      "weights", "gradients", "optimizer", "activations", "workspace", "transport", "recovery"};
  return kNames[static_cast<size_t>(category)];
}

Buffer::Buffer(Buffer&& other) noexcept
    : allocator_(std::exchange(other.allocator_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      category_(other.category_),
      used_by_(other.used_by_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    Buffer old(std::move(*this));
    allocator_ = std::exchange(other.allocator_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    category_ = other.category_;
    used_by_ = other.used_by_;
  }
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    allocator_->Release(*this);
  }
}

void Buffer::SetCategory(MemoryCategory category) {
  if (data_ != nullptr && category != category_) {
    allocator_->Recategorize(size_, category_, category);
    category_ = category;
  }
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    Reservation old(std::move(*this));
    allocator_ = std::exchange(other.allocator_, nullptr);
    bytes_ = other.bytes_;
    category_ = other.category_;
  }
  return *this;
}

Reservation::~Reservation() {
  if (allocator_ != nullptr) {
    allocator_->Unreserve(bytes_, category_);
  }
}

ReadyBlocks& ReadyBlocks::operator=(ReadyBlocks&& other) noexcept {
  if (this != &other) {
    ReadyBlocks old(std::move(*this));
    allocator_ = std::exchange(other.allocator_, nullptr);
    bytes_ = other.bytes_;
    count_ = other.count_;
  }
  return *this;
}

ReadyBlocks::~ReadyBlocks() {
  if (allocator_ != nullptr) {
    const std::lock_guard lock(allocator_->mutex_);
    allocator_->KeepMoreReady(bytes_, -count_);
  }
}

Allocator::Allocator(int64_t limit_bytes, Device& device, int64_t staging_limit_bytes)
    : Allocator(limit_bytes, device, device.space()) {
  host_.reset(new Allocator(kUnlimitedMemoryBytes, device, MemorySpace::kHost));
  if (space_ != MemorySpace::kHost) {
    staging_.reset(new Allocator(staging_limit_bytes, device, MemorySpace::kHost));
  }
}

Allocator::~Allocator() {
  if (staging_ != nullptr) {
    (void)device_.WaitIdle(DeviceDeadlineNs());  // copies that are under way keep their staging buffers
  }
  GP_CHECK(total_.bytes == 0, "{} bytes have not come back to their allocator", total_.bytes);
  DropFreeBlocks();
}

absl::StatusOr<Buffer> Allocator::Allocate(int64_t bytes, MemoryCategory category, Queue first_use) {
  GP_CHECK(bytes > 0, "an allocation of {} bytes", bytes);
  const std::lock_guard lock(mutex_);
  const auto free = free_blocks_.find(bytes);
  const bool is_held = free != free_blocks_.end() && free->second.count() > 0 && free->second.count() <= ReadyOf(bytes);
  if (!is_held && bytes > limit_bytes_ - held_.bytes) {
    return Exhausted(bytes, category);
  }
  std::byte* data = nullptr;
  if (free != free_blocks_.end()) {
    GP_ASSIGN_OR_RETURN(data, Take(free->second, first_use));
    free_bytes_ -= data == nullptr ? 0 : bytes;
  }
  if (data == nullptr) {
    if (bytes > limit_bytes_ - total_.bytes - free_bytes_) {
      DropFreeBlocks();
    }
    data = device_.Allocate(bytes, space_);
    if (data == nullptr) {
      GP_RETURN_IF_ERROR(device_.health());
      return Exhausted(bytes, category);
    }
  }
  AccountInUse(bytes, category);
  Account(held_, is_held ? 0 : bytes);
  return Buffer(this, data, bytes, category);
}

absl::StatusOr<ReadyBlocks> Allocator::KeepReady(int64_t bytes, int64_t count) {
  ReadyBlocks ready(this, bytes, count);
  int64_t all = 0;
  absl::Status fits;
  {
    const std::lock_guard lock(mutex_);
    KeepMoreReady(bytes, count);
    all = ReadyOf(bytes);
    fits = held_.bytes <= limit_bytes_ ? absl::OkStatus() : Exhausted(bytes, MemoryCategory::kTransport);
  }
  GP_RETURN_IF_ERROR(fits);
  std::vector<Buffer> blocks;
  for (int64_t i = 0; i < all; ++i) {
    GP_ASSIGN_OR_RETURN(Buffer block, Allocate(bytes, MemoryCategory::kTransport));
    blocks.push_back(std::move(block));
  }
  return ready;
}

// Takes a free block and makes the queue wait for its last users; nullptr: there is none. Kernels take the block that
// came back last, whose contents caches may hold; of those that are being copied, and for copies, it is the one that
// came back first, which need hardly be waited for.
absl::StatusOr<std::byte*> Allocator::Take(FreeBlocks& blocks, Queue first_use) {
  const bool computes = first_use == Queue::kCompute;
  std::deque<FreeBlock>& first_choice = computes ? blocks.plain : blocks.moved;
  std::deque<FreeBlock>& from = first_choice.empty() ? (computes ? blocks.moved : blocks.plain) : first_choice;
  if (from.empty()) {
    return nullptr;
  }
  const bool takes_last = computes && &from == &blocks.plain;
  const FreeBlock block = takes_last ? from.back() : from.front();
  if (space_ == MemorySpace::kDevice) {
    for (int i = 0; i < kQueues; ++i) {
      const auto queue = static_cast<Queue>(i);
      if (queue != first_use && block.positions[i] >= 0) {
        GP_RETURN_IF_ERROR(device_.After(first_use, device_.Past(queue, block.positions[i])));
      }
    }
  }
  takes_last ? from.pop_back() : from.pop_front();
  return block.data;
}

int64_t Allocator::ReadyOf(int64_t bytes) const {
  const auto ready = kept_ready_.find(bytes);
  return ready == kept_ready_.end() ? 0 : ready->second;
}

void Allocator::KeepMoreReady(int64_t bytes, int64_t count) {
  const auto blocks = free_blocks_.find(bytes);
  const int64_t free = blocks == free_blocks_.end() ? 0 : blocks->second.count();
  const int64_t before = ReadyOf(bytes);
  kept_ready_[bytes] = before + count;
  Account(held_, bytes * (std::min(free, before + count) - std::min(free, before)));
}

absl::StatusOr<Reservation> Allocator::Reserve(int64_t bytes, MemoryCategory category) {
  const std::lock_guard lock(mutex_);
  if (bytes > limit_bytes_ - held_.bytes) {
    return Exhausted(bytes, category);
  }
  if (bytes > limit_bytes_ - total_.bytes - free_bytes_) {
    DropFreeBlocks();
  }
  AccountInUse(bytes, category);
  Account(held_, bytes);
  return Reservation(this, bytes, category);
}

void Allocator::Unreserve(int64_t bytes, MemoryCategory category) {
  const std::lock_guard lock(mutex_);
  AccountInUse(-bytes, category);
  Account(held_, -bytes);
}

void Allocator::Release(const Buffer& buffer) {
  const std::lock_guard lock(mutex_);
  AccountInUse(-buffer.size_, buffer.category_);
  if (!kKeepFreeBlocks) {
    Account(held_, -buffer.size_);
    device_.Free(buffer.data_, buffer.size_, space_);
    return;
  }
  FreeBlocks& blocks = free_blocks_[buffer.size_];
  (buffer.used_by_ == 0 ? blocks.plain : blocks.moved).push_back(FreeBlockOf(buffer));
  free_bytes_ += buffer.size_;
  Account(held_, blocks.count() <= ReadyOf(buffer.size_) ? 0 : -buffer.size_);
}

Allocator::FreeBlock Allocator::FreeBlockOf(const Buffer& buffer) const {
  FreeBlock block{.data = buffer.data_};
  block.positions.fill(-1);
  for (int i = 0; space_ == MemorySpace::kDevice && i < kQueues; ++i) {
    const auto queue = static_cast<Queue>(i);
    if (queue == Queue::kCompute || (buffer.used_by_ & Buffer::QueueBit(queue)) != 0) {
      block.positions[i] = device_.position(queue);
    }
  }
  return block;
}

void Allocator::Recategorize(int64_t bytes, MemoryCategory from, MemoryCategory to) {
  const std::lock_guard lock(mutex_);
  Account(usage_[Index(from)], -bytes);
  Account(usage_[Index(to)], bytes);
}

void Allocator::AccountInUse(int64_t bytes, MemoryCategory category) {
  Account(usage_[Index(category)], bytes);
  Account(total_, bytes);
}

void Allocator::Account(Usage& usage, int64_t bytes) {
  usage.bytes += bytes;
  usage.peak_bytes = std::max(usage.peak_bytes, usage.bytes);
}

void Allocator::GiveBack() {
  {
    const std::lock_guard lock(mutex_);
    DropFreeBlocks();
  }
  for (Allocator* part : {staging_.get(), host_.get()}) {
    if (part != nullptr) {
      part->GiveBack();
    }
  }
}

void Allocator::DropFreeBlocks() {
  for (auto& [size, blocks] : free_blocks_) {
    for (std::deque<FreeBlock>* each : {&blocks.plain, &blocks.moved}) {
      while (!each->empty() && blocks.count() > ReadyOf(size)) {
        device_.Free(each->front().data, size, space_);
        each->pop_front();
        free_bytes_ -= size;
      }
    }
  }
  std::erase_if(free_blocks_, [](const auto& each) { return each.second.count() == 0; });
}

absl::Status Allocator::Exhausted(int64_t bytes, MemoryCategory category) const {
  std::string in_use;
  for (int i = 0; i < kMemoryCategories; ++i) {
    in_use +=
        fmt::format("{}{} {}", i == 0 ? "" : ", ", MemoryCategoryName(static_cast<MemoryCategory>(i)), usage_[i].bytes);
  }
  const int64_t ready_bytes = held_.bytes - total_.bytes;
  const std::string ready = ready_bytes == 0 ? "" : fmt::format(" and {} are kept ready", ready_bytes);
  const bool stages = space_ == MemorySpace::kHost && device_.space() == MemorySpace::kDevice;
  const std::string_view name = MemoryCategoryName(category);
  if (limit_bytes_ != kUnlimitedMemoryBytes && bytes <= limit_bytes_ - held_.bytes) {
    return OfNode(absl::ResourceExhaustedError(fmt::format(
        "the {} has no {} bytes for {} left, though this worker uses {} of the {} that it may ({}); free what others "
        "hold there, or {}",
        stages ? "host" : "device", bytes, name, total_.bytes, limit_bytes_, in_use,
        stages ? "use fewer devices on it" : "give the agent a smaller devices.memory")));
  }
  if (stages && limit_bytes_ != kUnlimitedMemoryBytes) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} bytes for {} do not fit into the {} bytes of the host's memory that the device may move data through, of "
        "which {} are in use ({}){}; give the host more memory, or use fewer devices on it, or a smaller micro-batch "
        "or sequence",
        bytes, name, limit_bytes_, total_.bytes, in_use, ready));
  }
  if (limit_bytes_ == kUnlimitedMemoryBytes) {
    return OfNode(absl::ResourceExhaustedError(fmt::format(
        "the host has no {} bytes for {} beside the {} in use ({}); give it more memory, use more stages, or "
        "more replicas with ZeRO",
        bytes, name, total_.bytes, in_use)));
  }
  return absl::ResourceExhaustedError(
      fmt::format("{} bytes for {} do not fit into the device's memory of {} bytes, of which {} are in use ({}); give "
                  "the device more memory, use more stages, or a smaller micro-batch or sequence",
                  bytes, name, limit_bytes_, total_.bytes, in_use));
}

Allocator::Usage Allocator::usage(MemoryCategory category) const {
  const std::lock_guard lock(mutex_);
  return usage_[Index(category)];
}

Allocator::Usage Allocator::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

Allocator::Usage Allocator::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

}  // namespace geopipe
