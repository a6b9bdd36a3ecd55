#include "coordinator/config.h"

#include <fmt/format.h>

#include <string>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/listen_address.h"

namespace geopipe {
namespace {

// An error about the value of `key`, with its place or that of the group that lacks it, when the file gives either.
absl::Status Wrong(const YamlDocument& document, std::string_view key, std::string_view message) {
  const bool in_file = document.root.Find(key.substr(0, key.find('.'))) != nullptr;
  return in_file ? document.Error(key, message) : absl::InvalidArgumentError(fmt::format("{} {}", key, message));
}

absl::Status ValidateAddress(const YamlDocument& document, const std::string& key, const std::string& address) {
  const absl::Status status = ParseListenAddress(key, address).status();
  return status.ok() || document.root.Find(key) == nullptr
             ? status
             : document.Error(document.Locate(key), "", std::string(status.message()));
}

}  // namespace

absl::Status ValidateConfig(const CoordinatorConfig& config, const YamlDocument& document) {
  if (config.state_dir.empty()) {
    return absl::InvalidArgumentError("state_dir is not set; give a folder for the job store (--state-dir)");
  }
  const int64_t suspect_ns = config.membership.suspect_after_ns;
  if (suspect_ns <= config.heartbeat_interval_ns) {
    return Wrong(document, "heartbeat.suspect_after",
                 fmt::format("is {}; it must be longer than heartbeat.interval, which is {}",
                             FormatDuration(suspect_ns), FormatDuration(config.heartbeat_interval_ns)));
  }
  if (config.membership.failed_after_ns <= suspect_ns) {
    return Wrong(document, "heartbeat.failed_after",
                 fmt::format("is {}; it must be longer than heartbeat.suspect_after, which is {}",
                             FormatDuration(config.membership.failed_after_ns), FormatDuration(suspect_ns)));
  }
  if (!config.metrics.empty()) {
    GP_RETURN_IF_ERROR(ValidateAddress(document, "metrics", config.metrics));
  }
  GP_RETURN_IF_ERROR(ValidateAddress(document, "listen", config.listen));
  const absl::StatusOr<ListenAddress> listen = ParseListenAddress("listen", config.listen);
  const absl::StatusOr<ListenAddress> metrics = ParseListenAddress("metrics", config.metrics);
  if (metrics.ok() && listen->port != 0 && ToString(*listen) == ToString(*metrics)) {
    return Wrong(document, "metrics",
                 fmt::format("is {}, where the coordinator listens; give it another port", config.metrics));
  }
  return absl::OkStatus();
}

}  // namespace geopipe
