#include "agent/worker_backends.h"

#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "agent/worker_supervisor.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"

namespace geopipe::agent {
namespace {

constexpr size_t kMaxAnswerBytes = size_t{64} << 10;

absl::StatusOr<std::vector<RefusedBackend>> Ask(const AgentConfig& config, int64_t limit_ns) {
  const std::filesystem::path answer = config.state_dir + "/worker-backends";
  std::error_code ignored;
  std::filesystem::remove(answer, ignored);
  GP_ASSIGN_OR_RETURN(Process process, Process::Start(BackendsProcess(config, answer)));
  const std::optional<ExitStatus> ended = process.Wait(limit_ns);
  if (!ended.has_value()) {
    return absl::DeadlineExceededError(fmt::format("it did not end within {}", FormatDuration(limit_ns)));
  }
  if (!ended->success()) {
    return absl::InternalError(fmt::format("it {}", ended->Description()));
  }
  GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(answer, kMaxAnswerBytes));
  return ParseBackends(text);
}

}  // namespace

ProcessSpec BackendsProcess(const AgentConfig& config, const std::filesystem::path& answer) {
  ProcessSpec spec;
  spec.program = config.worker_binary;
  std::set<std::string> gpus;
  std::string visible;
  for (int32_t device = 0; device < config.devices; ++device) {
    const std::string gpu = config.GpuOf(device);
    if (!gpu.empty() && gpus.insert(gpu).second) {
      visible += (visible.empty() ? "" : ",") + gpu;
    }
  }
  spec.args = {"--backends", "--gpus", std::to_string(gpus.size())};
  AddGpus(config, visible, spec);
  AddPassedEnvironment(config, spec);
  spec.stdout_path = answer;
  spec.parent_death_signal = SIGKILL;
  return spec;
}

std::vector<RefusedBackend> AskBackends(const AgentConfig& config, int64_t limit_ns) {
  absl::StatusOr<std::vector<RefusedBackend>> refused = Ask(config, limit_ns);
  if (!refused.ok()) {
    const std::string reason = fmt::format(
        "{} --backends was asked what it can run: {}; see that it runs on this host and is of the agent's "
        "version, then start the agent again",
        config.worker_binary, std::string(refused.status().message()));
    refused.emplace();
    for (const BackendKind kind : kBackendKinds) {
      refused->push_back({kind, reason});
    }
  } else if (config.device.kind != kGpuDevice) {
    std::erase_if(*refused, [](const RefusedBackend& each) { return each.backend == BackendKind::kCuda; });
    refused->push_back({BackendKind::kCuda,
                        fmt::format("devices.kind is '{}'; set devices.kind: cuda in the agent's configuration, so "
                                    "that each worker gets a GPU",
                                    config.device.kind)});
  }
  return *std::move(refused);
}

}  // namespace geopipe::agent
