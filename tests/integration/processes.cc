#include "tests/integration/processes.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

namespace geopipe {
namespace {

// Empty when it cannot be read, as after the end of the process it tells of.
std::string ReadAll(const std::filesystem::path& path) {
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();  // does not throw, as iterators over the buffer do
  return text.str();
}

std::optional<ProcessInfo> ReadProcess(int64_t pid) {
  const std::filesystem::path folder = std::filesystem::path("/proc") / std::to_string(pid);
  // "pid (name) state parent …": the name may hold anything but ends at the last parenthesis.
  const std::string stat = ReadAll(folder / "stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  ProcessInfo process;
  process.pid = pid;
  std::istringstream fields(stat.substr(name_end + 1));
  fields >> process.state >> process.parent;
  std::istringstream arguments(ReadAll(folder / "cmdline"));
  for (std::string argument; std::getline(arguments, argument, '\0');) {
    process.arguments.push_back(argument);
  }
  return process;
}

std::vector<ProcessInfo> AllProcesses() {
  std::vector<ProcessInfo> processes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    int64_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc() || end != name.data() + name.size()) {
      continue;
    }
    if (std::optional<ProcessInfo> process = ReadProcess(pid)) {
      processes.push_back(*std::move(process));
    }
  }
  return processes;
}

}  // namespace

bool ProcessInfo::Runs(const std::string& program) const {
  return !arguments.empty() && std::filesystem::path(arguments.front()).filename() == program;
}

std::vector<ProcessInfo> Descendants(int64_t pid) {
  const std::vector<ProcessInfo> all = AllProcesses();
  std::vector<int64_t> ancestors{pid};
  std::vector<ProcessInfo> descendants;
  for (size_t next = 0; next < ancestors.size(); ++next) {
    for (const ProcessInfo& process : all) {
      if (process.parent == ancestors[next]) {
        ancestors.push_back(process.pid);
        if (process.state != "Z") {
          descendants.push_back(process);
        }
      }
    }
  }
  return descendants;
}

bool Exists(const ProcessInfo& process) {
  const std::optional<ProcessInfo> now = ReadProcess(process.pid);
  return now && now->state != "Z" && now->arguments == process.arguments;
}

}  // namespace geopipe
