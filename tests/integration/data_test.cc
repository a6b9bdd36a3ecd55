// Data that differs between sites, of 100 GB that take no room on the disk. Agents are started in folders of their own,
// which their workers inherit, so that one path names another file at each site.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "tests/integration/daemons.h"
#include "tests/support/durations.h"
#include "tests/support/sparse_file.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

constexpr int64_t kBytes = 100'000'000'000;

// Two sites with copies of the data, and a job that would train on it for long.
class TwoCopies {
 public:
  TwoCopies() : folder_(TestFolder()), coordinator_((folder_.path() / "coordinator").string()) {
    for (const std::string site : {"north", "east"}) {
      std::filesystem::create_directory(folder_.path() / site);
      Resize(Copy(site), kBytes);
    }
  }

  std::string Copy(const std::string& site) const { return (folder_.path() / site / "tokens.bin").string(); }
  std::string JobFile() const {
    std::string text = *ReadFile(SourcePath("tests/golden/jobs/mini.yaml"), 1 << 20);
    const auto replace = [&](const std::string& from, const std::string& to) {
      REQUIRE(text.find(from) != std::string::npos);
      text.replace(text.find(from), from.size(), to);
    };
    replace("format: text\n    path: [../../../LICENSE]\n    tokenizer: byte",
            "format: tokens\n    path: /proc/self/cwd/tokens.bin");
    replace("iterations: 40", "iterations: 1000000");
    replace("[north, east, west]", "[north, east]");
    return Write("job.yaml", text);
  }
  void Apply() {
    north_ = Start("north", "east");
    east_ = Start("east", "north");
    const CommandResult applied = coordinator_.Ask({"apply", "-f", JobFile()});
    INFO(applied.err);
    REQUIRE(applied.exit_status.success());
  }
  RunningCoordinator& coordinator() { return coordinator_; }
  Json Describe() const { return Json::parse(coordinator_.Ask({"describe", "mini", "-o", "json"}).out); }

 private:
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = (folder_.path() / name).string();
    REQUIRE(WriteFileAtomically(path, text).ok());
    return path;
  }
  std::unique_ptr<Command> Start(const std::string& site, const std::string& other) const {
    std::vector<std::string> args =
        AgentArgs(coordinator_.endpoint(), site, (folder_.path() / site / "state").string());
    args.insert(args.end(),
                {"--config", Write(site + ".yaml", fmt::format("links:\n- {{to: {}, latency: 1ms, bandwidth: "
                                                               "1Gbps, shape: true}}\n",
                                                               other))});
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(folder_.path() / site);
    auto agent = std::make_unique<Command>("geopipe-agent", std::move(args));
    std::filesystem::current_path(before);
    return agent;
  }

  TempFolder folder_;
  RunningCoordinator coordinator_;
  std::unique_ptr<Command> north_;
  std::unique_ptr<Command> east_;
};

TEST_CASE(
    "data: a job on 100 GB begins within ten seconds, and one changed byte at one site ends it by file and bytes") {
  TwoCopies copies;
  Poke(copies.Copy("east"), 60'000'000, "\x01");  // between the blocks that preparation reads
  copies.Apply();
  WaitUntil(copies.coordinator().command(), [&] { return copies.Describe()["iterations_done"] > 0; });
  const int64_t now_ns = Clock::Real().UnixNowNs();
  for (const Json& transition : copies.Describe()["transitions"]) {
    if (transition["state"] == "DEPLOYING") {
      CHECK(now_ns - transition["unix_time_ns"].get<int64_t>() < 10 * kSecond);
    }
  }
  CheckEnded(copies.coordinator().Ask({"watch", "mini"}), 1,
             "error: job mini FAILED: east/east-0/0 and north/north-0/0 read different training data: bytes [50331648, "
             "75497472) of /proc/self/cwd/tokens.bin are not the same; give both the same files",
             {});
}

TEST_CASE("data: another length at one site is refused before the first iteration") {
  TwoCopies copies;
  Resize(copies.Copy("east"), kBytes - 2);
  copies.Apply();
  CheckEnded(copies.coordinator().Ask({"watch", "mini"}), 1, "error: job mini FAILED: ",
             {"read different training data: 100000000000 bytes with checksum", "99999999998 bytes with checksum"});
}

}  // namespace
}  // namespace geopipe
