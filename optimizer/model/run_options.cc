#include "optimizer/model/run_options.h"

#include <absl/status/status.h>
#include <fmt/format.h>

namespace geopipe {

std::string_view BackendKindName(BackendKind kind) {
  switch (kind) {
    case BackendKind::kCpu:
      return "cpu";
    case BackendKind::kCuda:
      return "cuda";
    case BackendKind::kModelled:
      return "modelled";
  }
  return "?";
}

absl::StatusOr<BackendKind> ParseBackendKind(std::string_view name) {
  for (BackendKind kind : {BackendKind::kCpu, BackendKind::kCuda, BackendKind::kModelled}) {
    if (name == BackendKindName(kind)) {
      return kind;
    }
  }
  return absl::InvalidArgumentError(fmt::format("unknown backend '{}': use cpu, cuda or modelled", name));
}

}  // namespace geopipe
