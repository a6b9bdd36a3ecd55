// The bandwidth of one direction of a rehearsed link, shared by all workers of the host that send over it: a small
// mapped file that holds the time at which the link's transmitter is next free.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace geopipe {

class LinkPacer {
 public:
  // Opens or creates the file `path` (empty: a pacer of this process alone). Unavailable names path and reason;
  // InvalidArgument if the file is something else.
  static absl::StatusOr<std::unique_ptr<LinkPacer>> Open(const std::string& path);
  ~LinkPacer();
  LinkPacer(const LinkPacer&) = delete;
  LinkPacer& operator=(const LinkPacer&) = delete;

  // Occupies the transmitter for `duration_ns` from `earliest_ns` on, or as soon after as it is free; returns the time
  // at which it is free again (CLOCK_MONOTONIC). Any thread of any process.
  int64_t Occupy(int64_t earliest_ns, int64_t duration_ns);
  // Time from which the transmitter is free, as of now.
  int64_t free_ns() const { return shared_->next_free_ns.load(); }

 private:
  // Contents of the file: both words zero in a new one. 64-bit atomics are address-free here, so they work between
  // processes.
  struct Shared {
    std::atomic<uint64_t> magic;
    std::atomic<int64_t> next_free_ns;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

  LinkPacer() = default;

  std::unique_ptr<Shared> own_;
  Shared* shared_ = nullptr;  // own_, or the mapping
};

}  // namespace geopipe
