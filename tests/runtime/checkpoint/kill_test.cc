// A process that writes checkpoints is killed at any instant: what was complete stays complete, and what is found is
// whole.
#include <poll.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "runtime/base/process.h"
#include "runtime/base/unique_fd.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/verify.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/support/seed.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

// A kill loses nothing that is in the page cache, so memory serves as well as a disk, and sooner.
class KillTestDir {
 public:
  KillTestDir() {
    if (access("/dev/shm", W_OK) == 0) {
      setenv("TMPDIR", "/dev/shm", 1);
    }
    dir_.emplace();
    unsetenv("TMPDIR");
  }
  const std::string& path() const { return dir_->path(); }

 private:
  std::optional<TempDir> dir_;
};

// The newest complete checkpoint, REQUIREd to be intact and of one iteration alone; -1 when there is none.
int64_t NewestIntact(const std::string& root, const ModelSpec& model) {
  const absl::StatusOr<CheckpointList> list = ListCheckpoints(root);
  REQUIRE(list.ok());
  for (const CheckpointList::Incomplete& incomplete : list->incomplete) {
    INFO(incomplete.reason);
    REQUIRE(absl::IsNotFound(incomplete.reason));  // never a damaged manifest
  }
  for (const CheckpointList::Complete& complete : list->complete) {
    const auto problems = VerifyCheckpoint(complete.folder);
    REQUIRE(problems.ok());
    REQUIRE(problems->empty());
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(complete.folder);
    REQUIRE(checkpoint.ok());
    REQUIRE(checkpoint->CheckSameModel(model).ok());
    for (const CheckpointUnit& unit : UnitsOf(model)) {
      for (const TensorRange& tensor : UnitTensors(model, unit)) {
        std::vector<float> values(static_cast<size_t>(tensor.elements));
        REQUIRE(checkpoint->Read(tensor.name, tensor.shape, values).ok());
        REQUIRE(SameBits(values, StateValues(complete.iteration, tensor.name, tensor.elements)));
      }
    }
  }
  return list->complete.empty() ? -1 : list->complete.back().iteration;
}

// The child: a checkpoint after the other, of which two are kept. Says 'f' for every file and 'c' for every checkpoint.
[[noreturn]] void WriteForEver(const std::string& root, const ModelSpec& model, int64_t iteration, int said) {
  const auto say = [&](char what) {
    if (write(said, &what, 1) != 1) {
      _exit(1);
    }
  };
  for (;; ++iteration) {
    if (!WriteCheckpoint(root, model, iteration, [&] { say('f'); }).ok()) {
      _exit(2);
    }
    say('c');
    if (!RemoveOld(root, 2).ok()) {
      _exit(3);
    }
  }
}

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    from.Reset(ends[0]);
    to.Reset(ends[1]);
  }
  UniqueFd from;
  UniqueFd to;
};

TEST_CASE("of a process that is killed while it writes checkpoints the newest complete one is intact, 200 times") {
  const KillTestDir dir;
  const ModelSpec model = SmallModel(1);
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  SplitMix64 random(seed);
  int64_t newest = -1;
  int within = 0;  // a checkpoint that was not complete
  for (int kill_number = 0; kill_number < 200; ++kill_number) {
    INFO("kill " << kill_number << ", newest " << newest);
    Pipe pipe;
    const pid_t child = fork();
    if (child == 0) {
      (void)DieWithParent(SIGKILL);
      WriteForEver(dir.path(), model, newest + 1, pipe.to.get());
    }
    REQUIRE(child > 0);
    pipe.to.Reset();
    int64_t said_complete = 0;
    const auto hear = [&] {
      char what = 0;
      const ssize_t got = read(pipe.from.get(), &what, 1);
      said_complete += got == 1 && what == 'c' ? 1 : 0;
      return got == 1;
    };
    // Some way into its work, and then any moment of the next fraction of a millisecond.
    for (uint64_t steps = random.Next() % 20; steps > 0; --steps) {
      REQUIRE(hear());
    }
    pollfd quiet{.fd = -1, .events = 0, .revents = 0};
    const timespec moment{.tv_sec = 0, .tv_nsec = static_cast<int64_t>(random.Next() % 400'000)};
    ppoll(&quiet, 1, &moment, nullptr);
    REQUIRE(kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    while (hear()) {
    }
    const int64_t now = NewestIntact(dir.path(), model);
    REQUIRE(now >= newest + said_complete);
    REQUIRE(now <= newest + said_complete + 1);
    newest = now;
    within += ListCheckpoints(dir.path())->incomplete.empty() ? 0 : 1;
  }
  CHECK(newest > 20);
  CHECK(within > 20);
}

// Names a system call that changes a file system; "" for others, of which a sanitizer makes some at random. Some
// machines have the variants with a folder alone.
std::string NameOf(int64_t call) {
  switch (call) {
    case SYS_openat:
      return " open";
    case SYS_write:
      return " write";
    case SYS_fallocate:
      return " fallocate";
    case SYS_fchmod:
      return " fchmod";
    case SYS_fsync:
      return " fsync";
    case SYS_mkdirat:
    case SYS_renameat:
    case SYS_unlinkat:
      return call == SYS_mkdirat ? " mkdir" : call == SYS_renameat ? " rename" : " unlink";
#ifdef SYS_rename
    case SYS_mkdir:
    case SYS_rename:
    case SYS_rmdir:
    case SYS_unlink:
      return call == SYS_mkdir ? " mkdir" : call == SYS_rename ? " rename" : " unlink";
#endif
    default:
      return "";
  }
}

// A child that stops before and after each of its system calls while it writes the checkpoint before `iteration` and
// removes all others.
class TracedWriter {
 public:
  TracedWriter(const std::string& root, const ModelSpec& model, int64_t iteration) : child_(fork()) {
    if (child_ == 0) {
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
        _exit(kRefused);
      }
      (void)raise(SIGSTOP);
      _exit(WriteCheckpoint(root, model, iteration).ok() && RemoveOld(root, 1).ok() ? 0 : 1);
    }
    REQUIRE(child_ > 0);
    Wait();
    if (!ended_) {
      REQUIRE(ptrace(PTRACE_SETOPTIONS, child_, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0);
    }
  }
  TracedWriter(const TracedWriter&) = delete;
  TracedWriter& operator=(const TracedWriter&) = delete;
  ~TracedWriter() { Kill(); }

  // False, with a line that says why, where children cannot be traced.
  bool can_trace() const {
    const bool refused = ended_ && WEXITSTATUS(status_) == kRefused;
    if (refused) {
      Skip("a child cannot be traced here; allow ptrace");
    }
    return !refused;
  }

  // Carries out system calls until one that has a name (see NameOf), and returns that; "" when the child has ended, as
  // it should.
  std::string NextCall() {
    std::string name;
    while (name.empty() && Stop()) {
      __ptrace_syscall_info info{};
      REQUIRE(ptrace(PTRACE_GET_SYSCALL_INFO, child_, sizeof(info), &info) > 0);
      REQUIRE(info.op == PTRACE_SYSCALL_INFO_ENTRY);
      name = NameOf(static_cast<int64_t>(info.entry.nr));
      if (!Stop()) {
        return "";
      }
    }
    return name;
  }

  void Kill() {
    if (!ended_) {
      kill(child_, SIGKILL);
      waitpid(child_, &status_, 0);
      ended_ = true;
    }
  }

 private:
  static constexpr int kRefused = 77;

  void Wait() {
    REQUIRE(waitpid(child_, &status_, 0) == child_);
    ended_ = WIFEXITED(status_);
  }
  // Runs to the next beginning or end of a system call.
  bool Stop() {
    REQUIRE(ptrace(PTRACE_SYSCALL, child_, nullptr, nullptr) == 0);
    Wait();
    REQUIRE((ended_ ? WEXITSTATUS(status_) == 0 : WSTOPSIG(status_) == (SIGTRAP | 0x80)));
    return !ended_;
  }

  const pid_t child_;
  int status_ = 0;
  bool ended_ = false;
};

TEST_CASE("a process that is killed after any change of files of a checkpoint and its clean-up leaves an intact one") {
  const ModelSpec model = SmallModel(1);
  int calls = 0;          // that the child may make before it is killed
  int complete_from = 0;  // so many calls complete it
  for (bool killed = true; killed; ++calls) {
    INFO("killed after " << calls << " calls");
    const KillTestDir dir;
    REQUIRE(WriteCheckpoint(dir.path(), model, 1).ok());
    REQUIRE(WriteCheckpoint(dir.path(), model, 2).ok());
    TracedWriter writer(dir.path(), model, 3);
    if (!writer.can_trace()) {
      return;
    }
    for (int call = 0; call < calls && killed; ++call) {
      killed = !writer.NextCall().empty();
    }
    writer.Kill();
    const int64_t newest = NewestIntact(dir.path(), model);
    CAPTURE(newest, complete_from);
    REQUIRE((newest == 3 || (newest == 2 && complete_from == 0)));
    complete_from = complete_from == 0 && newest == 3 ? calls : complete_from;
    REQUIRE(WriteCheckpoint(dir.path(), model, 3).ok());
    REQUIRE(RemoveOld(dir.path(), 1).ok());
    REQUIRE(NewestIntact(dir.path(), model) == 3);
    REQUIRE(Names(dir.path()) == std::vector<std::string>{"iteration-0000000003"});
    // A manifest that was being written may be left over: another node could be at it.
    std::vector<std::string> names = Names(dir.path() + "/iteration-0000000003");
    REQUIRE(std::erase_if(names, [](const auto& name) { return name.starts_with("manifest.json.partial-"); }) <= 1);
    REQUIRE(names.size() == 7);
  }
  CHECK(complete_from > 50);
  CHECK(calls > complete_from + 10);
}

TEST_CASE("every file is synced, named, and its folder synced, before the next one, and a removed manifest at once") {
  const KillTestDir dir;
  const ModelSpec model = SmallModel(1);
  REQUIRE(WriteCheckpoint(dir.path(), model, 1).ok());
  TracedWriter writer(dir.path(), model, 2);
  if (!writer.can_trace()) {
    return;
  }
  std::string order;
  for (std::string call = writer.NextCall(); !call.empty(); call = writer.NextCall()) {
    const bool is_of_order = call == " fsync" || call == " rename" || call == " unlink";
    order += is_of_order ? call : "";
  }
  std::string expected = " fsync";  // the root's, in which the folder is new
  for (int file = 0; file < 7; ++file) {
    expected += " fsync rename fsync";
  }
  // The old checkpoint's manifest goes before the rest of it.
  CHECK_THAT(order, Catch::StartsWith(expected + " unlink fsync"));
}

}  // namespace
}  // namespace geopipe
