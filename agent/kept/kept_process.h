// A worker's process as its keeper sees it, also where an earlier keeper has started it, and the file that it executes.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "geopipe/v1/keeper.pb.h"
#include "runtime/base/process.h"
#include "runtime/base/unique_fd.h"

namespace geopipe::agent {

// Exit code, with signal 0, of a worker whose parent was killed: nobody knows how it ended.
constexpr int32_t kUnknownExitCode = -1;

// Names the machine's life: another one after each start of it. Empty: not known.
std::string BootId();

// Start of the process, in ticks since that of the machine; 0 when there is no such process.
uint64_t StartTicks(int64_t pid);

// Not valid: there is no such process.
UniqueFd OpenPidfd(int64_t pid);

// A file as stat names it; inode 0: there is none.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

FileIdentity IdentityOf(const UniqueFd& fd);

// Opens a program to be executed by its descriptor. Not valid, with errno: it cannot be.
UniqueFd OpenProgram(const std::string& path);

// Files that all workers of a run use, whatever is installed meanwhile.
struct RunFiles {
  UniqueFd program;
  UniqueFd gpu_library;  // not valid: none lies beside the program
};

// Opens the program and the GPU library beside it. The program is not valid, with errno: it cannot be executed.
RunFiles OpenRunFiles(const std::string& program);

// The files that the worker uses, those that are the ones that an earlier keeper had open for its run.
RunFiles OpenRunFilesOf(const v1::KeptWorker& child);

// A child of this process, or of an earlier keeper and then known by its pidfd alone.
class KeptProcess {
 public:
  explicit KeptProcess(Process process) : process_(std::move(process)) { process_->Detach(); }
  explicit KeptProcess(UniqueFd pidfd) : pidfd_(std::move(pidfd)) {}

  int pidfd() const { return process_.has_value() ? process_->pidfd() : pidfd_.get(); }
  // REQUIRES: a child of this process that waits for its release.
  absl::Status Release() { return process_->Release(); }
  void Discard() { process_->Terminate(0); }
  void Signal(int signal) const;
  // nullopt: it runs.
  std::optional<ExitStatus> Ended();

 private:
  std::optional<Process> process_;
  UniqueFd pidfd_;
};

}  // namespace geopipe::agent
