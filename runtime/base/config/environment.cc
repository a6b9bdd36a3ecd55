#include "runtime/base/config/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "runtime/base/config/schema.h"
#include "runtime/base/suggest.h"
#include "runtime/base/utf8.h"

namespace geopipe {

absl::Status CheckEnvironmentNames(std::string_view prefix, std::span<const std::string> key_paths) {
  std::vector<std::string> names;
  names.reserve(key_paths.size());
  for (const std::string& path : key_paths) {
    internal::EnvironmentValue(prefix, path, &names.emplace_back());
  }
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    if (name.starts_with(prefix) && std::ranges::find(names, name) == names.end()) {
      const std::string group = fmt::format("{}_", name);
      const auto inside = std::ranges::find_if(names, [&](const std::string& each) { return each.starts_with(group); });
      if (inside != names.end()) {
        return absl::InvalidArgumentError(
            fmt::format("environment variable {}: is a map; set its keys, such as {}", name, *inside));
      }
      const std::string hint = DidYouMean(name, names);
      return absl::InvalidArgumentError(fmt::format("environment variable {}: no key of the configuration{}",
                                                    Excerpt(name), hint.empty() ? "; leave it out" : hint));
    }
  }
  return absl::OkStatus();
}

}  // namespace geopipe
