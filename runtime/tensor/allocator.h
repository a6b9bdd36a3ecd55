// Memory of one device, accounted by category, with a hard byte limit: exceeding it is a reported error of this worker,
// not a crash of the machine.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "runtime/tensor/device.h"

namespace geopipe {

enum class MemoryCategory : uint8_t {
  kWeights,
  kGradients,
  kOptimizer,
  kActivations,
  kWorkspace,
  kTransport,
  kRecovery,  // states that outlive the process
};
inline constexpr int kMemoryCategories = 7;

// "weights", "gradients", "optimizer", "activations", "workspace", "transport", "recovery".
std::string_view MemoryCategoryName(MemoryCategory category);

class Allocator;

// A move-only block of memory, 64-byte aligned, returned to its allocator on destruction. Not zeroed.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  // Memory in the allocator's space.
  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  // REQUIRES: !empty().
  Allocator& allocator() const { return *allocator_; }
  bool empty() const { return data_ == nullptr; }

  // Accounts the block under another category from now on; an activation that becomes a message is not copied.
  void SetCategory(MemoryCategory category);

  // Says that the queue, besides the one for kernels, has been given work that uses the block: its next user waits for
  // what the queue has been given when the block comes back.
  void NoteUse(Queue queue) { used_by_ |= QueueBit(queue); }

 private:
  friend class Allocator;
  Buffer(Allocator* allocator, std::byte* data, int64_t size, MemoryCategory category)
      : allocator_(allocator), data_(data), size_(size), category_(category) {}
  static uint8_t QueueBit(Queue queue) { return static_cast<uint8_t>(1U << static_cast<unsigned>(queue)); }

  Allocator* allocator_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  MemoryCategory category_ = MemoryCategory::kWorkspace;
  uint8_t used_by_ = 0;  // bits of queues
};

// Memory that is taken elsewhere and counts as the allocator's while this lives. Move-only.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept
      : allocator_(std::exchange(other.allocator_, nullptr)), bytes_(other.bytes_), category_(other.category_) {}
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

 private:
  friend class Allocator;
  Reservation(Allocator* allocator, int64_t bytes, MemoryCategory category)
      : allocator_(allocator), bytes_(bytes), category_(category) {}

  Allocator* allocator_ = nullptr;
  int64_t bytes_ = 0;
  MemoryCategory category_ = MemoryCategory::kRecovery;
};

// Free blocks that an allocator has taken from the device ahead of need: they count as held, and wait for requests of
// their size. When this ends they stay free, for anybody. Move-only; the allocator outlives it.
class ReadyBlocks {
 public:
  ReadyBlocks() = default;
  ReadyBlocks(ReadyBlocks&& other) noexcept
      : allocator_(std::exchange(other.allocator_, nullptr)), bytes_(other.bytes_), count_(other.count_) {}
  ReadyBlocks& operator=(ReadyBlocks&& other) noexcept;
  ~ReadyBlocks();

 private:
  friend class Allocator;
  ReadyBlocks(Allocator* allocator, int64_t bytes, int64_t count)
      : allocator_(allocator), bytes_(bytes), count_(count) {}

  Allocator* allocator_ = nullptr;
  int64_t bytes_ = 0;
  int64_t count_ = 0;
};

// The limit of an allocator that only the machine limits.
inline constexpr int64_t kUnlimitedMemoryBytes = std::numeric_limits<int64_t>::max() / 2;

// Thread-safe. Must outlive its buffers. Released blocks are kept for the next request of the same size (fresh pages
// are costly); they count as free unless they are kept ready, and return to the device before the limit would be
// exceeded. Device memory may be
// released while work that uses it is still queued: its next user is queued behind that work. Staging memory must not:
// the host does not queue. One thread allocates and releases device memory, that which enqueues the device's work.
class Allocator {
 public:
  // Allocates the device's memory; the device outlives it. `staging_limit_bytes`: of staging(), where that is memory of
  // its own.
  explicit Allocator(int64_t limit_bytes, Device& device = HostDevice(),
                     int64_t staging_limit_bytes = kUnlimitedMemoryBytes);
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;
  ~Allocator();  // GP_CHECKs that every buffer has come back

  // `first_use`: the queue that uses the block first; of the others it is kernels' that use it later. ResourceExhausted
  // names category, size, what is in use by category and the limit. REQUIRES: bytes > 0.
  absl::StatusOr<Buffer> Allocate(int64_t bytes, MemoryCategory category, Queue first_use = Queue::kCompute);

  // Takes blocks of the size from the device for later requests, until `count` are free besides those that others keep
  // ready; they return to the device only when nobody keeps them. Errors are Allocate's.
  absl::StatusOr<ReadyBlocks> KeepReady(int64_t bytes, int64_t count);

  // Counts memory that is taken elsewhere. ResourceExhausted as above.
  absl::StatusOr<Reservation> Reserve(int64_t bytes, MemoryCategory category);

  struct Usage {
    int64_t bytes = 0;
    int64_t peak_bytes = 0;
  };
  Usage usage(MemoryCategory category) const;
  Usage total() const;
  // The bytes in use or kept ready, which the limit holds for.
  Usage held() const;
  int64_t limit_bytes() const { return limit_bytes_; }

  Device& device() const { return device_; }
  MemorySpace space() const { return space_; }
  // Allocates memory that the host may touch, for data to and from the device: this allocator itself if the device's
  // memory is the host's, else one with a limit of its own.
  Allocator& staging() { return staging_ == nullptr ? *this : *staging_; }
  // Allocates memory for data that the device moves out to the host; a separate allocator even if the device's memory
  // is the host's, but its own there. Only the host limits it. REQUIRES: this is no other allocator's staging memory.
  Allocator& host() { return host_ == nullptr ? *this : *host_; }
  const Allocator& host() const { return host_ == nullptr ? *this : *host_; }

  // Returns to the device the blocks that are kept for reuse, but for those that are kept ready.
  void GiveBack();

 private:
  friend class Buffer;
  friend class Reservation;
  friend class ReadyBlocks;
  Allocator(int64_t limit_bytes, Device& device, MemorySpace space)
      : limit_bytes_(limit_bytes), device_(device), space_(space) {}
  // A block that waits for its next user: behind what the queues had been given when it came back.
  struct FreeBlock {
    std::byte* data = nullptr;
    std::array<int64_t, kQueues> positions{};  // -1: the queue has not used it
  };
  struct FreeBlocks {
    std::deque<FreeBlock> plain;  // used by kernels alone
    std::deque<FreeBlock> moved;  // by other queues too

    int64_t count() const { return static_cast<int64_t>(plain.size() + moved.size()); }
  };

  void Release(const Buffer& buffer);
  FreeBlock FreeBlockOf(const Buffer& buffer) const;
  absl::StatusOr<std::byte*> Take(FreeBlocks& blocks, Queue first_use);
  void Unreserve(int64_t bytes, MemoryCategory category);
  void Recategorize(int64_t bytes, MemoryCategory from, MemoryCategory to);
  void AccountInUse(int64_t bytes, MemoryCategory category);
  void Account(Usage& usage, int64_t bytes);
  // Free blocks of the size that count as held, at most.
  int64_t ReadyOf(int64_t bytes) const;
  void KeepMoreReady(int64_t bytes, int64_t count);
  void DropFreeBlocks();
  absl::Status Exhausted(int64_t bytes, MemoryCategory category) const;

  const int64_t limit_bytes_;
  Device& device_;
  const MemorySpace space_;
  std::unique_ptr<Allocator> staging_;
  std::unique_ptr<Allocator> host_;  // nullptr: this is another allocator's staging or host memory
  mutable std::mutex mutex_;
  std::array<Usage, kMemoryCategories> usage_{};
  Usage total_;
  Usage held_;
  std::unordered_map<int64_t, FreeBlocks> free_blocks_;  // by size
  int64_t free_bytes_ = 0;
  std::unordered_map<int64_t, int64_t> kept_ready_;  // ReadyOf
};

}  // namespace geopipe
