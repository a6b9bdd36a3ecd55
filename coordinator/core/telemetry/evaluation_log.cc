#include "coordinator/core/telemetry/evaluation_log.h"

#include <algorithm>

namespace geopipe {

int64_t EvaluationLog::next() const {
  if (spec_.data.paths.empty() || told_ >= end_) {
    return kNone;
  }
  return spec_.every > 0 ? std::min(end_, (told_ / spec_.every + 1) * spec_.every) : end_;
}

bool EvaluationLog::OnReport(const v1::EvaluationReport& report, uint64_t epoch) {
  if (report.iteration() <= told_ || report.iteration() > end_ || !spec_.IsDue(report.iteration(), end_)) {
    return false;
  }
  GiveUpBefore(report.iteration());
  v1::EvaluationSummary& summary = new_.emplace_back();
  summary.set_iteration(report.iteration());
  if (report.has_loss()) {
    summary.set_loss(report.loss());
  }
  summary.set_duration_ns(report.duration_ns());
  summary.set_epoch(epoch);
  told_ = report.iteration();
  return true;
}

void EvaluationLog::GiveUpBefore(int64_t iteration) {
  for (int64_t lost = next(); lost < iteration; lost = next()) {
    v1::EvaluationSummary& summary = new_.emplace_back();
    summary.set_iteration(lost);
    summary.set_incomplete(true);
    told_ = lost;
  }
}

}  // namespace geopipe
