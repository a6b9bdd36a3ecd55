#include "runtime/base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/poll.h"

namespace geopipe {
namespace {

constexpr size_t kMaxReadyLine = 4096;

// Data that the child uses between fork and execve, where nothing may be allocated (another thread may have held the
// allocator's lock at the moment of the fork).
struct ChildPlan {
  const char* program = nullptr;
  int program_fd = -1;  // ProcessSpec
  char* const* argv = nullptr;
  char* const* envp = nullptr;
  int stdin_fd = -1;
  int stdout_fd = -1;  // -1: as it is
  int stderr_fd = -1;
  int error_fd = -1;   // takes errno when the program cannot be executed
  int gate_fd = -1;    // gives a byte when the program is to be executed; -1: at once
  int opener_fd = -1;  // the parent's end of the gate
  const int* inherited = nullptr;
  size_t inherited_count = 0;
  const int* kept = nullptr;  // these, ascending, and the standard ones stay open until the program is executed
  size_t kept_count = 0;
  int parent_death_signal = 0;
  pid_t parent = 0;
  bool own_process_group = true;
};

// Async-signal-safe: system calls only.
[[noreturn]] void ReportAndExit(int error_fd) {
  const int error_number = errno;
  const ssize_t ignored = write(error_fd, &error_number, sizeof(error_number));
  (void)ignored;
  _exit(127);
}

// Async-signal-safe.
void ResetSignals() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) {
    sigaction(signal, &action, nullptr);  // fails for SIGKILL and SIGSTOP, which need no reset
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Async-signal-safe. Kernels before 5.9 do not know the call. The program still gets no descriptor that it should not
// have, because our own are close-on-exec, but a child that waits at its gate then keeps those of others open.
void CloseAllBut(const int* kept, size_t count) {
  unsigned from = STDERR_FILENO + 1;
  for (size_t i = 0; i < count; ++i) {
    const auto fd = static_cast<unsigned>(kept[i]);
    if (fd > from) {
      syscall(SYS_close_range, from, fd - 1, 0U);
    }
    from = fd >= from ? fd + 1 : from;
  }
  syscall(SYS_close_range, from, ~0U, 0U);
}

// Async-signal-safe. Returns when the parent opens the gate. If the gate closes instead, the parent has ended, and
// nobody is left to tell.
void WaitAtGate(int gate_fd) {
  char opened = 0;
  ssize_t got = 0;
  do {
    got = read(gate_fd, &opened, 1);
  } while (got < 0 && errno == EINTR);
  if (got != 1) {
    syscall(SYS_exit_group, 127);  // not _exit, before which ThreadSanitizer writes what the parent has buffered
  }
}

// Async-signal-safe. True when the path names the file that is open; false also when that cannot be told.
bool IsFile(const char* path, int fd) {
  struct stat named {};
  struct stat open {};
  return stat(path, &named) == 0 && fstat(fd, &open) == 0 && named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

// Async-signal-safe. Returns when the program cannot be executed.
void Execute(const ChildPlan& plan) {
  if (plan.program_fd < 0 || IsFile(plan.program, plan.program_fd)) {
    execve(plan.program, plan.argv, plan.envp);
    return;
  }
  syscall(SYS_execveat, plan.program_fd, "", plan.argv, plan.envp, AT_EMPTY_PATH);
  if (errno == ENOENT) {  // a script, and its interpreter would not find it
    fcntl(plan.program_fd, F_SETFD, 0);
    syscall(SYS_execveat, plan.program_fd, "", plan.argv, plan.envp, AT_EMPTY_PATH);
  }
}

// Async-signal-safe.
[[noreturn]] void RunChild(const ChildPlan& plan) {
  if (plan.own_process_group) {
    setpgid(0, 0);
  }
  if (plan.parent_death_signal != 0) {
    prctl(PR_SET_PDEATHSIG, plan.parent_death_signal);
    if (getppid() != plan.parent) {  // the parent died before the kernel was asked
      _exit(127);
    }
  }
  ResetSignals();
  if (dup2(plan.stdin_fd, STDIN_FILENO) < 0 || (plan.stdout_fd >= 0 && dup2(plan.stdout_fd, STDOUT_FILENO) < 0) ||
      (plan.stderr_fd >= 0 && dup2(plan.stderr_fd, STDERR_FILENO) < 0)) {
    ReportAndExit(plan.error_fd);
  }
  if (plan.gate_fd >= 0) {
    close(plan.opener_fd);  // must be the parent's alone, so that it closes with the parent
  }
  CloseAllBut(plan.kept, plan.kept_count);
  if (plan.gate_fd >= 0) {
    WaitAtGate(plan.gate_fd);
  }
  for (size_t i = 0; i < plan.inherited_count; ++i) {
    if (fcntl(plan.inherited[i], F_SETFD, 0) != 0) {
      ReportAndExit(plan.error_fd);
    }
  }
  Execute(plan);
  ReportAndExit(plan.error_fd);
}

std::vector<std::string> Environment(const ProcessSpec& spec) {
  const std::vector<std::pair<std::string, std::string>>& additions = spec.environment;
  std::vector<std::string> environment;
  for (char** entry = spec.inherits_environment ? environ : nullptr; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (std::ranges::find(additions, name, &std::pair<std::string, std::string>::first) == additions.end()) {
      environment.emplace_back(text);
    }
  }
  for (const auto& [name, value] : additions) {
    environment.push_back(fmt::format("{}={}", name, value));
  }
  return environment;
}

// Pointers into `strings`, ended by a null, as execve takes them.
std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& text : strings) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

absl::StatusOr<UniqueFd> OpenOutput(const std::filesystem::path& path) {
  if (path.empty()) {
    return UniqueFd();
  }
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return ErrnoStatus(errno, fmt::format("cannot write {}", path.string()));
  }
  return fd;
}

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> MakePipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "cannot make a pipe");
  }
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

// Makes sockets and not a pipe, which would raise SIGPIPE here when the child is gone.
absl::StatusOr<std::pair<UniqueFd, UniqueFd>> MakeGate() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return ErrnoStatus(errno, "cannot make a pair of sockets");
  }
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

// 0 when the child is executing its program, else the errno that kept it from doing so.
int ReadExecError(int fd) {
  int error_number = 0;
  ssize_t got = 0;
  do {
    got = read(fd, &error_number, sizeof(error_number));
  } while (got < 0 && errno == EINTR);
  return got == sizeof(error_number) ? error_number : 0;
}

absl::Status CannotExecute(int error_number, std::string_view program) {
  return ErrnoStatus(error_number, fmt::format("cannot execute {}", program));
}

}  // namespace

std::string ExitStatus::Description() const {
  if (signal == 0) {
    return fmt::format("exited with code {}", exit_code);
  }
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("was killed by signal {}", signal)
                         : fmt::format("was killed by signal {} (SIG{})", signal, name);
}

absl::StatusOr<Process> Process::Start(const ProcessSpec& spec) {
  GP_ASSIGN_OR_RETURN(const UniqueFd stdout_fd, OpenOutput(spec.stdout_path));
  GP_ASSIGN_OR_RETURN(const UniqueFd stderr_fd, OpenOutput(spec.stderr_path));
  const UniqueFd stdin_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!stdin_fd.valid()) {
    return ErrnoStatus(errno, "cannot open /dev/null");
  }
  GP_ASSIGN_OR_RETURN(auto error_pipe, MakePipe());
  std::pair<UniqueFd, UniqueFd> gate;  // the parent's end, the child's
  if (spec.gated) {
    GP_ASSIGN_OR_RETURN(gate, MakeGate());
  }
  std::vector<int> kept = spec.inherited_fds;
  kept.push_back(error_pipe.second.get());
  if (spec.program_fd >= 0) {
    kept.push_back(spec.program_fd);
  }
  if (spec.gated) {
    kept.push_back(gate.second.get());
  }
  std::ranges::sort(kept);

  std::vector<std::string> arguments{spec.program};
  arguments.insert(arguments.end(), spec.args.begin(), spec.args.end());
  const std::vector<char*> argv = Pointers(arguments);
  std::vector<std::string> environment = Environment(spec);
  const std::vector<char*> envp = Pointers(environment);
  const ChildPlan plan{.program = spec.program.c_str(),
                       .program_fd = spec.program_fd,
                       .argv = argv.data(),
                       .envp = envp.data(),
                       .stdin_fd = stdin_fd.get(),
                       .stdout_fd = stdout_fd.get(),
                       .stderr_fd = stderr_fd.get(),
                       .error_fd = error_pipe.second.get(),
                       .gate_fd = gate.second.get(),
                       .opener_fd = gate.first.get(),
                       .inherited = spec.inherited_fds.data(),
                       .inherited_count = spec.inherited_fds.size(),
                       .kept = kept.data(),
                       .kept_count = kept.size(),
                       .parent_death_signal = spec.parent_death_signal,
                       .parent = getpid(),
                       .own_process_group = spec.own_process_group};
  const pid_t pid = fork();
  if (pid == 0) {
    RunChild(plan);
  }
  if (pid < 0) {
    return ErrnoStatus(errno, fmt::format("cannot start {}", spec.program));
  }
  // This object reaps the child, so the number still names it.
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  const int pidfd_error = pidfd.valid() ? 0 : errno;
  fcntl(pidfd.get(), F_SETFD, FD_CLOEXEC);
  error_pipe.second.Reset();
  const int exec_error = spec.gated ? 0 : ReadExecError(error_pipe.first.get());
  if (exec_error == 0 && pidfd_error == 0) {
    Process process(pid, std::move(pidfd));
    if (spec.gated) {
      process.gate_ =
          Gate{.opener = std::move(gate.first), .errors = std::move(error_pipe.first), .program = spec.program};
    }
    return process;
  }
  kill(pid, SIGKILL);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return exec_error != 0 ? CannotExecute(exec_error, spec.program)
                         : ErrnoStatus(pidfd_error, fmt::format("cannot watch {} through a pidfd", spec.program));
}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    End();
    pid_ = other.pid_;
    pidfd_ = std::move(other.pidfd_);
    gate_ = std::move(other.gate_);
    exit_status_ = other.exit_status_;
    detached_ = other.detached_;
  }
  return *this;
}

Process::~Process() { End(); }

absl::Status Process::Release() {
  GP_CHECK(gate_.has_value(), "process {} waits at no gate", pid_);
  const Gate gate = *std::exchange(gate_, std::nullopt);
  const char opened = 1;
  const ssize_t ignored = send(gate.opener.get(), &opened, 1, MSG_NOSIGNAL);  // fails only when the child is gone
  (void)ignored;
  const int exec_error = ReadExecError(gate.errors.get());
  if (exec_error == 0) {
    return absl::OkStatus();
  }
  Wait(-1);  // the child ends by itself
  return CannotExecute(exec_error, gate.program);
}

void Process::End() {
  if (pidfd_.valid() && !detached_ && !exit_status_.has_value()) {
    Signal(SIGKILL);
    Wait(-1);
  }
}

std::optional<ExitStatus> Process::Wait(int64_t timeout_ns) {
  if (exit_status_.has_value()) {
    return exit_status_;
  }
  pollfd ended{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  if (PollFor({&ended, 1}, timeout_ns) == 0) {
    return std::nullopt;
  }
  siginfo_t info{};
  int result = 0;
  do {
    result = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED);
  } while (result != 0 && errno == EINTR);
  GP_CHECK(result == 0, "waitid({}) failed, errno {}", pid_, errno);
  exit_status_ = info.si_code == CLD_EXITED ? ExitStatus{.exit_code = info.si_status, .signal = 0}
                                            : ExitStatus{.exit_code = 0, .signal = info.si_status};
  return exit_status_;
}

void Process::Signal(int signal) {
  if (!exit_status_.has_value()) {
    kill(static_cast<pid_t>(pid_), signal);  // not reaped: the number is still this child's
  }
}

ExitStatus Process::Terminate(int64_t grace_ns) {
  Signal(SIGTERM);
  if (!Wait(grace_ns).has_value()) {
    Signal(SIGKILL);
    Wait(-1);
  }
  return *exit_status_;
}

absl::StatusOr<ReadyPipe> ReadyPipe::Create() {
  GP_ASSIGN_OR_RETURN(auto ends, MakePipe());
  return ReadyPipe(std::move(ends.first), std::move(ends.second));
}

absl::StatusOr<std::string> ReadyPipe::ReadLine(Process& child, int64_t timeout_ns, int interrupt_fd) {
  write_end_.Reset();  // the child's copy is then the only one, and its end is the pipe's end
  const int64_t until_ns = Clock::Real().NowNs() + timeout_ns;
  std::string line;
  while (line.size() < kMaxReadyLine) {
    std::array<pollfd, 2> wanted{pollfd{.fd = read_end_.get(), .events = POLLIN, .revents = 0},
                                 pollfd{.fd = interrupt_fd, .events = POLLIN, .revents = 0}};
    const int64_t left_ns = until_ns - Clock::Real().NowNs();
    if (left_ns <= 0 || PollFor(wanted, left_ns) == 0) {
      return absl::DeadlineExceededError(
          fmt::format("process {} was not ready within {:.1f} s", child.pid(), static_cast<double>(timeout_ns) * 1e-9));
    }
    if (wanted[1].revents != 0) {
      return absl::CancelledError("interrupted while waiting for a process to be ready");
    }
    char character = 0;
    const ssize_t got = read(read_end_.get(), &character, 1);
    if (got == 0) {
      // Every descriptor of a dying process closes a moment before it can be reaped.
      const std::optional<ExitStatus> ended = child.Wait(std::min<int64_t>(left_ns, 1'000'000'000));
      return absl::UnavailableError(ended.has_value() ? fmt::format("it {} before it was ready", ended->Description())
                                                      : "it closed its ready pipe without saying that it is ready");
    }
    if (got == 1 && character == '\n') {
      return line;
    }
    if (got == 1) {
      line += character;
    }
  }
  return absl::UnavailableError(fmt::format("its ready line is longer than {} bytes", kMaxReadyLine));
}

absl::Status NotifyReady(int fd, std::string_view line) {
  UniqueFd owned(fd);
  const std::string text = fmt::format("{}\n", line);
  const ssize_t put = write(fd, text.data(), text.size());  // shorter than PIPE_BUF: all or nothing
  return put == static_cast<ssize_t>(text.size())
             ? absl::OkStatus()
             : ErrnoStatus(errno, fmt::format("cannot write to --ready-fd {}", fd));
}

absl::Status DieWithParent(int signal) {
  const pid_t parent = getppid();
  if (prctl(PR_SET_PDEATHSIG, signal) != 0) {
    return ErrnoStatus(errno, "cannot ask for a signal at the parent's death");
  }
  if (getppid() != parent) {
    return absl::UnavailableError("the parent is gone already");
  }
  return absl::OkStatus();
}

}  // namespace geopipe
