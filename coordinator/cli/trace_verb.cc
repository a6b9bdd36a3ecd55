// geopipectl trace: the latest measured iteration of a job beside the predicted one, for Perfetto or chrome://tracing.
#include <fmt/format.h>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/files/output_files.h"
#include "coordinator/cli/render/format.h"
#include "coordinator/cli/trace_data.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/output.h"

namespace geopipe {

absl::StatusOr<int> RunTrace(std::span<const std::string> arguments) {
  CommonFlags common;
  std::string name;
  std::string output;
  FlagSet flags("geopipectl trace",
                "Writes a job's latest measured iteration, and the predicted one beside it, as a trace for "
                "https://ui.perfetto.dev or chrome://tracing.");
  flags.AddPositional("JOB", &name, true, "Name of the job.");
  flags.AddPath("export-trace", &output, "FILE", "Where to write it; JOB.trace.json if not given.");
  common.AddServer(flags);
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  output = output.empty() ? fmt::format("{}.trace.json", name) : output;
  ControlClient client(common.server, common.timeout_ns);
  GP_ASSIGN_OR_RETURN(const v1::GetTraceResponse response, client.GetTrace(name));
  GP_ASSIGN_OR_RETURN(const TraceData data, OrFailed(TraceDataOf(response)));
  GP_ASSIGN_OR_RETURN(const std::string json, OrFailed(TraceJson(data)));
  GP_RETURN_IF_ERROR(OrFailed(WriteOutputFile(output, json)));
  std::FILE* const words = output == kStandardStream ? stderr : stdout;
  PrintTo(words, "iteration {} of job {} written to {}\n", data.iterations.back().iteration, name, output);
  PrintTo(words, "the ranks' clocks agree to {}\n",
          data.clock_error_ns < 0 ? "an unknown degree: not all have been measured yet"
                                  : fmt::format("{} or better", HumanDuration(data.clock_error_ns)));
  return kExitOk;
}

}  // namespace geopipe
