#include "agent/config.h"

#include <fmt/format.h>

namespace geopipe::agent {

std::string AgentConfig::PacerPath(std::string_view to_site) const {
  for (const LinkConfig& link : links) {
    if (link.to == to_site && !link.pacer_path.empty()) {
      return link.pacer_path;
    }
  }
  return fmt::format("{}/pacer-{}-{}", state_dir, site, to_site);
}

}  // namespace geopipe::agent
