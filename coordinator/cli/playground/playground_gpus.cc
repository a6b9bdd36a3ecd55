#include "coordinator/cli/playground/playground_gpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace geopipe {
namespace {

bool IsNumber(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::vector<std::string> GpusHere(std::string_view visible, const std::filesystem::path& devices) {
  std::vector<std::string> gpus;
  for (size_t begin = 0; begin < visible.size();) {
    const size_t end = std::min(visible.find(',', begin), visible.size());
    gpus.emplace_back(visible.substr(begin, end - begin));
    begin = end + 1;
  }
  if (visible.empty()) {
    constexpr std::string_view kPrefix = "nvidia";
    std::error_code error;
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(devices, error)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(kPrefix) && IsNumber(std::string_view(name).substr(kPrefix.size()))) {
        gpus.push_back(std::to_string(gpus.size()));
      }
    }
  }
  return gpus.empty() ? std::vector<std::string>{"0"} : gpus;
}

std::string GpuKeys(std::span<const std::string> gpus, int32_t first, int32_t count) {
  std::vector<std::string_view> own;
  for (int32_t device = first; device < first + count; ++device) {
    own.emplace_back(gpus[static_cast<size_t>(device) % gpus.size()]);
  }
  const bool by_ordinal = std::ranges::all_of(gpus, IsNumber);
  return fmt::format(", {}: [{}]{}", by_ordinal ? "ordinals" : "uuids", fmt::join(own, ", "),
                     std::cmp_greater(count, gpus.size()) ? ", share_gpus: true" : "");
}

}  // namespace geopipe
