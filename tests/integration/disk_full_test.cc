// Disks that fill up below the job store, a trace and a whole playground: nothing is claimed that was not written, and
// the programs say which file and what to do. The disk is a small tmpfs in a mount namespace of this process.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "tests/integration/all_gone.h"
#include "tests/integration/daemons.h"
#include "tests/integration/processes.h"
#include "tests/support/durations.h"
#include "tests/support/skip.h"

namespace geopipe {
namespace {

class SmallDisk {
 public:
  // nullopt, with a line that says why, where this process may not mount.
  static std::optional<SmallDisk> Mount(int64_t kib) {
    SmallDisk disk;
    const std::string options = fmt::format("size={}k", kib);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", disk.folder_.path().c_str(), "tmpfs", 0, options.c_str()) != 0) {
      Skip(fmt::format("a tmpfs cannot be mounted here ({}); run this as root", std::strerror(errno)));
      return std::nullopt;
    }
    disk.mounted_ = true;
    return disk;
  }
  SmallDisk(SmallDisk&& other) noexcept
      : folder_(std::move(other.folder_)), mounted_(std::exchange(other.mounted_, false)) {}
  SmallDisk& operator=(SmallDisk&&) = delete;
  ~SmallDisk() {
    if (mounted_) {
      umount2(folder_.path().c_str(), MNT_DETACH);
    }
  }

  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }

  // Takes all that is free.
  void Fill() const {
    const UniqueFd fd(open(Path("filler").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    REQUIRE(fd.valid());
    const std::array<char, 4096> block{};
    while (write(fd.get(), block.data(), block.size()) > 0) {
    }
    REQUIRE(errno == ENOSPC);
  }
  void Free() const { REQUIRE(std::filesystem::remove(Path("filler"))); }

 private:
  SmallDisk() : folder_(TestFolder()) {}

  TempFolder folder_;
  bool mounted_ = false;
};

std::string Mini() { return SourcePath("tests/golden/jobs/mini.yaml"); }

TEST_CASE("disk full: a coordinator whose store cannot be made does not start") {
  const std::optional<SmallDisk> disk = SmallDisk::Mount(256);
  if (!disk.has_value()) {
    return;
  }
  disk->Fill();
  const std::string state = disk->Path("state");
  CheckEnded(RunCommand("geopipe-coordinator", {"--listen", "127.0.0.1:0", "--state-dir", state}), 1,
             "geopipe-coordinator: the job store " + state + "/jobs.sqlite could not be ",
             {"the disk is full; free some space or move state_dir"});
}

TEST_CASE(
    "disk full: a job is refused or durable, and a change that cannot be stored ends the coordinator with its reason") {
  const std::optional<SmallDisk> disk = SmallDisk::Mount(256);
  if (!disk.has_value()) {
    return;
  }
  const std::string state = disk->Path("state");
  const std::string sentence = "the job store " + state +
                               "/jobs.sqlite could not be written: the disk is full; free some space or move state_dir";
  {
    RunningCoordinator coordinator(state);
    disk->Fill();
    CheckEnded(coordinator.Ask({"apply", "-f", Mini()}), 1, "error: " + sentence, {});
    CHECK(coordinator.Ask({"get", "jobs"}).out == "no jobs\n");
    disk->Free();
    CHECK(coordinator.Ask({"apply", "-f", Mini()}).exit_status.success());
    disk->Fill();
    CHECK(coordinator.Ask({"get", "jobs"}).out.find("PENDING") != std::string::npos);
    CheckEnded(coordinator.Ask({"cancel", "mini"}), 1, "error: the coordinator has stopped: " + sentence, {});
    const CommandResult ended = coordinator.command().Finish(20 * kSecond);
    CHECK(ended.exit_status.exit_code == 1);
    CHECK(ended.err.ends_with("\ngeopipe-coordinator: " + sentence + "\n"));
  }
  disk->Fill();  // a store that is closed frees its log
  CheckEnded(RunCommand("geopipe-coordinator", {"--listen", "127.0.0.1:0", "--state-dir", state}), 1,
             "geopipe-coordinator: " + sentence, {});
  disk->Free();
  const RunningCoordinator again(state);
  CHECK(again.Ask({"describe", "mini"}).out.find("PENDING: ") != std::string::npos);  // it waits on
}

TEST_CASE("disk full: a trace that cannot be written is named, and no half of it is left") {
  const std::optional<SmallDisk> disk = SmallDisk::Mount(256);
  if (!disk.has_value()) {
    return;
  }
  disk->Fill();
  const std::string trace = disk->Path("trace.json");
  CheckEnded(
      RunCommand("geopipectl",
                 {"simulate", "-f", SourcePath("tests/golden/cases/two-sites-20ms.yaml"), "--export-trace", trace}),
      1, "error: cannot write " + trace + ": No space left on device; free some space or choose another folder", {});
  const std::filesystem::directory_iterator left(std::filesystem::path(trace).parent_path());
  CHECK(std::distance(left, std::filesystem::directory_iterator()) == 1);  // the filler
}

// A run whose disk fills up in its midst; `environment` and `output` say what lies on that disk.
CommandResult RunUntilFull(const SmallDisk& disk, const Command::Environment& environment, const std::string& output) {
  Command playground(
      "geopipectl",
      {"playground", "--job", Mini(), "--sites", "2", "--link", "latency=2ms,bandwidth=1Gbps", "--output", output},
      environment);
  WaitUntil(playground, [&] { return playground.out().find("iteration  2/40") != std::string::npos; });
  const std::vector<ProcessInfo> all = Descendants(playground.process().pid());
  CHECK(all.size() == 7);  // coordinator, two agents with a keeper each, two workers
  disk.Fill();
  CommandResult result = playground.Finish(60 * kSecond);
  CheckAllGone(all);
  return result;
}

TEST_CASE("disk full: a playground that cannot write its report and trace says so, and leaves nothing running") {
  const std::optional<SmallDisk> disk = SmallDisk::Mount(4096);
  if (!disk.has_value()) {
    return;
  }
  CheckEnded(RunUntilFull(*disk, {}, disk->Path("out")), 1, "error: cannot write " + disk->Path("out"),
             {"No space left on device; free some space"});
}

TEST_CASE("disk full: a job's end that cannot be stored fails the playground and leaves nothing running") {
  const std::optional<SmallDisk> disk = SmallDisk::Mount(16384);
  if (!disk.has_value()) {
    return;
  }
  const TempFolder output = TestFolder();
  CheckEnded(RunUntilFull(*disk, {{"TMPDIR", disk->Path("")}}, output.path().string()), 1,
             "error: ", {"the job store " + disk->Path(""), "the disk is full; free some space or move state_dir"});
}

// The public case: a tmpfs of 2 MiB that a first checkpoint or two fit on.
TEST_CASE(
    "disk full: a job whose checkpoints cannot be written says so once, waits for its last one, and is not lost") {
  const std::optional<SmallDisk> disk = SmallDisk::Mount(2048);
  if (!disk.has_value()) {
    return;
  }
  const bool freed = GENERATE(false, true);
  CAPTURE(freed);
  const TempFolder folder = TestFolder();
  const std::string job =
      ChangedJob(folder, "  precision: fp32\n",
                 fmt::format("  precision: fp32\n  checkpoint: {{path: {}, every: 10}}\n", disk->Path("ck")));
  disk->Fill();
  Command playground("geopipectl", {"playground", "--job", job, "--sites", "2", "--link", "latency=2ms,bandwidth=1Gbps",
                                    "--output", folder.path().string(), "--patience", freed ? "60s" : "10s"});
  const std::string waiting =
      "\nwaiting    all iterations are done; the last state cannot be written and is tried again: ";
  WaitUntil(playground, [&] { return playground.out().find(waiting) != std::string::npos; });
  const std::vector<ProcessInfo> all = Descendants(playground.process().pid());
  if (freed) {
    disk->Free();
  }
  const CommandResult result = playground.Finish(60 * kSecond);
  INFO(result.out);
  const size_t warning = result.out.find("\nwarning    ");
  REQUIRE(warning != std::string::npos);
  CHECK(result.out.find("\nwarning    ", warning + 1) == std::string::npos);  // once
  CHECK(result.out.substr(warning, result.out.find('\n', warning + 1) - warning).find("No space left on device") !=
        std::string::npos);
  if (freed) {
    CheckEnded(result, 0, "", {});
    CHECK(result.out.find("\nnote       checkpoints are written again: that of iteration 40 is complete\n") !=
          std::string::npos);
    CHECK(result.out.find("COMPLETED  all 40 iterations are done") != std::string::npos);
  } else {
    CheckEnded(result, 1, "",
               {"job mini has done all its iterations and has not ended 10s later: ", "No space left on device",
                "mend that and go on from its newest checkpoint"});
    CHECK(result.out.find("loss          ") != std::string::npos);  // its summary
  }
  CheckAllGone(all);
}

}  // namespace
}  // namespace geopipe
