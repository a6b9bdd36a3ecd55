// Evaluations of a job: which are told, and which is next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "geopipe/v1/control_service.pb.h"
#include "geopipe/v1/telemetry.pb.h"
#include "optimizer/model/job_spec.h"

namespace geopipe {

// Each is told once, in order. The first report counts: later ones are of the same weights, from other ranks or from
// iterations that are repeated.
class EvaluationLog {
 public:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  EvaluationLog() = default;
  // `end`: the job's last iteration is the one before it.
  EvaluationLog(EvaluationSpec spec, int64_t end) : spec_(std::move(spec)), end_(end) {}

  // Evaluations up to this number, that of the iteration behind them, are told or not expected.
  void PassOver(int64_t iteration) { told_ = std::max(told_, iteration); }
  // Number of the first evaluation that is due and not told; kNone: there is none.
  int64_t next() const;

  // Takes a report of a rank that runs this epoch. True: it is news.
  bool OnReport(const v1::EvaluationReport& report, uint64_t epoch);
  // Tells evaluations before this number as incomplete: their reports will not come.
  void GiveUpBefore(int64_t iteration);

  // Evaluations that were told since the last call, ascending.
  std::vector<v1::EvaluationSummary> TakeNew() { return std::exchange(new_, {}); }

 private:
  EvaluationSpec spec_;
  int64_t end_ = 0;
  int64_t told_ = 0;
  std::vector<v1::EvaluationSummary> new_;
};

}  // namespace geopipe
