#include "agent/report_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace geopipe::agent {
namespace {

size_t Cost(const v1::NodeReport& report) { return report.ByteSizeLong() + sizeof(v1::NodeReport); }

bool IsHeartbeat(const v1::NodeReport& report) {
  return report.has_worker() && report.worker().report().has_heartbeat();
}

bool SameWorker(const v1::WorkerId& a, const v1::WorkerId& b) {
  return a.device() == b.device() && a.incarnation() == b.incarnation() && a.job() == b.job();
}

// True when the report makes an older one of the same worker obsolete.
bool Replaces(const v1::NodeReport& report, const v1::NodeReport& older) {
  const bool latest_counts = IsHeartbeat(report) || (report.has_worker() && report.worker().report().has_data_check());
  return latest_counts && older.has_worker() &&
         older.worker().report().report_case() == report.worker().report().report_case() &&
         SameWorker(older.worker().worker(), report.worker().worker());
}

bool IsIteration(const v1::NodeReport& report) {
  return report.has_worker() && report.worker().report().has_iteration();
}

bool IsUrgent(const v1::NodeReport& report) { return !IsHeartbeat(report) && !IsIteration(report); }

// True when the report may be lost: no exit, no silence, not numbered by its worker.
bool IsDroppable(const v1::NodeReport& report) {
  return report.has_probe() || (report.has_worker() && report.worker().report().sequence() == 0);
}

}  // namespace

void ReportQueue::Drop(const Reports::iterator& at) {
  bytes_ -= Cost(*at);
  waiting_urgent_ -= IsUrgent(*at) ? 1 : 0;
  waiting_droppable_ -= IsDroppable(*at) ? 1 : 0;
  plain_ -= static_cast<size_t>(at - waiting_.begin()) < plain_ ? 1 : 0;
  waiting_.erase(at);
}

void ReportQueue::Push(v1::NodeReport report) {
  const auto older = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const v1::NodeReport& waiting) { return Replaces(report, waiting); });
  if (older != waiting_.end()) {
    Drop(older);
  }
  bytes_ += Cost(report);
  waiting_urgent_ += IsUrgent(report) ? 1 : 0;
  waiting_droppable_ += IsDroppable(report) ? 1 : 0;
  waiting_.push_back(std::move(report));
  MakeRoom();
}

void ReportQueue::MakeRoom() {
  for (; bytes_ > capacity_bytes_ && plain_ < waiting_.size(); ++plain_) {
    v1::NodeReport& report = waiting_[plain_];
    if (IsIteration(report) && report.worker().report().iteration().actions_size() > 0) {
      bytes_ -= Cost(report);
      report.mutable_worker()->mutable_report()->mutable_iteration()->clear_actions();
      bytes_ += Cost(report);
      ++stripped_;
    }
  }
  while (bytes_ > capacity_bytes_ && waiting_droppable_ > 0 && waiting_.size() > 1) {
    const auto iteration = std::find_if(waiting_.begin(), waiting_.end(), [](const v1::NodeReport& report) {
      return IsIteration(report) && IsDroppable(report);
    });
    const auto any =
        iteration != waiting_.end() ? iteration : std::find_if(waiting_.begin(), waiting_.end(), IsDroppable);
    Drop(any);
    ++dropped_;
  }
}

bool ReportQueue::ready() const {
  return resend_ < taken_.size() || (!waiting_.empty() && taken_.size() < kMaxUnacknowledged);
}

std::optional<v1::NodeReports> ReportQueue::Take() {
  if (!ready()) {
    return std::nullopt;
  }
  v1::NodeReports message;
  message.set_first_sequence(first_sequence_ + resend_);
  const bool again = resend_ < taken_.size();
  size_t bytes = 0;
  while (message.reports_size() < kMaxPerMessage && bytes < kMaxBytesPerMessage) {
    if (again ? resend_ == taken_.size() : waiting_.empty()) {
      break;
    }
    if (!again) {
      waiting_urgent_ -= IsUrgent(waiting_.front()) ? 1 : 0;
      waiting_droppable_ -= IsDroppable(waiting_.front()) ? 1 : 0;
      plain_ -= plain_ > 0 ? 1 : 0;
      taken_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    *message.add_reports() = taken_[resend_];
    bytes += Cost(taken_[resend_]);
    ++resend_;
  }
  return message;
}

void ReportQueue::Acknowledge(uint64_t sequence, const std::function<void(const v1::NodeReport&)>& taken) {
  while (!taken_.empty() && first_sequence_ <= sequence) {
    taken(taken_.front());
    bytes_ -= Cost(taken_.front());
    taken_.pop_front();
    ++first_sequence_;
    resend_ -= resend_ > 0 ? 1 : 0;
  }
}

}  // namespace geopipe::agent
