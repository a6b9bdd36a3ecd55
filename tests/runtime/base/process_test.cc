#include "runtime/base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/poll.h"
#include "runtime/base/unique_fd.h"

namespace geopipe {
namespace {

constexpr int64_t kLongNs = 60'000'000'000;

ProcessSpec Shell(const std::string& script) { return {.program = "/bin/sh", .args = {"-c", script}}; }

UniqueFd Watch(int64_t pid) { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0))); }

bool EndsWithin(int pidfd, int64_t timeout_ns) {
  pollfd ended{.fd = pidfd, .events = POLLIN, .revents = 0};
  return PollFor({&ended, 1}, timeout_ns) == 1;
}

// Waits until the process sleeps, at its gate for example, or has ended.
void WaitUntilItSleeps(int64_t pid) {
  const int64_t until_ns = Clock::Real().NowNs() + kLongNs;
  while (true) {
    const std::string stat = ReadFile("/proc/" + std::to_string(pid) + "/stat", 4096).value_or("");
    const size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos || stat[name_end + 2] == 'S' || stat[name_end + 2] == 'Z') {
      return;
    }
    REQUIRE(Clock::Real().NowNs() < until_ns);
    Clock::Real().SleepUntilNs(Clock::Real().NowNs() + 1'000'000);
  }
}

// A gated child that would write a line, and where.
struct Gated {
  explicit Gated(const std::string& script = "echo ran") : spec(Shell(script)) {
    spec.stdout_path = folder.path() / "out";
    spec.gated = true;
  }
  std::string output() const { return ReadFile(spec.stdout_path, 100).value(); }

  TempFolder folder = *TempFolder::Create("geopipe-process-");
  ProcessSpec spec;
};

TEST_CASE("How a process ended is told in words") {
  CHECK(ExitStatus{3, 0}.Description() == "exited with code 3");
  CHECK(ExitStatus{0, SIGKILL}.Description() == "was killed by signal 9 (SIGKILL)");
  CHECK(ExitStatus{0, 0}.success());
  CHECK_FALSE(ExitStatus{0, SIGTERM}.success());
}

// A program in a folder of its own, and what lies beside it.
struct Installed {
  Installed() { WriteFileAtomically(folder.path() / "sibling", "").IgnoreError(); }
  // Puts a file in the place of the program as packages do: beside it, and renamed.
  void Install(const std::filesystem::path& from) const {
    std::filesystem::copy_file(from, folder.path() / "new", std::filesystem::copy_options::overwrite_existing);
    std::filesystem::rename(folder.path() / "new", program);
  }
  void InstallScript(const std::string& script) const {
    const std::filesystem::path file = folder.path() / "script";
    REQUIRE(WriteFileAtomically(file, "#!/bin/sh\n" + script + "\n").ok());
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    Install(file);
  }
  UniqueFd Open(int flags) const { return UniqueFd(open(program.c_str(), flags | O_CLOEXEC)); }

  TempFolder folder = *TempFolder::Create("geopipe-process-");
  std::filesystem::path program = folder.path() / "program";
};

TEST_CASE("A program that is open is executed whatever its name stands for by now, and finds its name and siblings") {
  const int flags = GENERATE(O_RDONLY, O_PATH);
  const bool gated = GENERATE(false, true);
  const Installed installed;
  std::filesystem::permissions(installed.folder.path() / "sibling", std::filesystem::perms::owner_all);
  installed.Install(GEOPIPE_BINARY_DIR "/bin/idle_worker");
  struct stat began {};
  REQUIRE(stat(installed.program.c_str(), &began) == 0);
  const UniqueFd program = installed.Open(flags);
  const std::string now = GENERATE("the same", "another", "nothing");
  if (now == "another") {
    installed.InstallScript("exit 3");
  } else if (now == "nothing") {
    std::filesystem::remove(installed.program);
  }
  ProcessSpec spec{.program = installed.program.string(), .program_fd = program.get(), .gated = gated};
  spec.stdout_path = installed.folder.path() / "out";
  absl::StatusOr<Process> child = Process::Start(spec);
  REQUIRE(child.ok());
  if (gated) {
    REQUIRE(child->Release().ok());
  }
  const auto said = [&] { return ReadFile(spec.stdout_path, 1000).value_or(""); };
  const int64_t until_ns = Clock::Real().NowNs() + kLongNs;
  while (said().empty()) {
    REQUIRE(Clock::Real().NowNs() < until_ns);
    REQUIRE(!child->Wait(1'000'000).has_value());
  }
  CHECK(said() == installed.program.string() + " beside " + (installed.folder.path() / "sibling").string() + "\n");
  struct stat runs {};
  REQUIRE(stat(("/proc/" + std::to_string(child->pid()) + "/exe").c_str(), &runs) == 0);
  CHECK(runs.st_ino == began.st_ino);
}

TEST_CASE("A script that is open is executed whatever its name stands for by now") {
  const Installed installed;
  installed.InstallScript("echo old $1");
  const UniqueFd program = installed.Open(O_RDONLY);
  if (GENERATE(false, true)) {
    installed.InstallScript("echo new");
  }
  ProcessSpec spec{.program = installed.program.string(), .program_fd = program.get(), .args = {"one"}};
  spec.stdout_path = installed.folder.path() / "out";
  absl::StatusOr<Process> child = Process::Start(spec);
  REQUIRE(child.ok());
  CHECK(child->Wait(-1)->success());
  CHECK(*ReadFile(spec.stdout_path, 100) == "old one\n");
}

TEST_CASE("A program that is open and cannot be executed is an error with its name") {
  const Installed installed;
  REQUIRE(WriteFileAtomically(installed.program, "no program").ok());
  const UniqueFd program = installed.Open(O_RDONLY);
  std::filesystem::remove(installed.program);
  const ProcessSpec spec{.program = installed.program.string(), .program_fd = program.get()};
  const absl::StatusOr<Process> child = Process::Start(spec);
  CHECK_THAT(std::string(child.status().message()), Catch::Contains("cannot execute " + installed.program.string()));
}

TEST_CASE("A child gets nothing of this process's environment when its own is all") {
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  ProcessSpec spec;
  spec.program = "/usr/bin/env";
  spec.environment = {{"GREETING", "hello"}};
  spec.inherits_environment = false;
  spec.stdout_path = folder.path() / "out";
  absl::StatusOr<Process> child = Process::Start(spec);
  REQUIRE(child.ok());
  REQUIRE(child->Wait(-1)->success());
  CHECK(*ReadFile(folder.path() / "out", 1000) == "GREETING=hello\n");
}

TEST_CASE("A child's exit code, environment and output arrive") {
  auto folder = TempFolder::Create("geopipe-process-");
  REQUIRE(folder.ok());
  ProcessSpec spec = Shell("read line && exit 9; echo \"$GREETING\"; echo oops >&2; exit 7");
  spec.environment = {{"GREETING", "hello = world"}, {"HOME", "/nowhere"}};
  spec.stdout_path = folder->path() / "out";
  spec.stderr_path = folder->path() / "err";
  auto child = Process::Start(spec);
  REQUIRE(child.ok());
  CHECK(child->Wait(kLongNs) == ExitStatus{7, 0});
  CHECK(child->Wait(0) == ExitStatus{7, 0});
  CHECK(ReadFile(spec.stdout_path, 100).value() == "hello = world\n");
  CHECK(ReadFileTail(spec.stderr_path, 100).value() == "oops\n");
}

TEST_CASE("What cannot be executed is an error with its path") {
  CHECK(Process::Start({.program = "/no/such/program"}).status().message() ==
        "cannot execute /no/such/program: No such file or directory");
  CHECK_FALSE(Process::Start({.program = "/etc/passwd"}).ok());
  ProcessSpec spec = Shell("true");
  spec.stderr_path = "/no/such/folder/err";
  CHECK_FALSE(Process::Start(spec).ok());
}

TEST_CASE("A child is ended politely, and then not") {
  auto polite = Process::Start({.program = "/bin/sleep", .args = {"1000"}});
  REQUIRE(polite.ok());
  CHECK_FALSE(polite->Wait(0).has_value());
  CHECK(polite->Terminate(kLongNs) == ExitStatus{0, SIGTERM});

  auto pipe = ReadyPipe::Create();
  REQUIRE(pipe.ok());
  ProcessSpec stubborn = Shell("trap '' TERM; echo ready >&" + std::to_string(pipe->child_fd()) +
                               "; exec sleep 1000");  // what is ignored stays so through exec
  stubborn.inherited_fds = {pipe->child_fd()};
  auto child = Process::Start(stubborn);
  REQUIRE(child.ok());
  CHECK(pipe->ReadLine(*child, kLongNs).value() == "ready");
  CHECK(child->Terminate(1'000'000) == ExitStatus{0, SIGKILL});
}

TEST_CASE("The end of a child is seen on its pidfd") {
  auto child = Process::Start({.program = "/bin/sleep", .args = {"1000"}});
  REQUIRE(child.ok());
  child->Signal(SIGKILL);
  pollfd ended{.fd = child->pidfd(), .events = POLLIN, .revents = 0};
  CHECK(PollFor({&ended, 1}, kLongNs) == 1);
  CHECK(child->Wait(0)->Description() == "was killed by signal 9 (SIGKILL)");
  child->Signal(SIGKILL);  // harmless: it is reaped
}

TEST_CASE("A child does not outlive its object") {
  int64_t pid = 0;
  {
    auto child = Process::Start({.program = "/bin/sleep", .args = {"1000"}});
    REQUIRE(child.ok());
    pid = child->pid();
    CHECK(kill(static_cast<pid_t>(pid), 0) == 0);
  }
  CHECK(kill(static_cast<pid_t>(pid), 0) != 0);
}

TEST_CASE("A child that dies before it is ready is noticed at once") {
  auto pipe = ReadyPipe::Create();
  REQUIRE(pipe.ok());
  ProcessSpec spec = Shell("exit 2");
  spec.inherited_fds = {pipe->child_fd()};
  auto child = Process::Start(spec);
  REQUIRE(child.ok());
  const auto line = pipe->ReadLine(*child, kLongNs);
  CHECK(line.status().code() == absl::StatusCode::kUnavailable);
  CHECK(line.status().message() == "it exited with code 2 before it was ready");
}

TEST_CASE("Waiting for a child to be ready has a deadline and can be interrupted") {
  auto pipe = ReadyPipe::Create();
  auto interrupted_pipe = ReadyPipe::Create();
  REQUIRE(pipe.ok());
  REQUIRE(interrupted_pipe.ok());
  ProcessSpec spec{.program = "/bin/sleep", .args = {"1000"}};
  spec.inherited_fds = {pipe->child_fd(), interrupted_pipe->child_fd()};
  auto child = Process::Start(spec);
  REQUIRE(child.ok());
  CHECK(pipe->ReadLine(*child, 1'000'000).status().code() == absl::StatusCode::kDeadlineExceeded);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  REQUIRE(write(ends[1], "x", 1) == 1);
  CHECK(interrupted_pipe->ReadLine(*child, kLongNs, ends[0]).status().code() == absl::StatusCode::kCancelled);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("Only named descriptors reach a child") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);  // not close-on-exec
  ProcessSpec spec = Shell("test ! -e /proc/self/fd/" + std::to_string(ends[0]));
  auto child = Process::Start(spec);
  REQUIRE(child.ok());
  CHECK(child->Wait(kLongNs)->success());
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("A gated child executes its program when it is released, and not before") {
  const Gated gated;
  auto child = Process::Start(gated.spec);
  REQUIRE(child.ok());
  WaitUntilItSleeps(child->pid());
  CHECK_FALSE(child->Wait(0).has_value());
  CHECK(gated.output() == "");
  CHECK(child->Release().ok());
  CHECK(child->Wait(kLongNs) == ExitStatus{0, 0});
  CHECK(gated.output() == "ran\n");
}

TEST_CASE("A gated child's program that cannot be executed is an error at the release") {
  Gated gated;
  gated.spec.program = "/no/such/program";
  auto child = Process::Start(gated.spec);
  REQUIRE(child.ok());
  CHECK(child->Release().message() == "cannot execute /no/such/program: No such file or directory");
  CHECK(child->Wait(0) == ExitStatus{127, 0});
}

TEST_CASE("The release of a gated child that was killed says nothing, and its end does") {
  const Gated gated;
  auto child = Process::Start(gated.spec);
  REQUIRE(child.ok());
  child->Signal(SIGKILL);
  REQUIRE(EndsWithin(child->pidfd(), kLongNs));
  CHECK(child->Release().ok());
  CHECK(child->Wait(0) == ExitStatus{0, SIGKILL});
  CHECK(gated.output() == "");
}

TEST_CASE("A gated child ends without its program when nobody can release it any more, whoever else waits") {
  const Gated gated;
  const Gated other;
  auto child = Process::Start(gated.spec);
  auto waiting = Process::Start(other.spec);
  REQUIRE(child.ok());
  REQUIRE(waiting.ok());
  WaitUntilItSleeps(waiting->pid());
  const int64_t pid = child->pid();
  const UniqueFd pidfd = Watch(pid);
  {
    Process gone = *std::move(child);
    gone.Detach();
  }
  REQUIRE(EndsWithin(pidfd.get(), kLongNs));
  int status = 0;
  REQUIRE(waitpid(static_cast<pid_t>(pid), &status, 0) == pid);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 127);
  CHECK(gated.output() == "");
  CHECK_FALSE(waiting->Wait(0).has_value());
  CHECK(waiting->Release().ok());
  CHECK(waiting->Wait(kLongNs) == ExitStatus{0, 0});
}

TEST_CASE("A parent that is killed takes its gated children along, and released ones by their death signal") {
  const bool released = GENERATE(false, true);
  Gated gated(released ? "echo ran; exec sleep 1000" : "echo ran");
  gated.spec.parent_death_signal = released ? SIGTERM : 0;
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t parent = fork();
  REQUIRE(parent >= 0);
  if (parent == 0) {
    auto child = Process::Start(gated.spec);
    const bool ok = child.ok() && (!released || child->Release().ok());
    const int64_t pid = ok ? child->pid() : 0;
    const ssize_t ignored = write(ends[1], &pid, sizeof(pid));
    (void)ignored;
    while (true) {
      pause();
    }
  }
  int64_t pid = 0;
  CHECK(read(ends[0], &pid, sizeof(pid)) == sizeof(pid));
  const UniqueFd pidfd = Watch(pid);
  WaitUntilItSleeps(pid);
  CHECK_FALSE(EndsWithin(pidfd.get(), 0));
  kill(parent, SIGKILL);
  CHECK(waitpid(parent, nullptr, 0) == parent);
  REQUIRE(pid > 0);
  CHECK(EndsWithin(pidfd.get(), kLongNs));
  CHECK(gated.output() == (released ? "ran\n" : ""));
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("Ready lines are written by NotifyReady") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  REQUIRE(NotifyReady(ends[1], "127.0.0.1:4242").ok());
  char text[64] = {};
  CHECK(read(ends[0], text, sizeof(text)) == 15);
  CHECK(std::string(text) == "127.0.0.1:4242\n");
  CHECK(read(ends[0], text, sizeof(text)) == 0);  // closed
  close(ends[0]);
  CHECK_FALSE(NotifyReady(-1, "x").ok());
}

}  // namespace
}  // namespace geopipe
