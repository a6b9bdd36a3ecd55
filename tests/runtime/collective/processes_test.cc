// Ranks as processes.
#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <set>

#include "runtime/base/clock.h"
#include "runtime/base/process.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

struct RankProcess {
  RankProcess(int32_t rank, int32_t size, const std::string& secret, const std::string& what)
      : ready(*ReadyPipe::Create()),
        process(*Process::Start({.program = std::string(GEOPIPE_BINARY_DIR) + "/bin/collective_rank",
                                 .args = {std::to_string(rank), std::to_string(size), Name(), secret, what,
                                          std::to_string(ready.child_fd())},
                                 .inherited_fds = {ready.child_fd()},
                                 .parent_death_signal = SIGKILL})) {}

  // Other tests may run at once.
  static std::string Name() { return "processes of " + std::to_string(getpid()); }
  std::string Result() {
    const absl::StatusOr<std::string> line = ready.ReadLine(process, 60 * kSecond);
    return line.ok() ? *line : line.status().ToString();
  }

  ReadyPipe ready;
  Process process;
};

TEST_CASE("processes: all have the same sums, every time") {
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (int32_t rank = 3; rank >= 0; --rank) {  // whoever is first waits
    ranks.push_back(std::make_unique<RankProcess>(rank, 4, "secret", "sum"));
  }
  std::set<std::string> results;
  for (const auto& rank : ranks) {
    results.insert(rank->Result());
    CHECK(rank->process.Wait(10 * kSecond)->success());
  }
  REQUIRE(results.size() == 1);
  const std::string& both = *results.begin();
  REQUIRE(both.size() == 18);
  CHECK(both.substr(0, 8) == both.substr(9, 8));
}

TEST_CASE("processes: one that is killed is named by the others") {
  RankProcess first(0, 3, "secret", "late");
  RankProcess second(1, 3, "secret", "late");
  RankProcess dies(2, 3, "secret", "die");
  CHECK(dies.process.Wait(30 * kSecond)->signal == SIGKILL);
  for (RankProcess* rank : {&first, &second}) {
    const std::string result = rank->Result();
    CHECK_THAT(result, Catch::Contains("DEADLINE_EXCEEDED: rank 2 of a group of 3 has not come"));
  }
}

TEST_CASE("processes: sizes that do not fit each other are a bug") {
  RankProcess alone(0, 1, "secret", "misuse");
  CHECK(alone.process.Wait(30 * kSecond)->signal == SIGABRT);
}

}  // namespace
}  // namespace geopipe
