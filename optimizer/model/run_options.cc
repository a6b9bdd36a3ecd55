#include "optimizer/model/run_options.h"

#include <absl/status/status.h>
#include <fmt/format.h>

namespace geopipe {

std::string_view BackendKindName(BackendKind kind) {
  static constexpr std::array<std::string_view, kBackendKinds.size()> kNames{"cpu", "cuda", "modelled"};
  return kNames[static_cast<size_t>(kind)];
}

absl::StatusOr<BackendKind> ParseBackendKind(std::string_view name) {
  for (BackendKind kind : kBackendKinds) {
    if (name == BackendKindName(kind)) {
      return kind;
    }
  }
  return absl::InvalidArgumentError(fmt::format("unknown backend '{}': use cpu, cuda or modelled", name));
}

}  // namespace geopipe
