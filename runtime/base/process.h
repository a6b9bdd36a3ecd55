// Child processes: started without a shell, watched through a pidfd, ended politely at first and then killed.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace geopipe {

// The end of a process.
struct ExitStatus {
  int exit_code = 0;  // if signal is 0
  int signal = 0;     // 0: it exited by itself

  bool success() const { return signal == 0 && exit_code == 0; }
  // "exited with code 3", "was killed by signal 9 (SIGKILL)".
  std::string Description() const;

  friend bool operator==(const ExitStatus&, const ExitStatus&) = default;
};

struct ProcessSpec {
  std::string program{};  // path of the executable
  // The open file that is executed where `program` is another file by then; -1: whatever `program` is. Either way the
  // program's own name is `program`. A script keeps the descriptor open, because its interpreter reads it by that.
  int program_fd = -1;
  std::vector<std::string> args{};                                 // without the program's own name
  std::vector<std::pair<std::string, std::string>> environment{};  // added to this process's, or replacing parts of it
  bool inherits_environment = true;                                // false: `environment` is all
  std::filesystem::path stdout_path{};                             // appended to; empty: as this process's
  std::filesystem::path stderr_path{};                             // appended to; empty: as this process's
  std::vector<int> inherited_fds{};  // stay open under their numbers; all others above 2 are closed
  int parent_death_signal = 0;       // sent to the child when the *thread* that started it ends; 0: the child lives on
  bool own_process_group = true;     // a Ctrl-C at the terminal reaches only the parent
  bool gated = false;                // the child waits, and executes the program only after Release
};

// One child. Not thread-safe.
class Process {
 public:
  // Standard input is /dev/null; signal mask and dispositions are the defaults. Errors: NotFound and others with the
  // path when the program cannot be executed (of a gated child, Release says so) or an output file cannot be opened.
  static absl::StatusOr<Process> Start(const ProcessSpec& spec);

  Process(Process&&) noexcept = default;
  Process& operator=(Process&& other) noexcept;
  // Kills and reaps a child that still runs, unless it was detached. A gated child that was not released ends without
  // having executed the program, detached or not, and also when this process dies in whatever way.
  ~Process();

  // Lets a gated child execute the program. Call once. Errors: as Start's when it cannot be executed; the child has
  // then ended. A child that was killed while it waited is no error: Wait reports it.
  absl::Status Release();

  int64_t pid() const { return pid_; }
  // Readable once the child has ended. Owned by this object.
  int pidfd() const { return pidfd_.get(); }

  // Waits at most `timeout_ns` (0: only looks; negative: for ever) for the end of the child and reaps it; nullopt when
  // it still runs. Once it has ended every call gives the same answer.
  std::optional<ExitStatus> Wait(int64_t timeout_ns);

  // Does nothing to a child that has been reaped.
  void Signal(int signal);

  // Sends SIGTERM, and SIGKILL if the child has not ended within `grace_ns`. Returns how it ended.
  ExitStatus Terminate(int64_t grace_ns);

  // Lets the child live on when this object is destroyed.
  void Detach() { detached_ = true; }

 private:
  Process(int64_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}
  void End();

  // The parent's side of a gated child that waits.
  struct Gate {
    UniqueFd opener;  // the child waits for a byte from here; its end ends the child
    UniqueFd errors;  // tells when the program cannot be executed
    std::string program;
  };

  int64_t pid_ = 0;
  UniqueFd pidfd_;
  std::optional<Gate> gate_;
  std::optional<ExitStatus> exit_status_;
  bool detached_ = false;
};

// A pipe by which a child tells its parent that it is ready: it writes one line to the descriptor whose number it is
// given (`--ready-fd N`).
class ReadyPipe {
 public:
  static absl::StatusOr<ReadyPipe> Create();

  // The child's end, for ProcessSpec::inherited_fds and its command line.
  int child_fd() const { return write_end_.get(); }

  // The line without its newline. Call once, after the child was started. DeadlineExceeded after `timeout_ns`;
  // Unavailable at once when the child ends or closes the pipe first (the message says how it ended); Cancelled when
  // `interrupt_fd` (-1: none) becomes readable.
  absl::StatusOr<std::string> ReadLine(Process& child, int64_t timeout_ns, int interrupt_fd = -1);

 private:
  ReadyPipe(UniqueFd read_end, UniqueFd write_end) : read_end_(std::move(read_end)), write_end_(std::move(write_end)) {}

  UniqueFd read_end_;
  UniqueFd write_end_;
};

// The child's side: writes `line` and a newline to `fd` and closes it.
absl::Status NotifyReady(int fd, std::string_view line);

// Asks the kernel to send `signal` to this process when its parent ends, for programs started with
// `--die-with-parent`. Unavailable when the parent is gone already. Call early in main, from the main thread.
absl::Status DieWithParent(int signal);

}  // namespace geopipe
