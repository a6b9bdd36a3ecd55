#include "optimizer/model/capabilities.h"

#include <catch2/catch.hpp>
#include <string>

namespace geopipe {
namespace {

std::string Refusal(const JobSpec& job, BackendKind backend) {
  return std::string(CheckCapabilities(job, backend).message());
}

TEST_CASE("the table has one row per backend, in the order of the kinds") {
  for (const BackendKind kind : {BackendKind::kCpu, BackendKind::kCuda, BackendKind::kModelled}) {
    CHECK(CapabilitiesOf(kind).backend == kind);
    CHECK(CheckBuilt(kind).ok() == CapabilitiesOf(kind).built);
  }
  CHECK(CheckBuilt(BackendKind::kCuda).message() ==
        "backend is cuda, which is not part of this build; use cpu or modelled");
}

TEST_CASE("what a backend cannot do is refused with key, value and remedy, and auto never is") {
  JobSpec job;
  job.parallelism.tensor = 0;
  job.parallelism.data = 0;
  CHECK(Refusal(job, BackendKind::kCpu).empty());
  job.precision = Precision::kBf16;
  CHECK(Refusal(job, BackendKind::kCpu) ==
        "precision is bf16; the cpu backend supports fp32 only: use that, or rehearse the job with --backend modelled");
  CHECK(Refusal(job, BackendKind::kModelled).empty());
  job.precision = Precision::kFp32;
  job.parallelism.recompute = Recompute::kFull;
  CHECK(Refusal(job, BackendKind::kCpu).find("parallelism.recompute is on; the cpu backend supports none only") == 0);
  job.parallelism.tensor = 2;
  job.parallelism.data = 2;
  CHECK(Refusal(job, BackendKind::kCpu).find("parallelism.tensor is 2; the cpu backend supports 1 only") == 0);
  CHECK(Refusal(job, BackendKind::kModelled).empty());
}

}  // namespace
}  // namespace geopipe
