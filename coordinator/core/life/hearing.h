// A run makes facts of what it hears, and nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/core/life/reaction.h"
#include "coordinator/core/life/situation.h"

namespace geopipe {

// Statuses and the ends of epochs, which workers report and agents repeat.
class Hearing {
 public:
  // Delay after which the state behind the last iteration is ordered (again).
  static constexpr int64_t kSaveLastAgainNs = 10'000'000'000;

  Hearing(JobLife& life, CrewFacts& crew, RunTelemetry& told, const JobRunLimits& limits, int64_t now_ns)
      : life_(life), crew_(crew), told_(told), limits_(limits), now_ns_(now_ns) {}

 protected:
  Situation Here() const { return {life_, crew_, told_, limits_, now_ns_}; }
  void TakeStatus(WorkerFacts& worker, const v1::WorkerStatus& status);
  // Follows the worker where its epoch is later than that of the record.
  void NoteEpochOf(uint64_t number);
  std::vector<StateIdentity> StatesOf(const google::protobuf::RepeatedPtrField<v1::HeldState>& states) const;
  void Settle(WorkerFacts& worker);
  Reaction OnEnded(WorkerFacts& worker, int64_t next_iteration, bool reported);
  // Notes that no reports of the worker's iterations and evaluations will come any more.
  void NoteLastReport(WorkerFacts& worker);
  void NoteReached(int64_t next);
  void NoteProgress();

  JobLife& life_;
  CrewFacts& crew_;
  RunTelemetry& told_;
  const JobRunLimits& limits_;
  const int64_t now_ns_;
};

}  // namespace geopipe
