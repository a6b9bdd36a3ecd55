// Standard streams that are closed, full or without a reader: no program dies of them, each ends with the exit code
// that its documentation gives, and a daemon lives on.
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/daemons.h"

namespace geopipe {
namespace {

constexpr int64_t kStreamTimeoutNs = 60'000'000'000;

// A shell's words for the streams of the program that it becomes. $F is a pipe that nobody reads.
struct Streams {
  std::string words;
  bool output_lost = false;  // what goes to standard output
};

const std::vector<Streams>& AllStreams() {
  static const std::vector<Streams> all{
      {"2>&-"},
      {"2>/dev/full"},
      {"2>&5"},
      {">&-", true},
      {">/dev/full", true},
      {">&5", true},
      {">&- 2>&-", true},
      {">/dev/full 2>/dev/full", true},
      {">&5 2>&5", true},
      {">/dev/full 2>&-", true},
      {"<&- >&- 2>&-", true},
      {"<&-"},
      {"<&- 2>&-"},
  };
  return all;
}

std::vector<std::string> InShell(const std::string& folder, const std::string& words, const std::string& program,
                                 std::vector<std::string> args) {
  // The pipe is opened for both, then for writing, and loses its reader.
  std::vector<std::string> shell{"-c",
                                 "F=" + folder +
                                     "/pipe; [ -p $F ] || mkfifo $F; exec 4<>$F 5>$F 4<&-; exec \"$0\" "
                                     "\"$@\" " +
                                     words,
                                 *SiblingProgram(program)};
  shell.insert(shell.end(), args.begin(), args.end());
  return shell;
}

TEST_CASE("no program dies of its streams, and each ends with the exit code that it should") {
  struct Row {
    std::string program;
    std::vector<std::string> args;
    int exit_code;
  };
  const TempFolder folder = TestFolder();
  const std::string simple = SourcePath("tests/golden/cases/uneven-stages.yaml");
  const std::vector<Row> rows{
      {"geopipectl", {"plan", "-f", "nope"}, 2},
      {"geopipectl", {"nosuch"}, 2},
      {"geopipectl", {}, 2},
      {"geopipectl", {"get", "jobs", "--server", "127.0.0.1:1", "--timeout", "1s"}, 4},
      {"geopipectl", {"--help"}, 0},
      {"geopipectl", {"explain", "job"}, 0},
      {"geopipectl", {"simulate", "-f", simple, "-o", "json"}, 0},
      {"geopipe-agent", {"--nosuch"}, 2},
      {"geopipe-agent", {"--help"}, 0},
      {"geopipe-coordinator", {"--listen", "8.8.8.8:1"}, 2},
      {"geopipe-coordinator", {"--version"}, 0},
      {"geopipe-worker", {}, 2},
      {"geopipe-worker", {"--help"}, 0},
  };
  for (const Row& row : rows) {
    for (const Streams& streams : AllStreams()) {
      const CommandResult result =
          RunCommand("/bin/sh", InShell(folder.path().string(), streams.words, row.program, row.args));
      CAPTURE(row.program, row.args, streams.words, result.out, result.err);
      CHECK(result.exit_status.signal == 0);
      CHECK(result.exit_status.exit_code == (row.exit_code == 0 && streams.output_lost ? 1 : row.exit_code));
    }
  }
}

TEST_CASE("what standard output does not take is told where it can be, but not to a reader that went away") {
  const TempFolder folder = TestFolder();
  const auto [words, told] = GENERATE(table<std::string, std::string>({
      {">/dev/full", "error: cannot write to standard output: No space left on device\n"},
      {">&-", "error: cannot write to standard output: Bad file descriptor\n"},
      {">&5", ""},
  }));
  const CommandResult result =
      RunCommand("/bin/sh", InShell(folder.path().string(), words, "geopipectl", {"explain", "job"}));
  CAPTURE(words);
  CHECK(result.exit_status.exit_code == 1);
  CHECK(result.err == told);
}

TEST_CASE("a daemon lives on whose log goes nowhere, and nothing of its own becomes a standard stream") {
  const auto [words, taken] = GENERATE(table<std::string, std::vector<int>>({
      {"2>/dev/full", {}},
      {"2>&5", {}},
      {"<&- >&- 2>&-", {0, 1, 2}},
      {"2>&-", {2}},
  }));
  const TempFolder folder = TestFolder();
  const std::string ready = (folder.path() / "ready").string();
  Command coordinator("/bin/sh", InShell(folder.path().string(), words + " 3>" + ready, "geopipe-coordinator",
                                         {"--listen", "127.0.0.1:0", "--ready-fd", "3", "--log-level", "debug",
                                          "--state-dir", (folder.path() / "state").string()}));
  const auto endpoint = [&] {
    std::string text = ReadFile(ready, 1000).value_or("");
    return text.substr(0, text.find('\n'));
  };
  WaitUntil(coordinator, [&] { return !endpoint().empty(); });
  CAPTURE(words);
  for (int asked = 0; asked < 3; ++asked) {  // each is logged
    const CommandResult got = RunCommand("geopipectl", {"get", "jobs", "--server", endpoint()});
    CAPTURE(got.err);
    CHECK(got.exit_status.success());
  }
  const auto pid = coordinator.process().pid();
  for (const int fd : taken) {
    std::error_code error;
    CHECK(std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd), error) ==
          "/dev/null");
  }
  coordinator.process().Signal(SIGTERM);
  CHECK(coordinator.Finish(kStreamTimeoutNs).exit_status.success());
}

}  // namespace
}  // namespace geopipe
