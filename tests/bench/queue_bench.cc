// Acceptance: does a coordinator hold a long queue? One client submits a file of many jobs that wait for a device that
// another job has; agents register all the while. Exits 1 when a bar is missed. About a minute.
//
//   queue_bench [JOBS]              default: 10,000
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "geopipe/v1/agent_service.grpc.pb.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/version.h"
#include "tests/support/durations.h"
#include "tests/support/survival.h"

namespace geopipe {
namespace {

// The bars, for 10,000 jobs.
constexpr int64_t kMaxApplyNs = 60 * kSecond;
constexpr int64_t kMaxListNs = kSecond;
constexpr int64_t kMaxRegisterNs = 50'000'000;

constexpr int64_t kRegisterEveryNs = kSecond / 4;

int missed = 0;

std::string Held(bool held) {
  missed += held ? 0 : 1;
  return held ? "ok" : "MISSED";
}

// Registers an agent as node "late/I", whose device nobody asks for, and leaves. The time from its hello to its
// welcome.
absl::StatusOr<int64_t> RegisterOnce(v1::AgentService::Stub& stub, int index) {
  v1::ConnectRequest request;
  request.set_incarnation(1);
  v1::AgentHello& hello = *request.mutable_hello();
  hello.set_version(std::string(Version()));
  hello.set_host("late.example");
  hello.set_pid(1);
  hello.mutable_node()->set_site("late");
  hello.mutable_node()->set_node(fmt::format("n{}", index));
  hello.mutable_node()->set_devices(1);
  hello.mutable_node()->mutable_device()->set_kind("cpu");
  hello.mutable_node()->mutable_device()->set_memory_bytes(1 << 30);
  hello.mutable_node()->mutable_device()->set_efficiency(0.5);
  hello.mutable_node()->set_host_memory_bytes(int64_t{1} << 31);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const auto stream = stub.Connect(&context);
  v1::ConnectResponse answer;
  const int64_t begin_ns = Clock::Real().NowNs();
  const bool welcome = stream->Write(request) && stream->Read(&answer);
  const int64_t took_ns = Clock::Real().NowNs() - begin_ns;
  context.TryCancel();
  const grpc::Status end = stream->Finish();
  if (!welcome) {
    return absl::InternalError(fmt::format("an agent was not welcome: {}", end.error_message()));
  }
  return took_ns;
}

// Arguments of `geopipectl apply` for a file of jobs that all wait for the devices of the federation.
absl::StatusOr<std::vector<std::string>> WriteJobs(const ProcessFederation& federation, int64_t jobs) {
  GP_ASSIGN_OR_RETURN(std::vector<std::string> arguments,
                      PacedJob(federation.folder(), "waits", federation.site_names(), 1));
  std::string& path = arguments[1];  // behind -f
  GP_ASSIGN_OR_RETURN(const std::string one, ReadFile(path, 1 << 20));
  std::string all;
  for (int64_t i = 0; i < jobs; ++i) {
    std::string text = one;
    text.replace(text.find("waits"), 5, fmt::format("waits-{:05}", i));
    all += "---\n" + text;
  }
  GP_RETURN_IF_ERROR(WriteFileAtomically(path, all));
  arguments.insert(arguments.begin(), "apply");
  return arguments;
}

absl::Status Measure(int64_t jobs) {
  GP_ASSIGN_OR_RETURN(const auto federation, ProcessFederation::Start({.sites = {"north", "east"}}));
  GP_RETURN_IF_ERROR(SubmitPaced(*federation, "trains", kPlannedIterations));
  GP_RETURN_IF_ERROR(federation->AwaitIteration("trains", 2, 60 * kSecond));
  GP_ASSIGN_OR_RETURN(const std::vector<std::string> all, WriteJobs(*federation, jobs));
  const auto stub =
      v1::AgentService::NewStub(grpc::CreateChannel(federation->endpoint(), grpc::InsecureChannelCredentials()));

  std::atomic<bool> is_over = false;
  std::vector<int64_t> registered_ns;
  absl::Status registering = absl::OkStatus();
  std::thread agents([&] {
    for (int index = 0; !is_over && registering.ok(); ++index) {
      const absl::StatusOr<int64_t> took_ns = RegisterOnce(*stub, index % 8);
      registering = took_ns.status();
      registered_ns.push_back(took_ns.value_or(0));
      Clock::Real().SleepUntilNs(Clock::Real().NowNs() + kRegisterEveryNs);
    }
  });
  const int64_t begin_ns = Clock::Real().NowNs();
  const absl::StatusOr<std::string> applied = federation->Geopipectl(all);
  const int64_t apply_ns = Clock::Real().NowNs() - begin_ns;
  const int64_t listing_ns = Clock::Real().NowNs();
  const absl::StatusOr<std::string> listed = federation->Geopipectl({"get", "jobs"});
  const int64_t list_ns = Clock::Real().NowNs() - listing_ns;
  is_over = true;
  agents.join();
  GP_RETURN_IF_ERROR(applied.status());
  GP_RETURN_IF_ERROR(listed.status());
  GP_RETURN_IF_ERROR(registering);

  GP_ASSIGN_OR_RETURN(const v1::ListJobsResponse response, federation->control().ListJobs());
  const int64_t pending = std::ranges::count(response.jobs(), v1::JOB_STATE_PENDING, &v1::JobSummary::state);
  std::ranges::sort(registered_ns);
  const int64_t slowest_ns = registered_ns.back();
  fmt::print("{} jobs of one file submitted: {} ({}/job)  {}\n", jobs, HumanDuration(apply_ns),
             HumanDuration(apply_ns / jobs), Held(apply_ns <= kMaxApplyNs && pending == jobs));
  fmt::print("listed: {}  {}\n", HumanDuration(list_ns), Held(list_ns < kMaxListNs));
  fmt::print("{} agents registered meanwhile: median {}, slowest {}  {}\n", registered_ns.size(),
             HumanDuration(registered_ns[registered_ns.size() / 2]), HumanDuration(slowest_ns),
             Held(slowest_ns < kMaxRegisterNs));
  return absl::OkStatus();
}

int Run(int argc, char** argv) {
  const int64_t jobs = argc > 1 ? std::atoll(argv[1]) : 10'000;
  if (jobs < 1 || argc > 2) {
    fmt::print(stderr, "usage: queue_bench [JOBS]\n");
    return 2;
  }
  if (const absl::Status status = Measure(jobs); !status.ok()) {
    fmt::print(stderr, "error: {}\n", std::string(status.message()));
    return 1;
  }
  return missed > 0 ? 1 : 0;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) { return geopipe::Run(argc, argv); }
