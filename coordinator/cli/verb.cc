#include "coordinator/cli/verb.h"

#include <absl/strings/cord.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "optimizer/base/check.h"
#include "optimizer/model/job_spec.h"
#include "runtime/base/output.h"
#include "runtime/base/terminal.h"
#include "runtime/base/utf8.h"
#include "runtime/manifest/coordinator_config.h"

namespace geopipe {
namespace {

constexpr int32_t kMaxHelpColumns = 100;
constexpr char kExitCode[] = "geopipectl/exit_code";

void AppendYaml(const nlohmann::ordered_json& json, int indent, std::string& text) {
  const std::string margin(static_cast<size_t>(indent) * 2, ' ');
  const auto append_child = [&](const nlohmann::ordered_json& child) {
    if (child.is_structured() && !child.empty()) {
      text += "\n";
      AppendYaml(child, indent + 1, text);
    } else {
      text += fmt::format(" {}\n", child.dump());
    }
  };
  if (json.is_object() && !json.empty()) {
    for (const auto& [key, value] : json.items()) {
      text += fmt::format("{}{}:", margin, nlohmann::ordered_json(key).dump());
      append_child(value);
    }
  } else if (json.is_array() && !json.empty()) {
    for (const auto& value : json) {
      text += fmt::format("{}-", margin);
      append_child(value);
    }
  } else {
    text += fmt::format("{}{}\n", margin, json.dump());
  }
}

}  // namespace

absl::Status WithExitCode(absl::Status status, int exit_code) {
  status.SetPayload(kExitCode, absl::Cord(fmt::format("{}", exit_code)));
  return status;
}

int ExitCodeOf(const absl::Status& status) {
  if (const auto own = status.GetPayload(kExitCode); own.has_value()) {
    return std::atoi(std::string(*own).c_str());
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
      return kExitBadInput;
    case absl::StatusCode::kFailedPrecondition:
      return kExitInfeasible;
    default:
      return kExitFailed;
  }
}

int RemoteExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return kExitBadInput;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kExitDenied;
    default:
      return kExitFailed;
  }
}

void CommonFlags::AddFormat(FlagSet& flags, std::vector<std::string> choices) {
  static constexpr std::array<std::string_view, 5> kFormats{"table", "wide", "json", "yaml",
                                                            "topology"};  // as in OutputFormat
  const std::string metavar = fmt::format("{}", fmt::join(choices, "|"));
  const std::string default_text = choices.front();
  flags.AddParsed("format,o", metavar, default_text, "How to print the result.",
                  [this, choices = std::move(choices), metavar](std::string_view text) -> absl::Status {
                    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
                      return absl::InvalidArgumentError(fmt::format("'{}' is not one of {}", text, metavar));
                    }
                    output = static_cast<OutputFormat>(std::ranges::find(kFormats, text) - kFormats.begin());
                    return absl::OkStatus();
                  });
}

void CommonFlags::AddServer(FlagSet& flags) {
  const char* from_environment = std::getenv("GEOPIPE_SERVER");
  const bool is_set = from_environment != nullptr && *from_environment != '\0';
  server = is_set ? from_environment : std::string(kDefaultCoordinator);
  flags.Add("server", &server, "HOST:PORT", "The coordinator ($GEOPIPE_SERVER).");
  flags.AddDuration("timeout", &timeout_ns, "Longest wait for an answer.");
}

std::optional<int> ParseVerbFlags(FlagSet& flags, std::span<const std::string> arguments) {
  if (const absl::Status status = flags.Parse(arguments); !status.ok()) {
    const std::string message = Printable({status.message().data(), status.message().size()});
    const std::string usage = message.ends_with(flags.Usage()) ? "" : flags.Usage() + "\n";
    PrintErr("error: {}\n{}", message, usage);
    return kExitBadInput;
  }
  if (flags.help_requested()) {
    PrintOut("{}", flags.Help(std::min(TerminalColumns(), kMaxHelpColumns)));
    return kExitOk;
  }
  return std::nullopt;
}

absl::Status CheckOneStandardInput(std::initializer_list<std::string_view> paths) {
  return std::ranges::count(paths, std::string_view("-")) <= 1
             ? absl::OkStatus()
             : absl::InvalidArgumentError("two files are to come from standard input (-); name a file for one of them");
}

absl::Status CheckJobName(std::string_view name) {
  return IsJobName(name) ? absl::OkStatus()
                         : absl::InvalidArgumentError(
                               fmt::format("'{}' is no job's name, which has {}", Excerpt(name), kJobNameRule));
}

void AddRunFlag(FlagSet& flags, std::optional<int64_t>* run) {
  flags.Add("run", run, "N", "An earlier run of this name, of those that 'geopipectl get jobs --all' lists.");
}

absl::StatusOr<int64_t> RunOf(const std::optional<int64_t>& run) {
  return run.value_or(1) >= 1
             ? absl::StatusOr<int64_t>(run.value_or(0))
             : absl::InvalidArgumentError(fmt::format("--run {}: the runs of a name are counted from 1", *run));
}

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(at + 1);
  }
}

absl::StatusOr<std::vector<int32_t>> ParseDeltaN(std::string_view text) {
  std::vector<int32_t> values;
  for (const std::string& part : Split(text, ',')) {
    int32_t& value = values.emplace_back();
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || value < 0 || value > kMaxDeltaN) {
      return absl::InvalidArgumentError(fmt::format(
          "'{}' is not a ΔN list: give one number for all crossings or one for each, like 2,1, from 0 to {}", text,
          kMaxDeltaN));
    }
  }
  return values;
}

std::string ToYaml(const nlohmann::ordered_json& json) {
  std::string text;
  AppendYaml(json, 0, text);
  return text;
}

void PrintDocument(const nlohmann::ordered_json& json, OutputFormat format) {
  GP_CHECK(format == OutputFormat::kJson || format == OutputFormat::kYaml);
  if (format == OutputFormat::kJson) {
    PrintOut("{}\n", json.dump(2));
  } else {
    PrintOut("{}", ToYaml(json));
  }
}

}  // namespace geopipe
