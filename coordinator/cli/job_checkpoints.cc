#include "coordinator/cli/job_checkpoints.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <string_view>
#include <thread>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/render/format.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "runtime/base/output.h"
#include "runtime/base/terminal.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {
namespace {

using Json = nlohmann::ordered_json;

// The listed checkpoint before an iteration; nullptr while it is not listed.
const v1::CheckpointSummary* Find(const v1::JobDetail& detail, int64_t iteration) {
  const auto found = std::ranges::find_if(detail.checkpoints(), [&](const v1::CheckpointSummary& checkpoint) {
    return checkpoint.identity().iteration() == iteration;
  });
  return found == detail.checkpoints().end() ? nullptr : &*found;
}

bool IsOver(const v1::JobDetail& detail) {
  const v1::JobState state = detail.summary().state();
  return state == v1::JOB_STATE_COMPLETED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

}  // namespace

std::string TimeText(int64_t unix_time_ns) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(static_cast<std::time_t>(unix_time_ns / 1'000'000'000)));
}

std::string NewestCheckpointFolder(const v1::JobDetail& detail) {
  const absl::StatusOr<JobSpec> job = ParseManifest(detail.manifest());
  return detail.checkpoints_size() == 0 || !job.ok()
             ? ""
             : CheckpointFolder(job->checkpoint.path, detail.checkpoints().rbegin()->identity().iteration());
}

std::string CheckpointText(const v1::JobDetail& detail, int32_t columns) {
  std::string text;
  if (detail.checkpoints_size() > 0) {
    Table table({"CHECKPOINT", "COMPLETE (UTC)", "SIZE", "TOOK", "EPOCH", "COPIED (UTC)"});
    for (const v1::CheckpointSummary& checkpoint : detail.checkpoints()) {
      table.AddRow({fmt::format("iteration {}", checkpoint.identity().iteration()), TimeText(checkpoint.unix_time_ns()),
                    HumanBytes(checkpoint.bytes()), HumanDuration(checkpoint.duration_ns()),
                    std::to_string(checkpoint.identity().epoch()),
                    checkpoint.replicated_unix_time_ns() > 0 ? TimeText(checkpoint.replicated_unix_time_ns()) : "-"});
    }
    text = fmt::format("{}newest: {}\n", table.Render(columns), NewestCheckpointFolder(detail));
  }
  if (!detail.checkpoint_trouble().empty()) {
    text += fmt::format("{}\n", detail.checkpoint_trouble());
  }
  return text;
}

Json CheckpointsToJson(const v1::JobDetail& detail) {
  Json checkpoints = Json::array();
  const absl::StatusOr<JobSpec> job = ParseManifest(detail.manifest());
  for (const v1::CheckpointSummary& checkpoint : detail.checkpoints()) {
    checkpoints.push_back(
        {{"iteration", checkpoint.identity().iteration()},
         {"epoch", checkpoint.identity().epoch()},
         {"path",
          job.ok() ? Json(CheckpointFolder(job->checkpoint.path, checkpoint.identity().iteration())) : Json(nullptr)},
         {"bytes", checkpoint.bytes()},
         {"unix_time_ns", checkpoint.unix_time_ns()},
         {"duration_ns", checkpoint.duration_ns()},
         {"replicated_unix_time_ns",
          checkpoint.replicated_unix_time_ns() > 0 ? Json(checkpoint.replicated_unix_time_ns()) : Json(nullptr)}});
  }
  return checkpoints;
}

absl::StatusOr<int> RunCheckpointNow(std::span<const std::string> arguments) {
  constexpr std::chrono::milliseconds kAskEvery{250};
  CommonFlags common;
  std::string job;
  FlagSet flags("geopipectl checkpoint now", "Makes a job write a checkpoint now, and waits until it is complete.");
  flags.AddPositional("JOB", &job, true, "Name of the job ('geopipectl get jobs').");
  common.AddServer(flags);
  common.AddFormat(flags, {"table", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  ControlClient client(common.server, common.timeout_ns);
  GP_ASSIGN_OR_RETURN(const v1::CheckpointJobResponse asked, client.CheckpointJob(job));
  const int64_t iteration = asked.iteration();
  if (ErrorIsTerminal()) {
    PrintErr("job {} writes a checkpoint before iteration {}; it has finished {}\n", job, iteration,
             asked.job().iterations_done());
  }
  while (true) {
    GP_ASSIGN_OR_RETURN(const v1::JobDetail detail, client.GetJob(job));
    if (const v1::CheckpointSummary* done = Find(detail, iteration); done != nullptr) {
      if (common.output == OutputFormat::kTable) {
        PrintOut("checkpoint of iteration {}: {} after {}\n", iteration, HumanBytes(done->bytes()),
                 HumanDuration(done->duration_ns()));
      } else {
        PrintDocument({{"job", job}, {"iteration", iteration}, {"bytes", done->bytes()}}, common.output);
      }
      return kExitOk;
    }
    if (!detail.checkpoint_trouble().empty()) {
      return WithExitCode(absl::AbortedError(detail.checkpoint_trouble()), kExitFailed);
    }
    if (IsOver(detail)) {
      return WithExitCode(
          absl::AbortedError(
              fmt::format("job {} is {}: {}", job, JobStateName(detail.summary().state()), detail.summary().cause())),
          kExitFailed);
    }
    std::this_thread::sleep_for(kAskEvery);
  }
}

}  // namespace geopipe
