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

TEST_CASE("what a backend cannot do is refused with key, value and remedy") {
  JobSpec job;
  job.precision = Precision::kBf16;
  job.parallelism.recompute = Recompute::kFull;
  job.parallelism.tensor = 2;
  job.parallelism.data = 2;
  CHECK(Refusal(job, BackendKind::kCpu).empty());
  CHECK(Refusal(job, BackendKind::kModelled).empty());
  job.checkpoint.path = "/checkpoints";
  CHECK(Refusal(job, BackendKind::kCpu).empty());
  CHECK(Refusal(job, BackendKind::kModelled) ==
        "checkpoint.path is /checkpoints; the modelled backend computes nothing that could be kept: leave it out");
}

}  // namespace
}  // namespace geopipe
