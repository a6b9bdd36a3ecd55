#include "tests/support/scrape.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "runtime/base/files.h"
#include "runtime/base/process.h"
#include "runtime/base/unique_fd.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr int64_t kScrapeTimeoutNs = 10'000'000'000;

std::optional<std::string> FindInPath(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (std::filesystem::exists(folder + "/" + program)) {
      return folder + "/" + program;
    }
  }
  return std::nullopt;
}

}  // namespace

std::string HttpGet(const std::string& address, const std::string& path) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  REQUIRE(inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) == 1);
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval timeout{.tv_sec = kScrapeTimeoutNs / 1'000'000'000, .tv_usec = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  REQUIRE(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\nConnection: close\r\n\r\n";
  REQUIRE(send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[16384];
  ssize_t count = 0;
  while ((count = recv(fd.get(), buffer, sizeof buffer, 0)) > 0) {
    answer.append(buffer, static_cast<size_t>(count));
  }
  REQUIRE(count == 0);
  return answer;
}

std::string Scrape(const std::string& address) {
  const std::string answer = HttpGet(address, "/metrics");
  REQUIRE(answer.starts_with("HTTP/1.1 200"));
  const size_t end = answer.find("\r\n\r\n");
  REQUIRE(end != std::string::npos);
  return answer.substr(end + 4);
}

std::optional<double> SeriesValue(const std::string& text, const std::string& name,
                                  const std::vector<std::pair<std::string, std::string>>& labels) {
  std::optional<double> value;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name) || (line[name.size()] != ' ' && line[name.size()] != '{')) {
      continue;
    }
    bool matches = true;
    for (const auto& [key, of_key] : labels) {
      const std::string label = key + "=\"" + of_key + "\"";
      matches = matches && (line.find("{" + label) != std::string::npos || line.find("," + label) != std::string::npos);
    }
    if (matches) {
      INFO(line);
      REQUIRE_FALSE(value.has_value());
      value = std::stod(line.substr(line.rfind(' ') + 1));
    }
  }
  return value;
}

std::optional<std::string> PromtoolFindings(const std::string& text) {
  const std::optional<std::string> promtool = FindInPath("promtool");
  if (!promtool.has_value()) {
    return std::nullopt;
  }
  const TempDir folder;
  const std::string input = folder.Write("metrics", text);
  ProcessSpec spec;
  spec.program = "/bin/sh";
  spec.args = {"-c", "exec \"$0\" check metrics < \"$1\"", *promtool, input};
  spec.stdout_path = folder.path() + "/findings";
  spec.stderr_path = spec.stdout_path;
  absl::StatusOr<Process> process = Process::Start(spec);
  REQUIRE(process.ok());
  const std::optional<ExitStatus> ended = process->Wait(kScrapeTimeoutNs);
  REQUIRE(ended.has_value());
  const std::string findings = ReadFile(spec.stdout_path, 1 << 20).value_or("");
  return ended->success() ? findings : findings + ended->Description();
}

}  // namespace geopipe
