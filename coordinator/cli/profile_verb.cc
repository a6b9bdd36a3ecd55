// geopipectl profile: what a job's workers have measured, as a file for `plan --profile`.
#include <fmt/format.h>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/files/output_files.h"
#include "coordinator/cli/verb.h"
#include "coordinator/spec/profile_file.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/telemetry_wire.h"
#include "runtime/base/output.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {

absl::StatusOr<int> RunProfile(std::span<const std::string> arguments) {
  CommonFlags common;
  std::string name;
  std::string output;
  FlagSet flags("geopipectl profile", "Writes what a job's workers have measured, as a file for 'plan --profile'.");
  flags.AddPositional("JOB", &name, true, "Name of the job.");
  flags.AddPath("export-profile", &output, "FILE", "Where to write it; JOB.profile.yaml if not given.");
  common.AddServer(flags);
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  output = output.empty() ? fmt::format("{}.profile.yaml", name) : output;
  ControlClient client(common.server, common.timeout_ns);
  GP_ASSIGN_OR_RETURN(const v1::JobDetail job, client.GetJob(name));
  GP_ASSIGN_OR_RETURN(Profile profile, OrFailed(FromProto(job.profile())));
  profile.tensor = 1;  // workers measure whole layers
  if (profile.empty()) {
    return OrFailed(absl::FailedPreconditionError(
        fmt::format("job {} has no profile: its workers measure before it is planned, and a job of one worker whose "
                    "costs are given measures nothing",
                    name)));
  }
  GP_ASSIGN_OR_RETURN(const JobSpec spec, OrFailed(ParseManifest(job.manifest())));
  GP_RETURN_IF_ERROR(
      OrFailed(WriteOutputFile(output, FormatProfile({.model = ProfiledModelOf(spec), .profile = profile}))));
  PrintTo(output == kStandardStream ? stderr : stdout, "{} of batch shapes and {} of messages written to {}\n",
          Counted(std::ssize(profile.entries), "measurement"), profile.messages.size(), output);
  return kExitOk;
}

}  // namespace geopipe
