#include "tests/integration/daemons.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <utility>

#include "runtime/base/clock.h"
#include "tests/support/required.h"

namespace geopipe {
namespace {

constexpr int64_t kPatienceNs = 60'000'000'000;
constexpr int64_t kLookEveryNs = 20'000'000;
constexpr size_t kMaxBytes = 1 << 20;

void Replace(std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  INFO(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
}

}  // namespace

TempFolder TestFolder() { return Required(TempFolder::Create("geopipe-test-")); }

std::string CaseFolder::Write(const std::string& name, std::string_view text) const {
  REQUIRE(WriteFileAtomically(Path(name), text).ok());
  return Path(name);
}

void CaseFolder::Change(const std::string& name, const std::string& from, const std::string& to) const {
  std::string text = Required(ReadFile(Path(name), kMaxBytes));
  Replace(text, from, to);
  Write(name, text);
}

void WaitUntil(Command& command, const std::function<bool()>& done) {
  const int64_t deadline_ns = Clock::Real().NowNs() + kPatienceNs;
  while (!done()) {
    INFO(command.out());
    INFO(command.err());
    REQUIRE_FALSE(command.process().Wait(kLookEveryNs).has_value());
    REQUIRE(Clock::Real().NowNs() < deadline_ns);
  }
}

void WaitForWords(Command& command, const std::string& text) {
  WaitUntil(command, [&] { return command.err().find(text) != std::string::npos; });
}

void CheckEnded(const CommandResult& result, int exit_code, const std::string& begin,
                const std::vector<std::string>& words) {
  INFO(result.out);
  INFO(result.err);
  CHECK(result.exit_status.signal == 0);
  CHECK(result.exit_status.exit_code == exit_code);
  CHECK(result.err.starts_with(begin));
  for (const std::string& word : words) {
    INFO("expected: " << word);
    CHECK(result.err.find(word) != std::string::npos);
  }
}

RunningCoordinator::RunningCoordinator(const std::string& state_dir, std::vector<std::string> more)
    : command_("geopipe-coordinator", [&] {
        more.insert(more.begin(), {"--listen", "127.0.0.1:0", "--state-dir", state_dir});
        return std::move(more);
      }()) {
  const std::string before = "listening on ";
  WaitForWords(command_, before);
  const std::string log = command_.err();
  const size_t begin = log.find(before) + before.size();
  endpoint_ = log.substr(begin, log.find(',', begin) - begin);
}

CommandResult RunningCoordinator::Ask(std::vector<std::string> args) const {
  args.insert(args.end(), {"--server", endpoint_});
  return RunCommand("geopipectl", std::move(args));
}

std::vector<std::string> AgentArgs(const std::string& coordinator, const std::string& site,
                                   const std::string& state_dir, const std::string& memory) {
  return {"--set", "coordinator=" + coordinator, "--set", "site=" + site,        "--set", "state_dir=" + state_dir,
          "--set", "devices.memory=" + memory,   "--set", "die_with_parent=true"};
}

std::string ChangedCopy(const TempFolder& folder, const std::string& source, const std::string& name,
                        const std::string& from, const std::string& to) {
  std::string changed = Required(ReadFile(SourcePath(source), kMaxBytes));
  Replace(changed, from, to);
  std::string path = (folder.path() / name).string();
  REQUIRE(WriteFileAtomically(path, changed).ok());
  return path;
}

std::string ChangedJob(const TempFolder& folder, const std::string& from, const std::string& to) {
  std::string path =
      ChangedCopy(folder, "tests/golden/jobs/mini.yaml", "job.yaml", "../../../LICENSE", SourcePath("LICENSE"));
  std::string changed = Required(ReadFile(path, kMaxBytes));
  Replace(changed, from, to);
  REQUIRE(WriteFileAtomically(path, changed).ok());
  return path;
}

}  // namespace geopipe
