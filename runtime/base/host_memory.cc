#include "runtime/base/host_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "runtime/base/files.h"

namespace geopipe {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 16;

// The number behind `key` at the start of a line ("MemAvailable:   123 kB"); an empty key: the text's first.
std::optional<int64_t> NumberAfter(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(key)) {
      const size_t begin = std::min(line.find_first_not_of(" \t", key.size()), line.size());
      int64_t number = 0;
      const auto [end, error] = std::from_chars(line.data() + begin, line.data() + line.size(), number);
      return error == std::errc() && end != line.data() + begin ? std::optional(number) : std::nullopt;
    }
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return std::nullopt;
}

std::optional<int64_t> NumberIn(const std::filesystem::path& file, std::string_view key = "") {
  const absl::StatusOr<std::string> text = ReadFile(file, kMaxTextBytes);
  return text.ok() ? NumberAfter(*text, key) : std::nullopt;
}

struct GroupFiles {
  std::string_view limit;
  std::string_view used;
  std::string_view cache;  // in memory.stat: of files, not used lately
};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file "};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};

// The least that the group and those above it allow; a group without a limit says "max", or a number beyond any memory.
std::optional<int64_t> LeftInGroups(const std::filesystem::path& mount, std::string_view group,
                                    const GroupFiles& files) {
  std::optional<int64_t> least;
  std::filesystem::path path(group.substr(std::min(group.find_first_not_of('/'), group.size())));
  while (true) {
    const std::filesystem::path folder = mount / path;
    const std::optional<int64_t> limit = NumberIn(folder / files.limit);
    const std::optional<int64_t> used = NumberIn(folder / files.used);
    if (limit.has_value() && used.has_value()) {
      const int64_t cache = NumberIn(folder / "memory.stat", files.cache).value_or(0);
      const int64_t left = std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - cache));
      least = std::min(left, least.value_or(left));
    }
    if (path.empty()) {
      return least;
    }
    path = path.parent_path();
  }
}

}  // namespace

int64_t HostMemoryBytes() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  return pages <= 0 ? 0 : pages * int64_t{sysconf(_SC_PAGESIZE)};
}

std::optional<int64_t> AvailableMemoryBytes(const std::filesystem::path& root) {
  std::optional<int64_t> available = NumberIn(root / "proc/meminfo", "MemAvailable:");
  if (available.has_value()) {
    *available *= 1024;
  }
  const auto limit_by = [&](std::optional<int64_t> left) {
    available = left.has_value() ? std::min(*left, available.value_or(*left)) : available;
  };
  const absl::StatusOr<std::string> groups = ReadFile(root / "proc/self/cgroup", kMaxTextBytes);
  std::string_view text = groups.ok() ? std::string_view(*groups) : "";
  while (!text.empty()) {  // "hierarchy:controllers:path"
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) {
      continue;
    }
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    if (controllers == ",,") {
      limit_by(LeftInGroups(root / "sys/fs/cgroup", line.substr(second + 1), kVersion2));
    } else if (controllers.find(",memory,") != std::string::npos) {
      limit_by(LeftInGroups(root / "sys/fs/cgroup/memory", line.substr(second + 1), kVersion1));
    }
  }
  return available;
}

}  // namespace geopipe
