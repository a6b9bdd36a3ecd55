// Tests how playgrounds end: with a last checkpoint, because nothing comes of them, or before they begin.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "tests/integration/all_gone.h"
#include "tests/integration/daemons.h"
#include "tests/integration/processes.h"
#include "tests/support/command.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

// The mini job with checkpoints below `folder`/ck, of so many iterations.
std::string SavedJob(const TempFolder& folder, int iterations) {
  const std::string path = ChangedJob(folder, "    iterations: 40\n", fmt::format("    iterations: {}\n", iterations));
  std::string text = *ReadFile(path, size_t{1} << 20);
  const std::string key = "  precision: fp32\n";
  REQUIRE(text.find(key) != std::string::npos);
  text.insert(text.find(key), fmt::format("  checkpoint: {{path: {}}}\n", (folder.path() / "ck").string()));
  REQUIRE(WriteFileAtomically(path, text).ok());
  return path;
}

std::vector<std::string> Args(const TempFolder& folder, const std::string& job) {
  return {"playground",          "--job", job, "--sites", "2", "--link", "latency=2ms,bandwidth=1Gbps", "--output",
          folder.path().string()};
}

// The words of a line of a shell that has no quotes.
std::vector<std::string> WordsOf(const std::string& line) {
  std::vector<std::string> words;
  size_t begin = 0;
  while (begin < line.size()) {
    const size_t end = std::min(line.find(' ', begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

TEST_CASE("a playground that is told to stop writes a checkpoint, and says how to go on: that goes on") {
  const int signal = GENERATE(SIGTERM, SIGINT);
  CAPTURE(signal);
  const TempFolder folder = TestFolder();
  Command playground("geopipectl", Args(folder, SavedJob(folder, 100'000)));
  WaitUntil(playground, [&] { return playground.out().find("iteration      3/100000") != std::string::npos; });
  const std::vector<ProcessInfo> all = Descendants(playground.process().pid());
  playground.process().Signal(signal);
  const CommandResult result = playground.Finish(40 * kSecond);
  INFO(result.out);
  INFO(result.err);
  CHECK(result.exit_status.exit_code == (signal == SIGTERM ? 143 : 130));
  CheckAllGone(all);
  const std::string before = "the job is saved before iteration ";
  const size_t at = result.err.find(before);
  REQUIRE(at != std::string::npos);
  const int64_t saved = std::stoll(result.err.substr(at + before.size()));
  CHECK(saved >= 3);
  const std::string path = fmt::format("{}/ck/iteration-{:010}", folder.path().string(), saved);
  CHECK(result.err.find(fmt::format("{}{}: {}\n", before, saved, path)) != std::string::npos);  // and nothing is lost
  CHECK(fs::exists(path));
  CHECK(result.out.find(fmt::format("iteration {:>6}/100000", saved)) != std::string::npos);

  const std::string go_on = "go on with: geopipectl ";
  const size_t command = result.err.find(go_on);
  REQUIRE(command != std::string::npos);
  const size_t begin = command + go_on.size();
  std::vector<std::string> words = WordsOf(result.err.substr(begin, result.err.find('\n', begin) - begin));
  CHECK(words.back() == "--resume");
  words.insert(words.end(), {"--iterations", std::to_string(saved + 2)});
  const CommandResult next = RunCommand("geopipectl", words);
  INFO(next.out);
  INFO(next.err);
  CHECK(next.exit_status.success());
  CHECK(next.out.find(fmt::format("iteration {:>{}}/{}", saved + 1, std::to_string(saved + 2).size(), saved + 2)) !=
        std::string::npos);
}

TEST_CASE("a second signal, or no grace, ends a playground at once") {
  const bool no_grace = GENERATE(true, false);
  CAPTURE(no_grace);
  const TempFolder folder = TestFolder();
  std::vector<std::string> args = Args(folder, SavedJob(folder, 100'000));
  if (no_grace) {
    args.insert(args.end(), {"--grace", "0s"});
  }
  Command playground("geopipectl", args);
  WaitUntil(playground, [&] { return playground.out().find("iteration      3/100000") != std::string::npos; });
  const std::vector<ProcessInfo> all = Descendants(playground.process().pid());
  const int64_t signalled_ns = Clock::Real().NowNs();
  if (!no_grace) {  // nothing can be written while a worker is stopped
    for (const ProcessInfo& process : all) {
      if (process.Runs("geopipe-worker")) {
        kill(static_cast<pid_t>(process.pid), SIGSTOP);
      }
    }
  }
  playground.process().Signal(SIGTERM);
  if (!no_grace) {
    WaitForWords(playground, "another signal ends it at once");
    playground.process().Signal(SIGTERM);
  }
  const CommandResult result = playground.Finish(15 * kSecond);
  INFO(result.err);
  CHECK(Clock::Real().NowNs() - signalled_ns < 8 * kSecond);
  CHECK(result.exit_status.exit_code == 143);
  CHECK(result.err.find("no checkpoint of this run is complete") != std::string::npos);
  CheckAllGone(all);
}

TEST_CASE("a playground whose job loses workers again and again before anything comes of it ends with that reason") {
  const TempFolder folder = TestFolder();
  // Iterations of more than a second: each is lost before it is finished.
  const std::string slow = ChangedCopy(folder, "tests/golden/cases/two-sites-20ms.yaml", "slow.yaml",
                                       "forward_s: 0.01\nbackward_s: 0.02", "forward_s: 0.1\nbackward_s: 0.2");
  const std::string job =
      ChangedCopy(folder, "tests/golden/jobs/mini.yaml", "job.yaml", "  placement: {sites: [north, east, west]}\n", "");
  Command playground("geopipectl", {"playground", "--job", job, "--case", slow, "--backend", "modelled", "--output",
                                    folder.path().string()});
  std::vector<ProcessInfo> all;
  for (int loss = 1; loss <= 3; ++loss) {
    WaitUntil(playground, [&] {
      return playground.out().find(fmt::format("ranks have committed epoch {}", loss)) != std::string::npos;
    });
    all = Descendants(playground.process().pid());
    std::vector<ProcessInfo> workers;
    for (const ProcessInfo& process : all) {
      if (process.Runs("geopipe-worker")) {
        workers.push_back(process);
      }
    }
    REQUIRE(workers.size() == 4);
    REQUIRE(kill(static_cast<pid_t>(workers[static_cast<size_t>(loss)].pid), SIGKILL) == 0);  // another each time
  }
  const CommandResult result = playground.Finish(30 * kSecond);
  INFO(result.out);
  CheckEnded(result, 1, "",
             {"gets nowhere: the job has lost workers 3 times without finishing an iteration; last: "
              "worker "});
  CHECK(result.out.find("warning    the job has lost workers 3 times") != std::string::npos);
  CheckAllGone(all);
}

TEST_CASE("a playground that this host's memory cannot hold is refused before anything is started") {
  const TempFolder folder = TestFolder();
  const int64_t begin_ns = Clock::Real().NowNs();
  CheckEnded(
      RunCommand("geopipectl", {"playground", "--job", SourcePath("deploy/examples/llama-2-13b.yaml"), "--topology",
                                SourcePath("deploy/examples/three-regions.yaml"), "--output", folder.path().string()}),
      3, "error: 64 workers need ",
      {" here at least, of which one copy of the model's states takes ", " are free; ", "--backend modelled"});
  CHECK(Clock::Real().NowNs() - begin_ns < 10 * kSecond);
}

}  // namespace
}  // namespace geopipe
