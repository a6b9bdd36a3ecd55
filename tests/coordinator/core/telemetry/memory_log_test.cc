#include "coordinator/core/telemetry/memory_log.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

v1::MemoryPeaks Peaks(int64_t weight_bytes, int64_t recovery_bytes, int64_t total_bytes) {
  v1::MemoryPeaks peaks;
  peaks.set_weight_bytes(weight_bytes);
  peaks.set_recovery_bytes(recovery_bytes);
  peaks.set_total_bytes(total_bytes);
  return peaks;
}

TEST_CASE("of each rank and category the greatest stays, also over another life of the coordinator") {
  MemoryLog log;
  google::protobuf::RepeatedPtrField<v1::MeasuredMemory> all;
  log.WriteTo(all);
  CHECK(all.empty());
  log.Add(3, Peaks(10, 0, 20));
  log.Add(1, Peaks(7, 7, 7));
  log.Add(3, Peaks(5, 2, 15));  // a worker that was started again
  log.WriteTo(all);
  REQUIRE(all.size() == 2);
  CHECK(all[0].rank() == 1);
  CHECK(all[1].rank() == 3);
  CHECK(all[1].peaks().SerializeAsString() == Peaks(10, 2, 20).SerializeAsString());
  MemoryLog restored(all);
  restored.Add(1, Peaks(8, 0, 0));
  restored.WriteTo(all);
  REQUIRE(all.size() == 2);
  CHECK(all[0].peaks().SerializeAsString() == Peaks(8, 7, 7).SerializeAsString());
  CHECK(all[1].peaks().total_bytes() == 20);
}

}  // namespace
}  // namespace geopipe
