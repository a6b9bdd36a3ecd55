// What every verb of geopipectl shares: its signature, exit codes, common flags and how errors are shown.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
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

// Exit code of an error from files, flags and the planner on this machine: FailedPrecondition is an infeasible job.
int LocalExitCode(const absl::Status& status);
// Exit code of an error from the coordinator.
int RemoteExitCode(const absl::Status& status);

// "error: <message>" on standard error. Returns `exit_code`.
int Fail(const absl::Status& status, int exit_code);

enum class OutputFormat : uint8_t { kTable, kWide, kJson, kYaml };

// Flags that several verbs have.
struct CommonFlags {
  OutputFormat output = OutputFormat::kTable;
  std::string server;
  int64_t timeout_ns = 10'000'000'000;

  // -o/--format with the given choices ("table", "json", …).
  void AddFormat(FlagSet& flags, std::vector<std::string> choices = {"table", "json"});
  // --server (default: $GEOPIPE_SERVER, else 127.0.0.1:7070) and --timeout.
  void AddServer(FlagSet& flags);
};

// Parses; on --help prints it and returns kExitOk, on an error prints it and returns kExitBadInput; nullopt: go on.
std::optional<int> ParseVerbFlags(FlagSet& flags, std::span<const std::string> arguments);

// "2,1" to {2, 1}. InvalidArgument for anything but non-negative numbers.
absl::StatusOr<std::vector<int32_t>> ParseDeltaN(std::string_view text);

// JSON as block-style YAML, strings quoted.
std::string ToYaml(const nlohmann::ordered_json& json);

// Prints `json` as JSON or YAML. REQUIRES: format is one of the two.
void PrintDocument(const nlohmann::ordered_json& json, OutputFormat format);

// Arguments after the verb; the exit code.
using VerbFunction = int (*)(std::span<const std::string> arguments);

int RunApply(std::span<const std::string> arguments);
int RunCancel(std::span<const std::string> arguments);
int RunDescribe(std::span<const std::string> arguments);
int RunExplain(std::span<const std::string> arguments);
int RunGet(std::span<const std::string> arguments);
int RunPlan(std::span<const std::string> arguments);
int RunPlayground(std::span<const std::string> arguments);
int RunSimulate(std::span<const std::string> arguments);
int RunProfile(std::span<const std::string> arguments);
int RunTrace(std::span<const std::string> arguments);
int RunVersion(std::span<const std::string> arguments);
int RunWatch(std::span<const std::string> arguments);

}  // namespace geopipe
