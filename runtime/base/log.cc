#include "runtime/base/log.h"

#include <absl/status/status.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "runtime/base/clock.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

constexpr std::array<std::string_view, 4> kLevelNames = {"debug", "info", "warning", "error"};

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  static constexpr std::array kLevels = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                         spdlog::level::err};
  return kLevels[static_cast<size_t>(level)];
}

struct Logging {
  LogOptions options;
  std::shared_ptr<spdlog::logger> logger;
  std::mutex mutex;  // guards context
  LogContext context;
};

// FormatLogLine makes the whole line; spdlog filters, locks and writes.
Logging& State() {
  static Logging& state = *[] {
    auto* logging = new Logging;  // lives for ever: other threads may log while the process ends
    logging->logger = std::make_shared<spdlog::logger>("geopipe", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logging->logger->set_pattern("%v");
    logging->logger->set_level(spdlog::level::info);
    logging->logger->flush_on(spdlog::level::debug);
    return logging;
  }();
  return state;
}

// "2025-10-12T07:05:01.123456Z"
std::string Timestamp(int64_t unix_ns) {
  constexpr int64_t kNsPerS = 1'000'000'000;
  const std::time_t seconds = unix_ns / kNsPerS;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, unix_ns % kNsPerS / 1000);
}

LogContext Merge(const LogContext& line, const LogContext& process) {
  return LogContext{.job = line.job.empty() ? process.job : line.job,
                    .epoch = line.epoch.has_value() ? line.epoch : process.epoch,
                    .site = line.site.empty() ? process.site : line.site,
                    .worker = line.worker.empty() ? process.worker : line.worker};
}

absl::Status Unknown(std::string_view what, std::string_view name, std::string_view known) {
  return absl::InvalidArgumentError(fmt::format("unknown {} '{}': use {}", what, name, known));
}

}  // namespace

absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name) {
  const auto found = std::ranges::find(kLevelNames, name);
  if (found == kLevelNames.end()) {
    return Unknown("log level", name, "debug, info, warning or error");
  }
  return static_cast<LogLevel>(found - kLevelNames.begin());
}

std::string_view LogLevelName(LogLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

std::string_view LogFormatName(LogFormat format) { return format == LogFormat::kJson ? "json" : "text"; }

absl::StatusOr<LogFormat> ParseLogFormat(std::string_view name) {
  if (name == "text") {
    return LogFormat::kText;
  }
  if (name == "json") {
    return LogFormat::kJson;
  }
  return Unknown("log format", name, "text or json");
}

void InitLogging(const LogOptions& options) {
  Logging& state = State();
  state.options = options;
  state.logger->set_level(options.quiet ? spdlog::level::off : SpdlogLevel(options.level));
}

void SetProcessLogContext(const LogContext& context) {
  Logging& state = State();
  std::lock_guard lock(state.mutex);
  state.context = context;
}

bool LogEnabled(LogLevel level) { return State().logger->should_log(SpdlogLevel(level)); }

void LogLine(LogLevel level, const LogContext& context, std::string_view message) {
  Logging& state = State();
  LogContext merged;
  {
    std::lock_guard lock(state.mutex);
    merged = Merge(context, state.context);
  }
  state.logger->log(SpdlogLevel(level),
                    FormatLogLine(state.options, level, merged, message, Clock::Real().UnixNowNs()));
}

std::string FormatLogLine(const LogOptions& options, LogLevel level, const LogContext& context,
                          std::string_view message, int64_t unix_ns) {
  const std::string_view level_name = kLevelNames[static_cast<size_t>(level)];
  if (options.format == LogFormat::kJson) {
    nlohmann::ordered_json line;
    line["time"] = Timestamp(unix_ns);
    line["level"] = level_name;
    line["program"] = options.program;
    if (!context.job.empty()) {
      line["job"] = context.job;
    }
    if (context.epoch.has_value()) {
      line["epoch"] = *context.epoch;
    }
    if (!context.site.empty()) {
      line["site"] = context.site;
    }
    if (!context.worker.empty()) {
      line["worker"] = context.worker;
    }
    line["message"] = message;
    return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  std::string fields;
  const auto add = [&fields](std::string_view name, std::string_view value) {
    if (!value.empty()) {
      fields += fmt::format("{}{}={}", fields.empty() ? "" : " ", name, value);
    }
  };
  add("job", context.job);
  add("epoch", context.epoch.has_value() ? fmt::format("{}", *context.epoch) : "");
  add("site", context.site);
  add("worker", context.worker);
  return fmt::format("{} {:<7} {}{}{}{} {}", Timestamp(unix_ns), level_name, options.program,
                     fields.empty() ? "" : " [", fields, fields.empty() ? ":" : "]:", ToUtf8(message));
}

}  // namespace geopipe
