#include "runtime/base/log.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace geopipe {
namespace {

constexpr int64_t kTimeNs = 1'760'252'701'123'456'789;  // 2025-10-12T07:05:01.123456789Z

TEST_CASE("A line for people carries time, level, program and context") {
  const LogOptions options{.program = "geopipe-worker"};
  CHECK(FormatLogLine(options, LogLevel::kInfo, {}, "ready", kTimeNs) ==
        "2025-10-12T07:05:01.123456Z info    geopipe-worker: ready");
  CHECK(
      FormatLogLine(options, LogLevel::kError, {"tiny", 3, "north", "north/n0/0"}, "bad \xff byte", kTimeNs) ==
      "2025-10-12T07:05:01.123456Z error   geopipe-worker [job=tiny epoch=3 site=north worker=north/n0/0]: bad ? byte");
}

TEST_CASE("A line for programs is one JSON object") {
  const LogOptions options{.program = "geopipe-agent", .format = LogFormat::kJson};
  const std::string text =
      FormatLogLine(options, LogLevel::kWarning, {"tiny", 0, "north", ""}, "two\nlines \"quoted\" \xff", kTimeNs);
  CHECK(text.find('\n') == std::string::npos);
  const auto line = nlohmann::json::parse(text);
  CHECK(line["time"] == "2025-10-12T07:05:01.123456Z");
  CHECK(line["level"] == "warning");
  CHECK(line["program"] == "geopipe-agent");
  CHECK(line["job"] == "tiny");
  CHECK(line["epoch"] == 0);
  CHECK(line["site"] == "north");
  CHECK_FALSE(line.contains("worker"));
  CHECK(line["message"] == "two\nlines \"quoted\" \xef\xbf\xbd");
}

TEST_CASE("Names of levels and formats") {
  CHECK(ParseLogLevel("debug").value() == LogLevel::kDebug);
  CHECK(ParseLogLevel("warn").status().message() == "unknown log level 'warn': use debug, info, warning or error");
  CHECK(ParseLogFormat("json").value() == LogFormat::kJson);
  CHECK_FALSE(ParseLogFormat("xml").ok());
}

TEST_CASE("Lines below the level are not made, and none by a quiet program") {
  InitLogging({.program = "test", .quiet = true});
  CHECK_FALSE(LogEnabled(LogLevel::kError));
  InitLogging({.program = "test", .level = LogLevel::kError});
  CHECK_FALSE(LogEnabled(LogLevel::kWarning));
  CHECK(LogEnabled(LogLevel::kError));
  LogWarning("not shown {}", 1);
}

}  // namespace
}  // namespace geopipe
