// The environment of a node is bad for some seconds while a worker has to be started there: a job that has trained
// waits for it, loses nothing, and is not ended.
#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "tests/support/durations.h"
#include "tests/support/required.h"
#include "tests/support/survival.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTroubleLimitNs = 90 * kSecond;
constexpr int64_t kTrainsAgainNs = 15 * kSecond;

void CheckOk(const absl::Status& status) {
  INFO(status.ToString());
  REQUIRE(status.ok());
}

// The job "troubled" of these iterations trains at three sites.
std::unique_ptr<ProcessFederation> Training(int64_t iterations, const ProcessFederationOptions& options = {}) {
  auto federation = Required(ProcessFederation::Start(options));
  CheckOk(SubmitPaced(*federation, "troubled", iterations));
  CheckOk(federation->AwaitIteration("troubled", 2, kTroubleLimitNs));
  return federation;
}

// Returns when an iteration is told that was not done when this was called.
void AwaitProgress(const ProcessFederation& federation, int64_t limit_ns) {
  const auto before = federation.Summary("troubled");
  CheckOk(before.status());
  CheckOk(federation.AwaitIteration("troubled", before->iterations_done() + 2, limit_ns));
}

// Puts a program in the place of the workers', as packages do, that fits nothing.
void InstallAnother(const ProcessFederation& federation) {
  const fs::path beside = federation.folder() / "another";
  CheckOk(WriteFileAtomically(beside, "#!/bin/sh\necho another program >&2\nexit 1\n"));
  fs::permissions(beside, fs::perms::owner_all);
  fs::rename(beside, federation.program());
}

TEST_CASE("a job goes on with the program that it began with, whatever is installed meanwhile") {
  constexpr int64_t kIterations = 24;
  const auto federation = Training(kIterations, {.own_program = true});
  InstallAnother(*federation);
  for (const size_t site : {1, 2, 1}) {
    federation->Signal(federation->WorkerOf(site)->pid, SIGKILL);
    AwaitProgress(*federation, kTrainsAgainNs);
  }
  CheckOk(federation->AwaitState("troubled", v1::JOB_STATE_COMPLETED, kTroubleLimitNs));
  const auto detail = federation->control().GetJob("troubled");
  CheckOk(detail.status());
  REQUIRE(detail->recoveries_size() == 3);
  for (const v1::RecoverySummary& recovery : detail->recoveries()) {
    CHECK(recovery.source() == "memory");
    REQUIRE(recovery.workers_size() == 1);
    CHECK_FALSE(recovery.workers(0).of_node());
  }
  const auto curve = federation->Curve("troubled");
  CheckOk(curve.status());
  CheckOk(CheckWhole(*curve, kIterations));
}

// Kills the worker and the keeper, which sees nothing of it: the program that the run began with is lost with both.
void KillWithKeeper(ProcessFederation& federation, size_t site) {
  const int64_t keeper = federation.KeeperOf(site)->pid;
  federation.Signal(keeper, SIGSTOP);
  federation.Signal(federation.WorkerOf(site)->pid, SIGKILL);
  federation.Signal(keeper, SIGKILL);
}

TEST_CASE("starts that fail for a while, by a missing program or a table that cannot be written, end no job") {
  constexpr int64_t kIterations = 40;
  const auto federation = Training(kIterations, {.own_program = true});
  const fs::path table = federation->StateOf(1) / "keeper.table";
  const fs::path away = federation->folder() / "away";
  for (const bool is_program : {true, false}) {
    CAPTURE(is_program);
    if (is_program) {
      fs::rename(federation->program(), away);
      KillWithKeeper(*federation, 1);
    } else {
      fs::rename(table, away);
      fs::create_directories(table / "in-the-way");
      federation->Signal(federation->WorkerOf(1)->pid, SIGKILL);
    }
    // Longer than five tries took to end a job.
    Clock::Real().SleepUntilNs(Clock::Real().NowNs() + 12 * kSecond);
    const auto sites = federation->Geopipectl({"get", "sites"});
    CheckOk(sites.status());
    INFO(*sites);
    CHECK(sites->find("connected, unfit") != std::string::npos);
    CHECK(sites->find("warning: node east/0 has been unfit for ") != std::string::npos);
    CHECK(sites->find("is tried again every 10 s: worker east/0/0 (site east) cannot be started: ") !=
          std::string::npos);
    const auto summary = federation->Summary("troubled");
    CheckOk(summary.status());
    CHECK(summary->state() == v1::JOB_STATE_RECOVERING);
    if (is_program) {
      fs::rename(away, federation->program());
    } else {
      fs::remove_all(table);
      fs::rename(away, table);
    }
    AwaitProgress(*federation, kTrainsAgainNs);
  }
  CheckOk(federation->AwaitState("troubled", v1::JOB_STATE_COMPLETED, kTroubleLimitNs));
  const auto curve = federation->Curve("troubled");
  CheckOk(curve.status());
  CheckOk(CheckWhole(*curve, kIterations));
  const auto detail = federation->control().GetJob("troubled");
  CheckOk(detail.status());
  REQUIRE(detail->recoveries_size() == 2);
  for (const v1::RecoverySummary& recovery : detail->recoveries()) {
    CHECK(recovery.source() == "memory");
    CHECK(std::ranges::count_if(recovery.workers(), [](const auto& lost) { return !lost.of_node(); }) == 1);
  }
}

// The folder of a file system that is not mounted is there, and empty. A worker that is started meanwhile has never
// seen another.
TEST_CASE("checkpoints are not written below a mount that is away, and go on when it is back") {
  constexpr int64_t kIterations = 120;
  const auto federation = Required(ProcessFederation::Start({}));
  CheckOk(SubmitMoving(*federation, "troubled", kIterations, /*every=*/2, /*replicate=*/0, 30 * kSecond));
  const fs::path folder = federation->disk() / "checkpoints";
  const fs::path away = federation->disk() / "away";
  const auto await = [&](const std::string& what, const std::function<bool(const v1::JobDetail&)>& is_so) {
    CheckOk(AwaitNs(what, kTroubleLimitNs, [&]() -> absl::StatusOr<bool> {
              const auto detail = federation->control().GetJob("troubled");
              return detail.ok() ? absl::StatusOr<bool>(is_so(*detail)) : detail.status();
            }).status());
  };
  await("a checkpoint", [](const v1::JobDetail& detail) { return detail.checkpoints_size() > 0; });
  fs::rename(folder, away);
  fs::create_directory(folder);
  federation->Signal(federation->WorkerOf(1)->pid, SIGKILL);
  await("the job to train again", [](const v1::JobDetail& detail) {
    return detail.recoveries_size() == 1 && detail.recoveries(0).ended_unix_time_ns() > 0;
  });
  await("a checkpoint that comes to nothing", [](const v1::JobDetail& detail) {
    return detail.checkpoint_trouble().find("lacks the file .geopipe-checkpoints") != std::string::npos &&
           detail.checkpoint_trouble().starts_with("no checkpoint of iteration ");
  });
  CHECK(fs::is_empty(folder));
  const auto before = federation->control().GetJob("troubled");
  CheckOk(before.status());
  fs::rename(away, folder);  // fails where anything is in it
  await("a checkpoint after it", [&](const v1::JobDetail& detail) {
    return detail.checkpoints().rbegin()->identity().iteration() >
           before->checkpoints().rbegin()->identity().iteration();
  });
  const auto detail = federation->control().GetJob("troubled");
  CheckOk(detail.status());
  CHECK(detail->checkpoint_trouble() == "");
  CHECK(detail->recoveries(0).source() == "memory");
}

TEST_CASE("a keeper that is stopped is followed by another within seconds, and its worker's states are kept") {
  constexpr int64_t kIterations = 24;
  const auto federation = Training(kIterations);
  const int64_t keeper = federation->KeeperOf(1)->pid;
  federation->Signal(keeper, SIGSTOP);
  federation->Signal(federation->WorkerOf(1)->pid, SIGKILL);
  CheckOk(AwaitNs("another keeper", kTrainsAgainNs, [&]() -> absl::StatusOr<bool> {
            const auto now = federation->KeeperOf(1);
            return now.has_value() && now->pid != keeper;
          }).status());
  AwaitProgress(*federation, kTrainsAgainNs);
  CheckOk(federation->AwaitState("troubled", v1::JOB_STATE_COMPLETED, kTroubleLimitNs));
  const auto detail = federation->control().GetJob("troubled");
  CheckOk(detail.status());
  REQUIRE(detail->recoveries_size() == 1);
  CHECK(detail->recoveries(0).source() == "memory");
  CHECK(federation->Log("east").find(") has not answered for ") != std::string::npos);
}

// A node's volume was not mounted when its coordinator started, and is put back.
TEST_CASE("a coordinator that starts without its store disturbs nobody, and with it goes on as if nothing was") {
  constexpr int64_t kIterations = 40;
  const auto federation = Training(kIterations);
  const int64_t worker = federation->WorkerOf(0)->pid;
  const fs::path store = federation->folder() / "coordinator";
  const fs::path away = federation->folder() / "away";
  federation->KillCoordinator();
  fs::rename(store, away);
  CheckOk(federation->StartCoordinator());
  CheckOk(AwaitNs("agents that are refused", kTroubleLimitNs, [&]() -> absl::StatusOr<bool> {
            const auto sites = federation->Geopipectl({"get", "sites"});
            CheckOk(sites.status());
            return std::ranges::count(*sites, '\n') >= 4 && sites->find("was refused") != std::string::npos;
          }).status());
  const auto sites = federation->Geopipectl({"get", "sites"});
  CheckOk(sites.status());
  INFO(*sites);
  CHECK(sites->find("warning: agent north/0 was refused ") != std::string::npos);
  CHECK(sites->find("has 1 worker of federation ") != std::string::npos);
  CHECK(federation->WorkerOf(0)->pid == worker);
  federation->KillCoordinator();
  fs::rename(store, federation->folder() / "foreign");
  fs::rename(away, store);
  CheckOk(federation->StartCoordinator());
  CheckOk(federation->AwaitState("troubled", v1::JOB_STATE_COMPLETED, kTroubleLimitNs));
  const auto detail = federation->control().GetJob("troubled");
  CheckOk(detail.status());
  CHECK(detail->recoveries_size() == 0);
  CHECK(detail->epochs_size() == 1);
  const auto curve = federation->Curve("troubled");
  CheckOk(curve.status());
  CheckOk(CheckWhole(*curve, kIterations));
}

TEST_CASE("a backup that is restored under a running job pauses it, and it goes on with the same bits") {
  constexpr int64_t kIterations = 30;
  const auto federation = Training(kIterations);
  const auto backup = federation->Geopipectl({"backup", "-o", "json"});
  CheckOk(backup.status());
  const size_t begin = backup->find("/");
  const std::string path = backup->substr(begin, backup->find('"', begin) - begin);
  federation->Signal(federation->WorkerOf(2)->pid, SIGKILL);  // the run goes on beyond what the backup knows
  AwaitProgress(*federation, kTroubleLimitNs);
  federation->KillCoordinator();
  CheckOk(federation->RestoreCoordinator(path));
  CheckOk(federation->StartCoordinator());
  CheckOk(federation->AwaitState("troubled", v1::JOB_STATE_PAUSED, kTroubleLimitNs));
  const auto summary = federation->Summary("troubled");
  CheckOk(summary.status());
  INFO(summary->cause());
  CHECK(summary->cause().find("the job store was older than this run: `geopipectl resume troubled --from newest`") !=
        std::string::npos);
  CheckOk(federation->Geopipectl({"resume", "troubled", "--from", "newest"}).status());
  CheckOk(federation->AwaitState("troubled", v1::JOB_STATE_COMPLETED, kTroubleLimitNs));
  const auto curve = federation->Curve("troubled");
  CheckOk(curve.status());
  const auto alone = NumbersAlone(*federation, kIterations);
  CheckOk(alone.status());
  // Figures of iterations that only the lost store had are not known any more.
  const std::string numbers = NumbersOf(*curve);
  CHECK(alone->ends_with(numbers.substr(numbers.rfind("\n", numbers.size() - 2) + 1)));
  CHECK(curve->size() == kIterations);
}

}  // namespace
}  // namespace geopipe
