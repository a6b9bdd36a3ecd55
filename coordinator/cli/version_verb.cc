// geopipectl version: of this program and, when it answers, of the coordinator.
#include <fmt/format.h>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/output.h"
#include "runtime/base/version.h"

namespace geopipe {

absl::StatusOr<int> RunVersion(std::span<const std::string> arguments) {
  CommonFlags common;
  bool client_only = false;
  FlagSet flags("geopipectl version", "Prints the version of this program and of the coordinator.");
  flags.Add("client", &client_only, "Only this program: no server is asked.");
  common.AddServer(flags);
  common.AddFormat(flags, {"table", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  nlohmann::ordered_json json{{"client", Version()}};
  absl::Status status;
  if (!client_only) {
    ControlClient client(common.server, common.timeout_ns);
    const absl::StatusOr<v1::GetVersionResponse> server = client.GetVersion();
    if (server.ok()) {
      json["coordinator"] = server->version();
    }
    status = server.status();
  }
  if (common.output != OutputFormat::kTable) {
    PrintDocument(json, common.output);
  } else {
    PrintOut("geopipectl {}\n", Version());
    if (json.contains("coordinator")) {
      PrintOut("geopipe-coordinator {} at {}\n", json["coordinator"].get<std::string>(), common.server);
    }
  }
  GP_RETURN_IF_ERROR(status);
  return kExitOk;
}

}  // namespace geopipe
