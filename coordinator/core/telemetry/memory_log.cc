#include "coordinator/core/telemetry/memory_log.h"

#include <algorithm>

namespace geopipe {

MemoryLog::MemoryLog(const google::protobuf::RepeatedPtrField<v1::MeasuredMemory>& stored) {
  for (const v1::MeasuredMemory& each : stored) {
    Add(each.rank(), each.peaks());
  }
}

void MemoryLog::Add(int32_t rank, const v1::MemoryPeaks& peaks) {
  v1::MemoryPeaks& known = peaks_[rank];
  known.set_weight_bytes(std::max(known.weight_bytes(), peaks.weight_bytes()));
  known.set_gradient_bytes(std::max(known.gradient_bytes(), peaks.gradient_bytes()));
  known.set_optimizer_bytes(std::max(known.optimizer_bytes(), peaks.optimizer_bytes()));
  known.set_activation_bytes(std::max(known.activation_bytes(), peaks.activation_bytes()));
  known.set_workspace_bytes(std::max(known.workspace_bytes(), peaks.workspace_bytes()));
  known.set_transport_bytes(std::max(known.transport_bytes(), peaks.transport_bytes()));
  known.set_recovery_bytes(std::max(known.recovery_bytes(), peaks.recovery_bytes()));
  known.set_host_bytes(std::max(known.host_bytes(), peaks.host_bytes()));
  known.set_total_bytes(std::max(known.total_bytes(), peaks.total_bytes()));
}

void MemoryLog::WriteTo(google::protobuf::RepeatedPtrField<v1::MeasuredMemory>& all) const {
  all.Clear();
  for (const auto& [rank, peaks] : peaks_) {
    v1::MeasuredMemory& measured = *all.Add();
    measured.set_rank(rank);
    *measured.mutable_peaks() = peaks;
  }
}

}  // namespace geopipe
