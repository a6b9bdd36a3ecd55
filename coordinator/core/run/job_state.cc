#include "coordinator/core/run/job_state.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

namespace geopipe {
namespace {

constexpr JobState kPending = v1::JOB_STATE_PENDING;
constexpr JobState kProfiling = v1::JOB_STATE_PROFILING;
constexpr JobState kPlanning = v1::JOB_STATE_PLANNING;
constexpr JobState kDeploying = v1::JOB_STATE_DEPLOYING;
constexpr JobState kRunning = v1::JOB_STATE_RUNNING;
constexpr JobState kReplanning = v1::JOB_STATE_REPLANNING;
constexpr JobState kRecovering = v1::JOB_STATE_RECOVERING;
constexpr JobState kPaused = v1::JOB_STATE_PAUSED;
constexpr JobState kCompleted = v1::JOB_STATE_COMPLETED;
constexpr JobState kFailed = v1::JOB_STATE_FAILED;
constexpr JobState kCancelled = v1::JOB_STATE_CANCELLED;

constexpr std::array kStates = {kPending,    kProfiling, kPlanning,  kDeploying, kRunning,  kReplanning,
                                kRecovering, kPaused,    kCompleted, kFailed,    kCancelled};

struct Row {
  JobState from;
  uint32_t to;  // bit s is set when state s may follow
};

template <class... States>
constexpr uint32_t AnyOf(States... states) {
  return ((uint32_t{1} << static_cast<int>(states)) | ...);
}

constexpr Row kTable[] = {
    {kPending, AnyOf(kProfiling, kFailed, kCancelled)},
    {kProfiling, AnyOf(kPending, kPlanning, kFailed, kCancelled)},
    {kPlanning, AnyOf(kPending, kDeploying, kFailed, kCancelled)},
    {kDeploying, AnyOf(kPending, kRunning, kRecovering, kFailed, kCancelled)},
    {kRunning, AnyOf(kReplanning, kRecovering, kPaused, kCompleted, kFailed, kCancelled)},
    {kReplanning, AnyOf(kPending, kDeploying, kRecovering, kFailed, kCancelled)},
    {kRecovering, AnyOf(kPending, kDeploying, kPaused, kFailed, kCancelled)},
    {kPaused, AnyOf(kPending, kDeploying, kRecovering, kFailed, kCancelled)},
    {kCompleted, 0},
    {kFailed, 0},
    {kCancelled, 0},
};

}  // namespace

bool MayFollow(JobState from, JobState to) {
  const auto* row = std::ranges::find(kTable, from, &Row::from);
  return row != std::end(kTable) && to > 0 && to < 32 && ((row->to >> static_cast<int>(to)) & 1) != 0;
}

std::span<const JobState> AllJobStates() { return kStates; }

}  // namespace geopipe
