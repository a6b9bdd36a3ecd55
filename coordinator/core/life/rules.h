// One ordered table of rules says what a job does next. The first rule that applies decides; when none does, the job
// waits. Start, adoption after a restart, pause, resume, recovery and moving elsewhere are rows of it, not code paths.
// Pure and total: every situation has exactly one decision, and the same one each time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/life/decision.h"

namespace geopipe {

struct Rule {
  std::string_view name;
  std::vector<JobState> in;  // states in which it is looked at; empty: in all that have devices
  std::string_view when;
  std::string_view then;
  Answer (*decide)(const Situation& situation);
};

// The rules, in order; and then those that say what the job waits for, where none of them applies.
std::span<const Rule> Rules();
std::span<const Rule> Waits();

Decision Next(const Situation& situation);

// The cause of the transition to COMPLETED.
std::string DoneSentence(int64_t iterations);

// Reason for waiting that the job's state does not show; empty: none.
std::string WaitsFor(const Situation& situation);

}  // namespace geopipe
