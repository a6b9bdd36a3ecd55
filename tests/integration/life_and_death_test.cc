// Kills parts of a run, and checks what becomes of it and of those who watch it.
#include <catch2/catch.hpp>
#include <csignal>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "tests/integration/all_gone.h"
#include "tests/integration/daemons.h"
#include "tests/integration/processes.h"
#include "tests/support/command.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

std::vector<std::string> PlaygroundArgs(const TempFolder& folder) {
  return {"playground",
          "--job",
          SourcePath("tests/golden/jobs/mini.yaml"),
          "--sites",
          "3",
          "--link",
          "latency=2ms,bandwidth=1Gbps",
          "--output",
          folder.path().string()};
}

void WaitForIterations(Command& command) {
  WaitUntil(command, [&] { return command.out().find("iteration  2/40") != std::string::npos; });
}

TEST_CASE("a worker killed from outside is started again, and the job runs to its end") {
  const auto [signal, name] =
      GENERATE(table<int, std::string>({{SIGKILL, "signal 9 (SIGKILL)"}, {SIGTERM, "signal 15 (SIGTERM)"}}));
  const TempFolder folder = TestFolder();
  Command playground("geopipectl", PlaygroundArgs(folder));
  WaitForIterations(playground);
  const std::vector<ProcessInfo> all = Descendants(playground.process().pid());
  std::vector<ProcessInfo> workers;
  for (const ProcessInfo& process : all) {
    if (process.Runs("geopipe-worker")) {
      workers.push_back(process);
    }
  }
  REQUIRE(all.size() == 10);  // coordinator, three agents with a keeper each, three workers
  REQUIRE(workers.size() == 3);
  const ProcessInfo& victim = workers[1];
  std::string site;
  for (size_t i = 0; i + 1 < victim.arguments.size(); ++i) {
    if (victim.arguments[i] == "--site") {
      site = victim.arguments[i + 1];
    }
  }
  REQUIRE(kill(static_cast<pid_t>(victim.pid), signal) == 0);
  const CommandResult result = playground.Finish(30 * kSecond);
  INFO(result.out);
  INFO(result.err);
  CHECK(result.exit_status.success());
  const size_t recovering = result.out.find("RECOVERING worker " + site + "/0/0 (site " + site);
  REQUIRE(recovering != std::string::npos);
  CHECK(result.out.substr(recovering, result.out.find('\n', recovering) - recovering).find(name) != std::string::npos);
  CHECK(result.out.find("RUNNING    all 3 ranks have committed epoch 2", recovering) != std::string::npos);
  CHECK(result.out.find("COMPLETED  all 40 iterations are done", recovering) != std::string::npos);
  CheckAllGone(all);
}

TEST_CASE("Ctrl-C and a closed terminal cancel the job and leave nothing, within five seconds") {
  const auto [signal, cause] = GENERATE(table<int, std::string>(
      {{SIGINT, "CANCELLED  interrupted at the terminal"}, {SIGHUP, "CANCELLED  the terminal was closed"}}));
  const TempFolder folder = TestFolder();
  Command playground("geopipectl", PlaygroundArgs(folder));
  WaitForIterations(playground);
  const std::vector<ProcessInfo> all = Descendants(playground.process().pid());
  REQUIRE(all.size() == 10);
  const int64_t interrupted_ns = Clock::Real().NowNs();
  playground.process().Signal(signal);
  const CommandResult result = playground.Finish(15 * kSecond);
  CHECK(Clock::Real().NowNs() - interrupted_ns < 5 * kSecond);
  INFO(result.out);
  CHECK(result.exit_status.exit_code == 130);
  CHECK(result.out.find(cause) != std::string::npos);
  CheckAllGone(all);
}

TEST_CASE("a playground killed outright takes everything with it") {
  const TempFolder folder = TestFolder();
  // It cannot remove its own folder any more.
  Command playground("geopipectl", PlaygroundArgs(folder), {{"TMPDIR", folder.path().string()}});
  WaitForIterations(playground);
  const std::vector<ProcessInfo> all = Descendants(playground.process().pid());
  REQUIRE(all.size() == 10);
  playground.process().Signal(SIGKILL);
  playground.Finish(15 * kSecond);
  const int64_t deadline_ns = Clock::Real().NowNs() + 10 * kSecond;
  for (const ProcessInfo& process : all) {
    while (Exists(process) && Clock::Real().NowNs() < deadline_ns) {
      Clock::Real().SleepUntilNs(Clock::Real().NowNs() + 20'000'000);
    }
  }
  CheckAllGone(all);
}

}  // namespace
}  // namespace geopipe
