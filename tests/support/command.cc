#include "tests/support/command.h"

#include <catch2/catch.hpp>
#include <utility>

namespace geopipe {
namespace {

constexpr int64_t kTimeoutNs = 120'000'000'000;
constexpr size_t kMaxOutputBytes = size_t{64} << 20;

TempFolder MakeTempFolder() {
  absl::StatusOr<TempFolder> folder = TempFolder::Create("geopipe-test-");
  REQUIRE(folder.ok());
  return *std::move(folder);
}

Process StartProcess(const std::string& program, std::vector<std::string> args, Command::Environment environment,
                     const std::filesystem::path& folder) {
  ProcessSpec spec;
  spec.program = (std::filesystem::path(GEOPIPE_BINARY_DIR) / "bin" / program).string();
  spec.args = std::move(args);
  spec.environment = std::move(environment);
  spec.stdout_path = folder / "out";
  spec.stderr_path = folder / "err";
  absl::StatusOr<Process> process = Process::Start(spec);
  INFO(spec.program);
  REQUIRE(process.ok());
  return *std::move(process);
}

std::string ReadOutput(const std::filesystem::path& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxOutputBytes);
  REQUIRE(text.ok());
  return *text;
}

}  // namespace

Command::Command(const std::string& program, std::vector<std::string> args, Environment environment)
    : folder_(MakeTempFolder()),
      process_(StartProcess(program, std::move(args), std::move(environment), folder_.path())) {}

std::string Command::out() const { return ReadOutput(folder_.path() / "out"); }
std::string Command::err() const { return ReadOutput(folder_.path() / "err"); }

CommandResult Command::Finish(int64_t timeout_ns) {
  const std::optional<ExitStatus> exit_status = process_.Wait(timeout_ns);
  INFO(out());
  INFO(err());
  REQUIRE(exit_status.has_value());
  return {*exit_status, out(), err()};
}

CommandResult RunCommand(const std::string& program, std::vector<std::string> args) {
  return Command(program, std::move(args)).Finish(kTimeoutNs);
}

std::string SourcePath(const std::string& relative) { return std::string(GEOPIPE_SOURCE_DIR) + "/" + relative; }

}  // namespace geopipe
