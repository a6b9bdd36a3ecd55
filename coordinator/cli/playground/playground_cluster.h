// The processes of a playground: one coordinator and one agent per node, as children of this process on loopback with
// free ports. They end with it, whatever way it ends.
#pragma once

#include <absl/status/statusor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/cli/playground/playground_layout.h"
#include "optimizer/model/run_options.h"
#include "runtime/base/process.h"

namespace geopipe {

// Main thread only (children are tied to the thread that starts them).
class PlaygroundCluster {
 public:
  struct Options {
    BackendKind backend = BackendKind::kCpu;  // of the runs: with cuda the devices are GPUs of this machine
    std::string gpu_library;                  // tests: that the agents are told of; empty: none
  };
  // Starts everything below `state_folder` (logs in `log_folder`) and waits until every agent has registered.
  // Cancelled when `interrupt_fd` becomes readable first; other errors name the program and the end of its log.
  static absl::StatusOr<std::unique_ptr<PlaygroundCluster>> Start(const PlaygroundLayout& layout,
                                                                  const std::filesystem::path& state_folder,
                                                                  const std::filesystem::path& log_folder,
                                                                  const Options& options, int interrupt_fd);
  ~PlaygroundCluster();

  // "127.0.0.1:PORT" of the coordinator.
  const std::string& endpoint() const { return endpoint_; }

  // Readable when a child has ended, one for each.
  std::vector<int> pidfds() const;
  // OK while all run; otherwise which has ended, how, and its last words.
  absl::Status Check();

  // Ends agents (and with them their workers) and coordinator; those that do not go within `grace_ns` are killed.
  void Stop(int64_t grace_ns);

 private:
  struct Child {
    std::string name;  // "geopipe-agent of site north"
    std::filesystem::path log;
    Process process;
  };

  PlaygroundCluster() = default;
  absl::StatusOr<std::string> Launch(const std::string& program, const std::string& name,
                                     const std::filesystem::path& config, const std::filesystem::path& log,
                                     const std::vector<std::string>& more, int interrupt_fd);

  std::string endpoint_;
  std::vector<Child> children_;  // the coordinator first
};

}  // namespace geopipe
