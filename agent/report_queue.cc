#include "agent/report_queue.h"

#include <algorithm>
#include <utility>

namespace geopipe::agent {
namespace {

size_t Cost(const v1::ConnectRequest& message) { return message.ByteSizeLong() + sizeof(v1::ConnectRequest); }

bool IsHeartbeat(const v1::ConnectRequest& message) {
  return message.has_report() && message.report().report().has_heartbeat();
}

bool IsIteration(const v1::ConnectRequest& message) {
  return message.has_report() && message.report().report().has_iteration();
}

bool SameWorker(const v1::WorkerId& a, const v1::WorkerId& b) {
  return a.device() == b.device() && a.incarnation() == b.incarnation() && a.job() == b.job();
}

}  // namespace

void ReportQueue::Remove(const Messages::iterator& at) {
  bytes_ -= Cost(*at);
  messages_.erase(at);
}

void ReportQueue::Push(v1::ConnectRequest message) {
  if (IsHeartbeat(message)) {
    const auto older = std::find_if(messages_.begin(), messages_.end(), [&](const v1::ConnectRequest& waiting) {
      return IsHeartbeat(waiting) && SameWorker(waiting.report().worker(), message.report().worker());
    });
    if (older != messages_.end()) {
      Remove(older);
    }
  }
  bytes_ += Cost(message);
  messages_.push_back(std::move(message));
  while (bytes_ > capacity_bytes_ && messages_.size() > 1) {
    const auto iteration = std::find_if(messages_.begin(), messages_.end(), IsIteration);
    Remove(iteration == messages_.end() ? messages_.begin() : iteration);
    ++dropped_;
  }
}

std::optional<v1::ConnectRequest> ReportQueue::Pop() {
  if (messages_.empty()) {
    return std::nullopt;
  }
  std::optional<v1::ConnectRequest> message(std::move(messages_.front()));
  bytes_ -= Cost(*message);
  messages_.pop_front();
  return message;
}

}  // namespace geopipe::agent
