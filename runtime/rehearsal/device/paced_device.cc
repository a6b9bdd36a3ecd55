#include "runtime/rehearsal/device/paced_device.h"

#include <algorithm>
#include <utility>

#include "runtime/rehearsal/host/kept_time.h"

namespace geopipe {
namespace {

// Step of the running median of lateness, which is found within some tens of actions.
constexpr int64_t kLeadStepNs = 3'000;
// An action is at least this many times as long as the part cut off its sleep.
constexpr int64_t kMinLeads = 16;

}  // namespace

void PacedDevice::Begin(int64_t ready_ns) {
  called_ns_ = clock_.NowNs();
  const int64_t due_ns = std::max(free_ns_, ready_ns);
  // A call before the action is due follows a sleep that was cut.
  begun_ns_ = called_ns_ - due_ns <= kMaxCompensatedNs ? due_ns : called_ns_;
}

void PacedDevice::MeetAction(int64_t met_ns) {
  called_ns_ = clock_.NowNs();
  begun_ns_ = std::max(begun_ns_, met_ns);
}

Completion PacedDevice::End(int64_t duration_ns) {
  const int64_t arithmetic_ns = clock_.NowNs() - called_ns_;
  return Rest(begun_ns_ + std::max(duration_ns, arithmetic_ns), duration_ns);
}

void PacedDevice::BeginUpdate(int64_t iteration) {
  called_ns_ = clock_.NowNs();
  // The epilogue begins once for all stages.
  if (std::exchange(updated_iteration_, iteration) != iteration) {
    begun_ns_ = free_ns_;
  }
}

Completion PacedDevice::EndUpdate(int64_t epilogue_ns, int64_t ready_ns) {
  const int64_t arithmetic_ns = clock_.NowNs() - called_ns_;
  return Rest(std::max(begun_ns_ + epilogue_ns, std::max(free_ns_, ready_ns) + arithmetic_ns), epilogue_ns);
}

Completion PacedDevice::Rest(int64_t end_ns, int64_t duration_ns) {
  free_ns_ = end_ns;
  const int64_t lead_ns = std::min(lead_ns_, duration_ns / kMinLeads);
  if (clock_.NowNs() < end_ns - lead_ns) {
    clock_.SleepUntilNs(end_ns - lead_ns);
    if (lead_ns == lead_ns_) {
      const bool late = clock_.NowNs() > end_ns;
      lead_ns_ = std::clamp<int64_t>(lead_ns_ + (late ? kLeadStepNs : -kLeadStepNs), 0, kMaxLeadNs);
    }
  }
  return {begun_ns_, end_ns};
}

}  // namespace geopipe
