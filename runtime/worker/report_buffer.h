// The lasting reports of a worker, numbered from 1, each kept until the coordinator has taken it. Bounded: when there
// are too many bytes, actions (and clocks) of iterations are dropped first, oldest first, then the oldest iterations;
// numbers then jump, so the receiver notices. Reports of other kinds are few, and are never dropped. No thread, no
// clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "geopipe/v1/worker_service.pb.h"

namespace geopipe {

class ReportBuffer {
 public:
  explicit ReportBuffer(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Numbers the report and keeps it.
  void Add(v1::WorkerReport report);
  // Notes that the receiver has all reports up to this number.
  void Taken(uint64_t up_to);
  // Hands out the next report that was not handed out since Rewind; nullptr: there is none. Valid until the next call.
  const v1::WorkerReport* Next();
  // Hands out all kept reports again, for a new path.
  void Rewind() { handed_out_ = 0; }

  bool empty() const { return reports_.empty(); }
  bool all_handed_out() const { return reports_.upper_bound(handed_out_) == reports_.end(); }
  size_t bytes() const { return bytes_; }
  uint64_t last_sequence() const { return last_sequence_; }

 private:
  struct Entry {
    v1::WorkerReport report;
    size_t bytes = 0;
  };

  bool StripOldest();
  bool DropOldest();

  const size_t max_bytes_;
  std::map<uint64_t, Entry> reports_;  // by number
  size_t bytes_ = 0;
  uint64_t last_sequence_ = 0;
  uint64_t handed_out_ = 0;  // up to this number
  uint64_t stripped_ = 0;    // up to this number no report has actions
};

}  // namespace geopipe
