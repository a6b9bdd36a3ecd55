// Structured logs on standard error, for people or as one JSON object per line, through spdlog. Every line carries job,
// epoch, site and worker as far as they are known.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace geopipe {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning", "error".
absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name);
std::string_view LogLevelName(LogLevel level);

enum class LogFormat : uint8_t { kText, kJson };

// "text", "json".
absl::StatusOr<LogFormat> ParseLogFormat(std::string_view name);
std::string_view LogFormatName(LogFormat format);

// Empty fields are left out of the line.
struct LogContext {
  std::string job;
  std::optional<uint64_t> epoch;
  std::string site;
  std::string worker;  // "site/node/device"
};

struct LogOptions {
  std::string program;  // "geopipe-agent"
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  bool quiet = false;  // no line at all: simulations of daemons
};

// Called once, early in main, before other threads. Without it lines are text at level info.
void InitLogging(const LogOptions& options);

// Sets the fields that every line of this process carries from here on. A field given with a line wins. Any thread.
void SetProcessLogContext(const LogContext& context);

bool LogEnabled(LogLevel level);
// One line. Any thread. Line breaks in `message` are kept in JSON and shown as they are in text.
void LogLine(LogLevel level, const LogContext& context, std::string_view message);

// One line as text or JSON would show it, without its newline; `unix_ns` is its time.
std::string FormatLogLine(const LogOptions& options, LogLevel level, const LogContext& context,
                          std::string_view message, int64_t unix_ns);

template <class... Args>
void Log(LogLevel level, const LogContext& context, fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(level)) {
    LogLine(level, context, fmt::format(format, std::forward<Args>(args)...));
  }
}

template <class... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kDebug, LogContext{}, format, std::forward<Args>(args)...);
}

template <class... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kInfo, LogContext{}, format, std::forward<Args>(args)...);
}

template <class... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kWarning, LogContext{}, format, std::forward<Args>(args)...);
}

template <class... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kError, LogContext{}, format, std::forward<Args>(args)...);
}

}  // namespace geopipe
