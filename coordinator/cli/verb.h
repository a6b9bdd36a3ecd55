// Shared by all verbs of geopipectl: their signature, exit codes, common flags and how errors are shown.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/flags.h"

namespace geopipe {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitInfeasible = 3;
inline constexpr int kExitUnreachable = 4;
inline constexpr int kExitDenied = 5;
inline constexpr int kExitInterrupted = 130;
inline constexpr int kExitTerminated = 143;  // by SIGTERM

// The error with an exit code of its own.
absl::Status WithExitCode(absl::Status status, int exit_code);
// Exit code of an error: its own, else that of an error from files, flags and the planner on this machine, where
// FailedPrecondition is an infeasible job.
int ExitCodeOf(const absl::Status& status);
// Exit code of an error from the coordinator.
int RemoteExitCode(const absl::Status& status);

// Gives an error the exit code kExitFailed, whatever its status code: it is not the user's fault.
inline absl::Status OrFailed(absl::Status status) {
  return status.ok() ? status : WithExitCode(std::move(status), kExitFailed);
}
template <typename T>
absl::StatusOr<T> OrFailed(absl::StatusOr<T> value) {
  if (value.ok()) {
    return value;
  }
  return OrFailed(std::move(value).status());
}

enum class OutputFormat : uint8_t { kTable, kWide, kJson, kYaml, kTopology };

// Flags that several verbs have.
struct CommonFlags {
  OutputFormat output = OutputFormat::kTable;
  std::string server;
  int64_t timeout_ns = 10'000'000'000;

  // -o/--format with the given choices ("table", "json", …).
  void AddFormat(FlagSet& flags, std::vector<std::string> choices = {"table", "json"});
  // --server (default: $GEOPIPE_SERVER, else kDefaultCoordinator) and --timeout.
  void AddServer(FlagSet& flags);
};

// Parses; on --help prints it and returns kExitOk, on an error prints it and returns kExitBadInput; nullopt: go on.
std::optional<int> ParseVerbFlags(FlagSet& flags, std::span<const std::string> arguments);

// InvalidArgument when more than one of the files that a verb is to read is standard input ("-").
absl::Status CheckOneStandardInput(std::initializer_list<std::string_view> paths);

// InvalidArgument shows the beginning of a name that no job can have.
absl::Status CheckJobName(std::string_view name);

// --run N of a verb that can show an earlier run of a job's name; 0: the latest.
void AddRunFlag(FlagSet& flags, std::optional<int64_t>* run);
// InvalidArgument for a run that there cannot be.
absl::StatusOr<int64_t> RunOf(const std::optional<int64_t>& run);

// "a,b" to {"a", "b"}, "" to {""}.
std::vector<std::string> Split(std::string_view text, char separator);

// An error of what a flag was given begins with the flag.
template <class T>
absl::StatusOr<T> InFlag(std::string_view flag, absl::StatusOr<T> value) {
  return value.ok()
             ? std::move(value)
             : absl::Status(value.status().code(), fmt::format("{}: {}", flag, std::string(value.status().message())));
}

// "2,1" to {2, 1}. InvalidArgument for anything but non-negative numbers.
absl::StatusOr<std::vector<int32_t>> ParseDeltaN(std::string_view text);

// JSON as block-style YAML, strings quoted.
std::string ToYaml(const nlohmann::ordered_json& json);

// Prints `json` as JSON or YAML. REQUIRES: format is one of the two.
void PrintDocument(const nlohmann::ordered_json& json, OutputFormat format);

// Returns what `geopipectl explain SUBJECT` prints: about a kind of file, or all keys of that name. InvalidArgument:
// there are none.
absl::StatusOr<std::string> ExplainText(std::string_view subject, int32_t columns);

// Arguments after the verb; the exit code, or the error that it ends with (ExitCodeOf).
using VerbFunction = absl::StatusOr<int> (*)(std::span<const std::string> arguments);

absl::StatusOr<int> RunApply(std::span<const std::string> arguments);
absl::StatusOr<int> RunCancel(std::span<const std::string> arguments);
absl::StatusOr<int> RunCheckpoint(std::span<const std::string> arguments);
absl::StatusOr<int> RunData(std::span<const std::string> arguments);
absl::StatusOr<int> RunPause(std::span<const std::string> arguments);
absl::StatusOr<int> RunResume(std::span<const std::string> arguments);
absl::StatusOr<int> RunBackup(std::span<const std::string> arguments);
absl::StatusOr<int> RunStopStray(std::span<const std::string> arguments);
absl::StatusOr<int> RunDrain(std::span<const std::string> arguments);
absl::StatusOr<int> RunDescribe(std::span<const std::string> arguments);
absl::StatusOr<int> RunExplain(std::span<const std::string> arguments);
absl::StatusOr<int> RunExportHf(std::span<const std::string> arguments);
absl::StatusOr<int> RunGet(std::span<const std::string> arguments);
absl::StatusOr<int> RunPlan(std::span<const std::string> arguments);
absl::StatusOr<int> RunSimulate(std::span<const std::string> arguments);
absl::StatusOr<int> RunProfile(std::span<const std::string> arguments);
absl::StatusOr<int> RunUncordon(std::span<const std::string> arguments);
absl::StatusOr<int> RunTrace(std::span<const std::string> arguments);
absl::StatusOr<int> RunVersion(std::span<const std::string> arguments);
absl::StatusOr<int> RunWatch(std::span<const std::string> arguments);

}  // namespace geopipe
