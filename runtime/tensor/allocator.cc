#include "runtime/tensor/allocator.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "optimizer/base/check.h"

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
      category_(other.category_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    Buffer old(std::move(*this));
    allocator_ = std::exchange(other.allocator_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    category_ = other.category_;
  }
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    allocator_->Release(data_, size_, category_);
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

Allocator::Allocator(int64_t limit_bytes, Device& device) : Allocator(limit_bytes, device, device.space()) {
  host_.reset(new Allocator(kUnlimitedMemoryBytes, device, MemorySpace::kHost));
  if (space_ != MemorySpace::kHost) {
    staging_.reset(new Allocator(limit_bytes, device, MemorySpace::kHost));
  }
}

Allocator::~Allocator() {
  if (staging_ != nullptr) {
    (void)device_.Wait(device_.Record());  // copies that are under way keep their staging buffers
  }
  GP_CHECK(total_.bytes == 0, "{} bytes have not come back to their allocator", total_.bytes);
  DropFreeBlocks();
}

absl::StatusOr<Buffer> Allocator::Allocate(int64_t bytes, MemoryCategory category) {
  GP_CHECK(bytes > 0, "an allocation of {} bytes", bytes);
  const std::lock_guard lock(mutex_);
  if (bytes > limit_bytes_ - total_.bytes) {
    return Exhausted(bytes, category);
  }
  std::byte* data = nullptr;
  if (const auto blocks = free_blocks_.find(bytes); blocks != free_blocks_.end() && !blocks->second.empty()) {
    data = blocks->second.back();
    blocks->second.pop_back();
    free_bytes_ -= bytes;
  } else {
    if (bytes > limit_bytes_ - total_.bytes - free_bytes_) {
      DropFreeBlocks();
    }
    data = device_.Allocate(bytes, space_);
    if (data == nullptr) {
      return Exhausted(bytes, category);
    }
  }
  Account(usage_[Index(category)], bytes);
  Account(total_, bytes);
  return Buffer(this, data, bytes, category);
}

absl::StatusOr<Reservation> Allocator::Reserve(int64_t bytes, MemoryCategory category) {
  const std::lock_guard lock(mutex_);
  if (bytes > limit_bytes_ - total_.bytes) {
    return Exhausted(bytes, category);
  }
  if (bytes > limit_bytes_ - total_.bytes - free_bytes_) {
    DropFreeBlocks();
  }
  Account(usage_[Index(category)], bytes);
  Account(total_, bytes);
  return Reservation(this, bytes, category);
}

void Allocator::Unreserve(int64_t bytes, MemoryCategory category) {
  const std::lock_guard lock(mutex_);
  Account(usage_[Index(category)], -bytes);
  Account(total_, -bytes);
}

void Allocator::Release(std::byte* data, int64_t bytes, MemoryCategory category) {
  const std::lock_guard lock(mutex_);
  Account(usage_[Index(category)], -bytes);
  Account(total_, -bytes);
  if (kKeepFreeBlocks) {
    free_blocks_[bytes].push_back(data);
    free_bytes_ += bytes;
  } else {
    device_.Free(data, bytes, space_);
  }
}

void Allocator::Recategorize(int64_t bytes, MemoryCategory from, MemoryCategory to) {
  const std::lock_guard lock(mutex_);
  Account(usage_[Index(from)], -bytes);
  Account(usage_[Index(to)], bytes);
}

void Allocator::Account(Usage& usage, int64_t bytes) {
  usage.bytes += bytes;
  usage.peak_bytes = std::max(usage.peak_bytes, usage.bytes);
}

void Allocator::DropFreeBlocks() {
  for (const auto& [size, blocks] : free_blocks_) {
    for (std::byte* block : blocks) {
      device_.Free(block, size, space_);
    }
  }
  free_blocks_.clear();
  free_bytes_ = 0;
}

absl::Status Allocator::Exhausted(int64_t bytes, MemoryCategory category) const {
  std::string in_use;
  for (int i = 0; i < kMemoryCategories; ++i) {
    in_use +=
        fmt::format("{}{} {}", i == 0 ? "" : ", ", MemoryCategoryName(static_cast<MemoryCategory>(i)), usage_[i].bytes);
  }
  if (limit_bytes_ == kUnlimitedMemoryBytes) {
    return absl::ResourceExhaustedError(fmt::format(
        "the host has no {} bytes for {} beside the {} in use ({}); give it more memory, use more stages, or "
        "more replicas with ZeRO",
        bytes, MemoryCategoryName(category), total_.bytes, in_use));
  }
  return absl::ResourceExhaustedError(
      fmt::format("{} bytes for {} do not fit into the device's memory of {} bytes, of which {} are in use ({}); give "
                  "the device more memory, use more stages, or a smaller micro-batch or sequence",
                  bytes, MemoryCategoryName(category), limit_bytes_, total_.bytes, in_use));
}

Allocator::Usage Allocator::usage(MemoryCategory category) const {
  const std::lock_guard lock(mutex_);
  return usage_[Index(category)];
}

Allocator::Usage Allocator::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

}  // namespace geopipe
