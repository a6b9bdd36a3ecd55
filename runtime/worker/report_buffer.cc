#include "runtime/worker/report_buffer.h"

#include <algorithm>
#include <utility>

namespace geopipe {

void ReportBuffer::Add(v1::WorkerReport report) {
  report.set_sequence(++last_sequence_);
  const size_t bytes = report.ByteSizeLong();
  bytes_ += bytes;
  reports_.emplace(last_sequence_, Entry{std::move(report), bytes});
  while (bytes_ > max_bytes_ && (StripOldest() || DropOldest())) {
  }
}

bool ReportBuffer::StripOldest() {
  for (auto entry = reports_.upper_bound(stripped_); entry != reports_.end(); ++entry) {
    stripped_ = entry->first;
    auto& [report, bytes] = entry->second;
    if (report.iteration().actions_size() > 0) {
      report.mutable_iteration()->clear_actions();
      report.mutable_iteration()->clear_clocks();
      bytes_ -= bytes;
      bytes = report.ByteSizeLong();
      bytes_ += bytes;
      return true;
    }
  }
  return false;
}

bool ReportBuffer::DropOldest() {
  const auto oldest = std::ranges::find_if(reports_, [](const auto& entry) {
    return entry.second.report.has_iteration() || entry.second.report.has_evaluation();
  });
  if (oldest == reports_.end()) {
    return false;
  }
  bytes_ -= oldest->second.bytes;
  reports_.erase(oldest);
  return true;
}

void ReportBuffer::Taken(uint64_t up_to) {
  while (!reports_.empty() && reports_.begin()->first <= up_to) {
    bytes_ -= reports_.begin()->second.bytes;
    reports_.erase(reports_.begin());
  }
}

const v1::WorkerReport* ReportBuffer::Next() {
  const auto next = reports_.upper_bound(handed_out_);
  if (next == reports_.end()) {
    return nullptr;
  }
  handed_out_ = next->first;
  return &next->second.report;
}

}  // namespace geopipe
