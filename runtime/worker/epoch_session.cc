#include "runtime/worker/epoch_session.h"

#include <utility>

namespace geopipe {

EpochSession::EpochSession(std::unique_ptr<UcxTransport> transport, InterruptibleClock& clock)
    : transport_(std::move(transport)), clock_(clock) {
  clock_.Resume();
}

bool EpochSession::Begin(int64_t iteration) {
  const std::lock_guard lock(mutex_);
  if (ended_) {
    return false;
  }
  under_way_ = iteration;
  return true;
}

bool EpochSession::BeginLast(int64_t end_iteration) {
  const std::lock_guard lock(mutex_);
  if (abandon_from_.has_value() && end_iteration >= *abandon_from_) {
    return false;
  }
  under_way_ = end_iteration;
  return true;
}

void EpochSession::Returned() {
  const std::lock_guard lock(mutex_);
  returned_ = true;
}

void EpochSession::End(std::optional<int64_t> abandon_from) {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  abandon_from_ = abandon_from;
  // Peers may need this end's acknowledgements even after training, so that is not interrupted.
  if (!returned_ && (under_way_ == kNotBegun || (abandon_from.has_value() && under_way_ >= *abandon_from))) {
    InterruptLocked();
  }
}

void EpochSession::Use(std::unique_ptr<RankCollectives> collectives) {
  const std::lock_guard lock(mutex_);
  collectives_ = std::move(collectives);
  if (stop_) {
    collectives_->Abort(absl::CancelledError("stopped"));
  }
}

void EpochSession::Interrupt() {
  const std::lock_guard lock(mutex_);
  InterruptLocked();
}

void EpochSession::InterruptLocked() {
  stop_ = true;
  stopped_.Set();
  clock_.Interrupt();
  transport_->Fail(absl::CancelledError("stopped"));
  if (collectives_ != nullptr) {
    collectives_->Abort(absl::CancelledError("stopped"));
  }
}

}  // namespace geopipe
