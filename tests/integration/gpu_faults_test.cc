// GPUs that are not there, run out of memory, are lost or hang, and workers on GPUs that are killed: what the job says,
// how soon the process is gone, and that the job goes on with the numbers of an undisturbed one. With real programs on
// emulated GPUs (tests/support/gpu_emulator/gpu_emulator.h has the faults).
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "tests/integration/daemons.h"
#include "tests/integration/grid_job.h"
#include "tests/integration/processes.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

using Catch::Matchers::Contains;

constexpr int64_t kLimitNs = 60 * kSecond;
constexpr int64_t kGoneLimitNs = 15 * kSecond;

constexpr const char* kEmulatedLibrary = GEOPIPE_BINARY_DIR "/bin/libgeopipe_cuda_emulated.so";

// kPaced: the ranks keep the pace of described devices, so that each worker's launches are those of training.
// kMeasured: the first of them are those of a measurement.
enum class Devices : uint8_t { kPaced, kMeasured };

// A playground of two tensor ranks on GPUs with these settings, and its report as JSON.
class GpuPlayground {
 public:
  explicit GpuPlayground(const std::string& settings, const std::string& library = kEmulatedLibrary,
                         Devices devices = Devices::kPaced)
      : command_("geopipectl", Args(library, devices), {{"GEOPIPE_EMULATED_GPU", settings}}) {}

  Command& command() { return command_; }

  std::vector<ProcessInfo> Workers() {
    std::vector<ProcessInfo> workers = Descendants(command_.process().pid());
    std::erase_if(workers, [](const ProcessInfo& process) { return !process.Runs("geopipe-worker"); });
    return workers;
  }

  std::string AgentLog() const {
    return *ReadFile(folder_.path() / "tiny.playground/logs/agent-east-0.log", size_t{1} << 20);
  }

 private:
  std::vector<std::string> Args(const std::string& library, Devices devices) const {
    const std::string job = WriteGridJob(folder_, {.name = "tiny",
                                                   .parallelism = "tensor: 2, pipeline: 1",
                                                   .sites = "east",
                                                   .more = "  recovery: memory\n",
                                                   .iterations = 4,
                                                   .tokens_per_iteration = 256});
    std::vector<std::string> args{"playground",
                                  "--job",
                                  job,
                                  "--topology",
                                  WriteGridSites(folder_, "sites", {{.name = "east", .devices_per_node = 2}}),
                                  "--output",
                                  folder_.path().string(),
                                  "-o",
                                  "json",
                                  "--backend",
                                  "cuda",
                                  "--gpu-library",
                                  library};
    if (devices == Devices::kPaced) {
      args.emplace_back("--pace");
    }
    return args;
  }

  TempFolder folder_ = TestFolder();
  Command command_;
};

// The file that is there from the first fault on (once=FILE).
class FaultFile {
 public:
  std::string path() const { return (folder_.path() / "fault").string(); }
  bool is_there() const { return std::filesystem::exists(path()); }

 private:
  TempFolder folder_ = TestFolder();
};

// Waits until one of the processes is gone. REQUIREs that it is in time.
void AwaitOneGone(Command& command, const std::vector<ProcessInfo>& processes) {
  const int64_t from_ns = Clock::Real().NowNs();
  WaitUntil(command, [&] { return !std::ranges::all_of(processes, Exists); });
  CHECK(Clock::Real().NowNs() - from_ns < kGoneLimitNs);
}

// REQUIREs that the job has been completed after one recovery.
std::string NumbersAfterRecovery(GpuPlayground& playground, const std::string& sentence) {
  const CommandResult result = playground.command().Finish(kLimitNs);
  INFO(result.err);
  REQUIRE(result.exit_status.success());
  CHECK_THAT(result.err, Contains(sentence));
  CHECK_THAT(result.err, Contains("all 2 ranks have committed epoch 2") && !Contains("committed epoch 3"));
  // The other rank has no part in it.
  const std::string log = playground.AgentLog();
  int starts = 0;
  for (size_t at = log.find("started worker"); at != std::string::npos; at = log.find("started worker", at + 1)) {
    ++starts;
  }
  CHECK(starts == 3);
  return GridNumbers(nlohmann::json::parse(result.out));
}

TEST_CASE("a job on GPUs that cannot be used is refused at once, with one sentence") {
  struct Case {
    std::string settings;
    std::string sentence;
    std::string library = kEmulatedLibrary;
  };
  const std::vector<Case> cases = {
      {"",
       "GPUs cannot be used: /nowhere/libgeopipe_cuda.so is neither beside the program nor on the library path; "
       "install it, or add its folder to LD_LIBRARY_PATH",
       "/nowhere/libgeopipe_cuda.so"},
      {"", "install the libgeopipe_cuda.so of this program's build", SourcePath("LICENSE")},
      {"driver=11.0",
       "GPUs cannot be used: the NVIDIA driver runs CUDA up to 11.0, and CUDA runtime 13.0 needs 13.0 or newer; "
       "install "
       "a newer driver"},
      {"driver=0.0",
       "GPUs cannot be used: no NVIDIA driver is installed; install one, or run the job with backend cpu"},
      {"devices=0", "GPUs cannot be used: the NVIDIA driver sees none; check nvidia-smi and CUDA_VISIBLE_DEVICES"},
  };
  for (const Case& c : cases) {
    INFO(c.sentence);
    const int64_t from_ns = Clock::Real().NowNs();
    const CommandResult result = GpuPlayground(c.settings, c.library).command().Finish(kGoneLimitNs);
    CHECK(Clock::Real().NowNs() - from_ns < kGoneLimitNs);
    CHECK(result.exit_status.exit_code == 1);
    CHECK_THAT(result.err, Contains("error: site east cannot run backend cuda: node east/0: ") &&
                               Contains(c.sentence + "\n") && !Contains("PENDING"));
  }
}

TEST_CASE("a GPU that is lost or hangs costs its worker, and the job goes on with the numbers of no fault") {
  GpuPlayground undisturbed("");
  const CommandResult whole = undisturbed.command().Finish(kLimitNs);
  INFO(whole.err);
  REQUIRE(whole.exit_status.success());
  const std::string numbers = GridNumbers(nlohmann::json::parse(whole.out));

  struct Case {
    std::string fault;
    std::string sentence;
  };
  const std::vector<Case> cases = {
      {"lost_at=900",
       "has failed: computing: an illegal memory access was encountered (cudaErrorIllegalAddress); "
       "restart the worker, and check the driver's log (dmesg) if it fails again"},
      {"off_bus_at=900", "the device has fallen off the bus (cudaErrorUnknown); restart the worker"},
      {"stuck_at=900", "(site east) is stuck: 0"},
  };
  for (const Case& c : cases) {
    INFO(c.fault);
    const FaultFile fault;
    GpuPlayground playground(fmt::format("{},once={}", c.fault, fault.path()));
    std::vector<ProcessInfo> workers;
    WaitUntil(playground.command(), [&] {
      std::vector<ProcessInfo> now = playground.Workers();
      workers = now.size() == 2 ? now : workers;
      return fault.is_there();
    });
    AwaitOneGone(playground.command(), workers);
    CHECK(NumbersAfterRecovery(playground, c.sentence) == numbers);
  }

  GpuPlayground killed("");
  WaitUntil(killed.command(), [&] { return killed.command().err().find("iteration 2/4") != std::string::npos; });
  const std::vector<ProcessInfo> workers = killed.Workers();
  REQUIRE(workers.size() == 2);
  REQUIRE(kill(static_cast<pid_t>(workers[0].pid), SIGKILL) == 0);
  CHECK(NumbersAfterRecovery(killed, "epoch 2 goes on from iteration ") == numbers);
}

TEST_CASE("workers whose GPU hangs end by themselves when they are told to") {
  const FaultFile fault;
  GpuPlayground playground("stuck_at=3,once=" + fault.path());
  WaitUntil(playground.command(), [&] { return fault.is_there(); });
  const std::vector<ProcessInfo> workers = playground.Workers();
  const std::vector<ProcessInfo> all = Descendants(playground.command().process().pid());
  const auto agent =
      std::ranges::find_if(all, [](const ProcessInfo& process) { return process.Runs("geopipe-agent"); });
  REQUIRE(workers.size() == 2);
  REQUIRE(agent != all.end());
  REQUIRE(kill(static_cast<pid_t>(agent->pid), SIGTERM) == 0);
  WaitUntil(playground.command(), [&] { return std::ranges::none_of(workers, Exists); });
  CHECK_THAT(playground.AgentLog(), Contains("SIGTERM: stopping the workers") && !Contains("killing worker"));
}

TEST_CASE("a GPU that hangs while it is measured ends the job in time, with one sentence") {
  const FaultFile fault;
  GpuPlayground playground("stuck_at=40,once=" + fault.path(), kEmulatedLibrary, Devices::kMeasured);
  WaitUntil(playground.command(), [&] { return fault.is_there(); });
  AwaitOneGone(playground.command(), playground.Workers());
  const CommandResult result = playground.command().Finish(kLimitNs);
  CHECK(result.exit_status.exit_code == 1);
  CHECK_THAT(result.err,
             Contains("error: job tiny FAILED: worker east/0/") && Contains(" its work is not over in time"));
}

TEST_CASE("a fault of a GPU that comes back, and memory that it has not, end the job with one sentence") {
  struct Case {
    std::string fault;
    std::string sentence;
  };
  const std::vector<Case> cases = {
      {"lost_at=2", "error: job tiny gets nowhere: the job has lost workers 3 times without finishing an iteration; "},
      {"out_of_memory_at=3", "for weights left, though this worker uses "},
      {"out_of_memory_at=45", "failed: iteration 0, "},
      {"host_out_of_memory_at=3", "the host has no "},
  };
  for (const Case& c : cases) {
    INFO(c.fault);
    GpuPlayground playground(c.fault);
    const CommandResult result = playground.command().Finish(kLimitNs);
    INFO(result.err);
    CHECK(result.exit_status.exit_code == 1);
    CHECK_THAT(result.err, Contains(c.sentence));
    const size_t error = result.err.find("error: job tiny ");
    REQUIRE(error != std::string::npos);
    CHECK(result.err.find('\n', error) == result.err.size() - 1);  // one line
  }
}

}  // namespace
}  // namespace geopipe
