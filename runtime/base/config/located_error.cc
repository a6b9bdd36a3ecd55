#include "runtime/base/config/located_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace geopipe {

absl::Status AttributeToKey(const YamlDocument& document, std::string_view prefix, const absl::Status& status) {
  if (status.ok()) {
    return status;
  }
  const std::string message(status.message());
  const size_t end = std::min(message.find(' '), message.size());
  const std::string path = fmt::format("{}{}", prefix, std::string_view(message).substr(0, end));
  const size_t rest = std::min(end + 1, message.size());
  return document.Error(path, std::string_view(message).substr(rest));
}

absl::Status AttributeTo(const YamlDocument& document, std::string_view path, const absl::Status& status) {
  return status.ok() ? status : document.Error(path, std::string(status.message()));
}

}  // namespace geopipe
