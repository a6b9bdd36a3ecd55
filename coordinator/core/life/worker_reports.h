// Reports of a run's workers.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/core/life/hearing.h"

namespace geopipe {

class WorkerReports : public Hearing {
 public:
  using Hearing::Hearing;

  // `version`: of the coordinator. Reports of workers that were told to stop change nothing.
  Reaction OnReport(const WorkerKey& key, const v1::WorkerReport& report, const std::string& version);

 private:
  void OnMisfit(WorkerFacts& worker, const v1::WorkerHello& hello, const std::string& version);
  void OnHello(WorkerFacts& worker, const v1::WorkerHello& hello, const std::string& version);
  void OnProfile(const WorkerKey& key, const v1::ProfileReport& report);
  void TakeFoundCheckpoints();
  Reaction OnAnswer(WorkerFacts& worker, const v1::WorkerReport& report);
  Reaction OnIteration(WorkerFacts& worker, const v1::IterationReport& report);
  void OnEvaluation(const WorkerKey& key, const v1::EvaluationReport& report);
  Reaction OnFinished(WorkerFacts& worker, const v1::FinishedReport& report);
  void CheckStuck(WorkerFacts& worker, const v1::WorkerStatus& status);
  Reaction OnFailure(WorkerFacts& worker, const v1::FailureReport& report);
  bool NoteUnread(const CheckpointIdentity& checkpoint, absl::StatusCode code);
  bool PassOver(const v1::FailureReport& report, const std::string& sentence);
  void OnDataCheck(const WorkerKey& key, const v1::DataCheckReport& report);
  Reaction OnCheckpoint(const WorkerKey& key, const v1::WorkerReport& report);
  int64_t SaveAgainAfterNs() const;
};

}  // namespace geopipe
