#include "runtime/base/grpc/process_limits.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <functional>
#include <new>
#include <stdexcept>
#include <system_error>

#include "runtime/base/files.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

struct Ended {
  int status = 0;
  std::string err;
};

// Runs `child` in a process of its own.
Ended Fork(const std::function<void()>& child) {
  const TempDir dir;
  const std::string path = dir.path() + "/err";
  const pid_t pid = fork();
  if (pid == 0) {
    std::signal(SIGABRT, SIG_DFL);
    if (dup2(open(path.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO) == STDERR_FILENO) {
      child();
    }
    _exit(99);
  }
  Ended ended;
  REQUIRE(waitpid(pid, &ended.status, 0) == pid);
  ended.err = *ReadFile(path, 1000);
  return ended;
}

template <class Exception>
void Throw(const Exception& exception) {
  throw exception;
}

TEST_CASE("want of threads or memory ends a process with one sentence, and a fault of ours with its signal") {
  const auto thrown = [](const auto& exception) {
    return Fork([&exception]() noexcept {
      EndWhereResourcesEnd("geopipe-test");
      Throw(exception);
    });
  };
  Ended ended = thrown(std::system_error(EAGAIN, std::generic_category()));
  CHECK((WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 1));
  CHECK(ended.err ==
        "geopipe-test: the system gives this process no further thread; raise its limits (ulimit -u, ulimit -v)\n");
  ended = thrown(std::bad_alloc());
  CHECK((WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 1));
  CHECK(ended.err ==
        "geopipe-test: no memory is left for this process; give it more (ulimit -v, the container's limit)\n");
  ended = thrown(std::logic_error("ours"));
  CHECK((WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGABRT));
}

TEST_CASE("too few descriptors are told, and more are taken where they are to be had") {
  const auto with = [](rlim_t soft, rlim_t hard) {
    return Fork([=] {
      const rlimit limit{.rlim_cur = soft, .rlim_max = hard};
      rlimit now{};
      const bool is_set = setrlimit(RLIMIT_NOFILE, &limit) == 0;
      const bool enough = EnoughDescriptors().ok();
      getrlimit(RLIMIT_NOFILE, &now);
      _exit(is_set && enough ? static_cast<int>(now.rlim_cur / 16) : 0);
    });
  };
  CHECK(WEXITSTATUS(with(15, 15).status) == 0);
  CHECK(WEXITSTATUS(with(16, 16).status) == 1);
  CHECK(WEXITSTATUS(with(4, 800).status) == 50);
  CHECK(WEXITSTATUS(with(8, 1024).status) == 64);
}

}  // namespace
}  // namespace geopipe
