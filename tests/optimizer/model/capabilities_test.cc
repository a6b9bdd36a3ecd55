#include "optimizer/model/capabilities.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace geopipe {
namespace {

std::string Refusal(const JobSpec& job, BackendKind backend) {
  return std::string(CheckCapabilities(job, backend).message());
}

TEST_CASE("the table has one row per backend, in the order of the kinds") {
  for (const BackendKind kind : kBackendKinds) {
    CHECK(CapabilitiesOf(kind).backend == kind);
  }
}

TEST_CASE("ranks keep their states in the host's memory where the backend's devices have their own") {
  CHECK_FALSE(JobOnBackend({}, BackendKind::kCpu).own_memory);
  CHECK(JobOnBackend({}, BackendKind::kCuda).own_memory);
}

TEST_CASE("a worker's answer names the backends of its host, and why it has not the others") {
  const std::vector<RefusedBackend> refused{{BackendKind::kCuda, "no library: install it"}};
  CHECK(WriteBackends(refused) == "cpu\ncuda: no library: install it\nmodelled\n");
  CHECK(ParseBackends(WriteBackends(refused)).value() == refused);
  CHECK(ParseBackends(WriteBackends({})).value().empty());
  CHECK(WriteBackends(std::vector<RefusedBackend>{{BackendKind::kCuda, "two\nlines"}}) ==
        "cpu\ncuda: two lines\nmodelled\n");

  const auto [text, message] = GENERATE(table<std::string, std::string>({
      {"", "backend cpu is not told of"},
      {"cpu\ncuda: no library", "backend modelled is not told of"},
      {"cpu\ncuda\ncuda: no library\nmodelled\n", "backend cuda is told of twice"},
      {"cpu\ntpu\n", "unknown backend 'tpu': use cpu, cuda or modelled"},
  }));
  CHECK(ParseBackends(text).status().message() == message);
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
