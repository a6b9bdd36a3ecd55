#include "coordinator/cli/playground/playground_verb.h"

#include <fmt/format.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/files/job_inputs.h"
#include "coordinator/cli/files/output_files.h"
#include "coordinator/cli/playground/playground_cluster.h"
#include "coordinator/cli/playground/playground_compare.h"
#include "coordinator/cli/playground/playground_course.h"
#include "coordinator/cli/playground/playground_layout.h"
#include "coordinator/cli/playground/playground_memory.h"
#include "coordinator/cli/run_flags.h"
#include "coordinator/cli/run_report.h"
#include "coordinator/cli/trace_data.h"
#include "coordinator/cli/verb.h"
#include "coordinator/spec/profile_file.h"
#include "coordinator/spec/topology_file.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/schedule_wire.h"
#include "proto/wire/telemetry_wire.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/host_memory.h"
#include "runtime/base/output.h"
#include "runtime/base/shutdown.h"
#include "runtime/base/system_time.h"
#include "runtime/base/terminal.h"
#include "runtime/base/wrap.h"
#include "runtime/manifest/job_manifest.h"
#include "runtime/rehearsal/host/stolen_time.h"

namespace geopipe {
namespace {

constexpr int64_t kCallTimeoutNs = 10'000'000'000;
constexpr int64_t kStopGraceNs = 2'000'000'000;

struct PlaygroundFlags {
  CommonFlags common;
  RunFlags run;
  std::string job_path;
  int32_t sites = 3;
  std::string link = "latency=20ms,bandwidth=1Gbps";
  std::string topology_path;
  std::string compare;
  std::string slowdown;
  std::string output = ".";
  bool keep = false;
  std::string gpu_library;
  CourseLimits limits;
  std::vector<std::string> arguments;  // as they were given
};

struct Rehearsal {
  JobSpec job;
  RunOptions run;
  std::vector<PlaygroundVariant> variants;  // empty: `run` alone
  PlaygroundLayout layout;
};

absl::StatusOr<Rehearsal> Prepare(const PlaygroundFlags& flags) {
  Rehearsal rehearsal;
  GP_ASSIGN_OR_RETURN(rehearsal.run, flags.run.Resolve());
  GP_ASSIGN_OR_RETURN(rehearsal.job, ReadJobFile(flags.job_path, rehearsal.run.backend));
  GP_RETURN_IF_ERROR(CheckInputsHere(rehearsal.job, rehearsal.run.backend, flags.job_path));
  GP_ASSIGN_OR_RETURN(rehearsal.job, RunFlags::WithSchedule(rehearsal.run, flags.job_path, std::move(rehearsal.job)));
  if (rehearsal.run.backend == BackendKind::kModelled && !rehearsal.run.explicit_costs && flags.topology_path.empty()) {
    return absl::InvalidArgumentError(
        "--backend modelled needs to know how fast the devices are: add --case FILE or --topology FILE");
  }
  if (rehearsal.run.explicit_costs) {
    GP_ASSIGN_OR_RETURN(rehearsal.layout, LayOutCase(rehearsal.job, *rehearsal.run.explicit_costs));
    if (!rehearsal.run.schedule_csv.empty() && rehearsal.job.parallelism.pipeline != rehearsal.layout.devices()) {
      return absl::InvalidArgumentError(
          fmt::format("--schedule-csv has {} pipeline ranks and --case {} devices; make them agree",
                      rehearsal.job.parallelism.pipeline, rehearsal.layout.devices()));
    }
    rehearsal.job.parallelism.pipeline = rehearsal.layout.devices();
  } else if (!flags.topology_path.empty()) {
    GP_ASSIGN_OR_RETURN(const ClusterSpec cluster, ReadTopologyFile(flags.topology_path));
    absl::StatusOr<PlaygroundLayout> layout = LayOutTopology(rehearsal.job, cluster);
    if (!layout.ok()) {
      return AttributeToJobFile(flags.job_path, layout.status());
    }
    rehearsal.layout = *std::move(layout);
  } else {
    GP_ASSIGN_OR_RETURN(const PlaygroundLink link, ParsePlaygroundLink(flags.link));
    absl::StatusOr<PlaygroundLayout> layout = LayOutSites(rehearsal.job, flags.sites, link);
    if (!layout.ok()) {
      return AttributeToJobFile(flags.job_path, layout.status());
    }
    rehearsal.layout = *std::move(layout);
  }
  rehearsal.job.placement.sites = rehearsal.layout.sites;
  if (!flags.slowdown.empty()) {
    GP_RETURN_IF_ERROR(ApplySlowdown(flags.slowdown, rehearsal.layout, rehearsal.run));
  }
  if (!flags.compare.empty()) {
    if (!flags.run.schedule.empty() || !flags.run.schedule_csv.empty() || !flags.run.delta_n.empty() ||
        rehearsal.run.comm != CommMode::kNonBlocking) {
      return absl::InvalidArgumentError(
          "--compare sets schedule, ΔN and comm of each variant: leave --schedule, --schedule-csv, --delta-n and "
          "--comm "
          "out");
    }
    GP_ASSIGN_OR_RETURN(rehearsal.variants, ParseVariants(flags.compare, rehearsal.run));
  }
  return rehearsal;
}

// State that all runs of a playground share.
struct RunContext {
  PlaygroundCluster& cluster;
  ShutdownSignal& shutdown;
  std::FILE* lines;
  CourseLimits limits;
  std::string resume_command;
  std::map<std::string, std::string> artifacts;
};

// Quotes a word for a shell, where some character in it would mean something.
std::string ShellWord(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
    return word;
  }
  std::string quoted;
  for (const char c : word) {
    quoted.append(c == '\'' ? "'\\''" : std::string_view(&c, 1));
  }
  return fmt::format("'{}'", quoted);
}

std::string ResumeCommand(const PlaygroundFlags& flags) {
  if (!flags.compare.empty()) {
    return "";  // which of the variants it would go on with is not said
  }
  std::string command = "geopipectl playground";
  for (const std::string& argument : flags.arguments) {
    command.append(fmt::format(" {}", ShellWord(argument)));
  }
  return flags.run.resume ? command : fmt::format("{} --resume", command);
}

// Writes the trace and names the largest deviation, where the run was long enough to have one.
absl::Status AddTrace(ControlClient& client, const std::string& name, const std::filesystem::path& folder,
                      RunReport& report) {
  GP_ASSIGN_OR_RETURN(const std::optional<ComparedRun> compared, CompareRun(client, name));
  if (!compared.has_value()) {
    return absl::OkStatus();
  }
  GP_ASSIGN_OR_RETURN(const std::string json, TraceJson(compared->data));
  GP_RETURN_IF_ERROR(WriteFileAtomically(folder / "trace.json", json));
  report.artifacts["trace"] = (folder / "trace.json").string();
  report.start_error_p95_ns = compared->comparison.start_error_p95_ns;
  report.deviation = LargestDeviation(compared->comparison, compared->data.plan);
  return absl::OkStatus();
}

absl::Status WriteProfile(const JobSpec& job, const std::filesystem::path& folder, RunReport& report) {
  GP_ASSIGN_OR_RETURN(Profile profile, FromProto(report.detail.profile()));
  profile.tensor = 1;  // workers measure whole layers
  if (profile.empty()) {
    return absl::OkStatus();
  }
  GP_RETURN_IF_ERROR(WriteProfileFile(folder / "profile.yaml", {.model = ProfiledModelOf(job), .profile = profile}));
  report.artifacts["profile"] = (folder / "profile.yaml").string();
  return absl::OkStatus();
}

absl::Status WriteReport(const std::filesystem::path& folder, RunReport& report) {
  report.artifacts["report"] = (folder / "report.json").string();
  GP_ASSIGN_OR_RETURN(const Json json, RunReportToJson(report));
  absl::Status written = WriteFileAtomically(folder / "report.json", json.dump(2) + "\n");
  if (!written.ok()) {
    report.artifacts.erase("report");
  }
  return written;
}

// Submits the job, follows it to its end and writes its report into `folder`.
absl::StatusOr<Outcome> RunOne(const JobSpec& job, const RunOptions& run, const std::filesystem::path& folder,
                               const RunContext& context) {
  GP_RETURN_IF_ERROR(MakeFolder(folder));
  ControlClient client(context.cluster.endpoint(), kCallTimeoutNs);
  v1::ApplyJobRequest request;
  request.set_manifest(WriteManifest(job));
  *request.mutable_run() = ToProto(run);
  const std::optional<ProcessorTime> before = ReadProcessorTime();
  GP_RETURN_IF_ERROR(client.ApplyJob(request).status());
  const Course course{.job = job,
                      .run = run,
                      .cluster = context.cluster,
                      .shutdown = context.shutdown,
                      .lines = context.lines,
                      .limits = context.limits,
                      .resume_command = context.resume_command};
  GP_ASSIGN_OR_RETURN(Outcome outcome, FollowCourse(client, course));
  if (const std::optional<ProcessorTime> after = ReadProcessorTime(); before.has_value() && after.has_value()) {
    outcome.report.stolen_share = StolenShare(*before, *after);
  }
  outcome.report.artifacts = context.artifacts;
  if (outcome.completed()) {
    outcome.saved.Update(AddTrace(client, job.name, folder, outcome.report));
  }
  if (outcome.report.detail.has_summary()) {
    outcome.saved.Update(WriteProfile(job, folder, outcome.report));
    outcome.saved.Update(WriteReport(folder, outcome.report));
  }
  return outcome;
}

// Runs the variants one after the other on the same processes, until all have completed or one has not.
absl::StatusOr<std::vector<Outcome>> RunAll(const Rehearsal& rehearsal, const std::filesystem::path& folder,
                                            const RunContext& context) {
  std::vector<Outcome> outcomes;
  if (rehearsal.variants.empty()) {
    GP_ASSIGN_OR_RETURN(Outcome outcome, RunOne(rehearsal.job, rehearsal.run, folder, context));
    outcomes.push_back(std::move(outcome));
    return outcomes;
  }
  for (const PlaygroundVariant& variant : rehearsal.variants) {
    PrintTo(context.lines, "\n== {} ({} of {})\n", variant.label, outcomes.size() + 1, rehearsal.variants.size());
    JobSpec job = rehearsal.job;
    job.name = fmt::format("{}-{}", job.name, variant.suffix);
    GP_ASSIGN_OR_RETURN(Outcome outcome, RunOne(job, variant.run, folder / variant.suffix, context));
    outcomes.push_back(std::move(outcome));
    if (!outcomes.back().completed()) {
      break;
    }
  }
  return outcomes;
}

absl::StatusOr<std::filesystem::path> FolderOf(const PlaygroundFlags& flags, const JobSpec& job) {
  std::error_code error;
  const std::filesystem::path output = std::filesystem::absolute(flags.output, error);
  if (error) {
    return absl::InvalidArgumentError(
        fmt::format("--output {}: the folder that this command runs in is gone ({}); change into one that exists",
                    flags.output, error.message()));
  }
  return (output / fmt::format("{}.playground", job.name)).lexically_normal();
}

// The folder's logs are removed and its other files written anew, so nothing that the run reads may be there.
absl::Status CheckFolder(const PlaygroundFlags& flags, const JobSpec& job) {
  GP_ASSIGN_OR_RETURN(const std::filesystem::path folder, FolderOf(flags, job));
  std::error_code error;
  if (std::filesystem::exists(flags.output, error) && !std::filesystem::is_directory(flags.output, error)) {
    return absl::InvalidArgumentError(fmt::format("--output {} is no folder; name one, it is made", flags.output));
  }
  std::vector<NamedFile> inputs = FilesOfJob(job);
  inputs.insert(inputs.end(), {{"--job", flags.job_path},
                               {"--topology", flags.topology_path},
                               {"--case", flags.run.case_path},
                               {"--schedule-csv", flags.run.schedule_csv}});
  const std::filesystem::path logs = std::filesystem::weakly_canonical(folder / "logs", error);
  for (const NamedFile& input : inputs) {
    const std::filesystem::path below = std::filesystem::weakly_canonical(input.path, error).lexically_relative(logs);
    if (!input.path.empty() && !below.empty() && *below.begin() != "..") {
      return absl::InvalidArgumentError(
          fmt::format("{} {} is among the playground's logs, which are removed; move it, or give another --output",
                      input.name, input.path.string()));
    }
  }
  return CheckOutputs(inputs, std::array<NamedFile, 3>{{{"the playground's report", folder / "report.json"},
                                                        {"the playground's trace", folder / "trace.json"},
                                                        {"the playground's profile", folder / "profile.yaml"}}});
}

absl::StatusOr<std::vector<Outcome>> Rehearse(const PlaygroundFlags& flags, const Rehearsal& rehearsal,
                                              ShutdownSignal& shutdown) {
  std::FILE* const lines = flags.common.output == OutputFormat::kTable ? stdout : stderr;
  GP_ASSIGN_OR_RETURN(const std::filesystem::path folder, FolderOf(flags, rehearsal.job));
  GP_RETURN_IF_ERROR(MakeFolder(folder));
  const absl::StatusOr<UniqueFd> lock = LockFile(folder / "lock");
  if (absl::IsAlreadyExists(lock.status())) {
    return absl::AlreadyExistsError(
        fmt::format("another playground of job {} writes to {}; give this one another folder with --output, or the job "
                    "another name",
                    rehearsal.job.name, folder.string()));
  }
  GP_RETURN_IF_ERROR(lock.status());
  if (const std::optional<int64_t> available = AvailableMemoryBytes(); available.has_value()) {
    absl::Status held = CheckHostHolds(rehearsal.job, rehearsal.run.backend, rehearsal.layout, *available);
    if (!held.ok()) {
      return WithExitCode(std::move(held), kExitInfeasible);
    }
  }
  GP_ASSIGN_OR_RETURN(TempFolder state, TempFolder::Create("geopipe-playground-"));
  if (flags.keep) {
    state.Keep();
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder / "logs", ignored);
  GP_ASSIGN_OR_RETURN(
      const std::unique_ptr<PlaygroundCluster> cluster,
      PlaygroundCluster::Start(rehearsal.layout, state.path(), folder / "logs",
                               {.backend = rehearsal.run.backend, .gpu_library = flags.gpu_library}, shutdown.fd()));
  PrintTo(lines, "{} ({}), {}, links shaped on this machine; coordinator at {}\n",
          Counted(std::ssize(rehearsal.layout.sites), "site"), fmt::join(rehearsal.layout.sites, ", "),
          Counted(rehearsal.layout.devices(), "device"), cluster->endpoint());
  RunContext context{
      *cluster, shutdown, lines, flags.limits, ResumeCommand(flags), {{"logs", (folder / "logs").string()}}};
  if (flags.keep) {
    context.artifacts["state"] = state.path().string();
  }
  absl::StatusOr<std::vector<Outcome>> outcomes = RunAll(rehearsal, folder, context);
  cluster->Stop(kStopGraceNs);
  for (const PlaygroundNode& node : rehearsal.layout.nodes) {
    const std::string name = fmt::format("{}-{}", node.site, node.node);
    std::filesystem::copy(state.path() / name / "logs", folder / "logs" / name,
                          std::filesystem::copy_options::recursive, ignored);
  }
  return outcomes;
}

// The comparison, when every variant has completed.
absl::StatusOr<int> PrintComparison(const Rehearsal& rehearsal, const std::vector<Outcome>& outcomes,
                                    OutputFormat format) {
  std::vector<VariantReport> reports;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    reports.push_back({rehearsal.variants[i].label, outcomes[i].report});
  }
  if (format == OutputFormat::kTable) {
    PrintOut("\n{}\nlogs {}\n", ComparisonTable(reports, TextColumns()), outcomes.front().report.artifacts.at("logs"));
  } else {
    GP_ASSIGN_OR_RETURN(const Json json, OrFailed(ComparisonToJson(rehearsal.job.name, reports)));
    PrintDocument(json, format);
  }
  (void)FlushOutput();  // before the error, if there is one; lost output is told at the end
  for (const Outcome& outcome : outcomes) {
    GP_RETURN_IF_ERROR(OrFailed(outcome.saved));
  }
  return kExitOk;
}

absl::StatusOr<int> Print(const Outcome& outcome, OutputFormat format) {
  const v1::JobState state = outcome.report.detail.summary().state();
  if (outcome.report.detail.has_summary()) {
    if (format == OutputFormat::kTable) {
      GP_ASSIGN_OR_RETURN(const std::string summary, OrFailed(ClosingSummary(outcome.report)));
      PrintOut("\n{}", WrapLines(summary, TextColumns()));
    } else {
      GP_ASSIGN_OR_RETURN(const Json json, OrFailed(RunReportToJson(outcome.report)));
      PrintDocument(json, format);
    }
  }
  (void)FlushOutput();
  GP_RETURN_IF_ERROR(OrFailed(outcome.saved));
  GP_RETURN_IF_ERROR(outcome.given_up);
  if (outcome.signal != 0) {
    return outcome.signal == SIGTERM ? kExitTerminated : kExitInterrupted;
  }
  if (state != v1::JOB_STATE_COMPLETED) {
    return NotCompleted(outcome.report.detail.summary());
  }
  return kExitOk;
}

}  // namespace

absl::StatusOr<int> RunPlayground(std::span<const std::string> arguments) {
  PlaygroundFlags options;
  FlagSet flags(
      "geopipectl playground",
      "Starts a coordinator, agents and workers on this machine with shaped links between the sites, trains a "
      "job, and leaves nothing running.");
  flags.AddPath("file,f", &options.job_path, "JOB.yaml", "Job file ('geopipectl explain job').");
  flags.AddPath("job", &options.job_path, "JOB.yaml", "The same as --file.");
  flags.Add("sites", &options.sites, "N", "Sites of one device each, or of more when the job asks for more stages.");
  flags.Add("link", &options.link, "latency=T,bandwidth=B", "The link between every two sites; latency is one way.");
  flags.AddPath("topology", &options.topology_path, "FILE", "Sites and links of a topology file instead.");
  options.run.Register(flags);
  flags.Add("compare", &options.compare, "VARIANT,…",
            "Run several schedules one after the other and compare them: 1f1b:blocking,1f1b,geopipe.");
  flags.Add("slowdown", &options.slowdown, "WHAT:FACTOR",
            "Make stage=N or link=A-B slower than the plan knows, to see it noticed.");
  flags.AddPath("output", &options.output, "DIR", "Where the report and the logs go.");
  flags.Add("keep", &options.keep, "Keep the state folder.");
  flags.AddPath("gpu-library", &options.gpu_library, "FILE",
                "Tests: the library that GPUs are reached through, in the place of the installed one.");
  flags.AddDuration("grace", &options.limits.grace_ns,
                    "With a checkpoint.path: how long Ctrl-C or SIGTERM leaves the job to write a last checkpoint. A "
                    "second signal ends it at once.");
  flags.AddDuration("patience", &options.limits.patience_ns,
                    "How long to wait for a last state that cannot be written when all iterations are done.");
  options.common.AddFormat(flags, {"table", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  if (options.job_path.empty()) {
    return absl::InvalidArgumentError("no job file: name one with --job JOB.yaml");
  }
  for (const std::string_view given : {"sites", "link", "topology"}) {
    for (const std::string_view other : {"topology", "case"}) {
      if (given != other && flags.given(given) && flags.given(other)) {
        return absl::InvalidArgumentError(fmt::format(
            "--{} cannot be combined with --{}, which gives sites and links; leave one of them out", given, other));
      }
    }
  }
  if (!options.gpu_library.empty() && options.run.backend != BackendKindName(BackendKind::kCuda)) {
    return absl::InvalidArgumentError("--gpu-library has no effect without --backend cuda; add that, or leave it out");
  }
  GP_RETURN_IF_ERROR(CheckOneStandardInput({options.job_path, options.topology_path, options.run.case_path}));
  GP_RETURN_IF_ERROR(OrFailed(CheckSystemTime(Clock::Real().UnixNowNs())));
  options.arguments.assign(arguments.begin(), arguments.end());
  GP_ASSIGN_OR_RETURN(const Rehearsal rehearsal, Prepare(options));
  GP_RETURN_IF_ERROR(CheckFolder(options, rehearsal.job));
  GP_ASSIGN_OR_RETURN(const auto shutdown, OrFailed(ShutdownSignal::Install()));
  const absl::StatusOr<std::vector<Outcome>> outcomes = Rehearse(options, rehearsal, *shutdown);
  if (absl::IsResourceExhausted(outcomes.status())) {
    return outcomes.status();  // with a code of its own
  }
  if (!outcomes.ok()) {
    return WithExitCode(outcomes.status(), absl::IsCancelled(outcomes.status())         ? kExitInterrupted
                                           : absl::IsInvalidArgument(outcomes.status()) ? kExitBadInput
                                                                                        : kExitFailed);
  }
  const bool compared = !rehearsal.variants.empty() && outcomes->size() == rehearsal.variants.size();
  return compared && outcomes->back().completed() ? PrintComparison(rehearsal, *outcomes, options.common.output)
                                                  : Print(outcomes->back(), options.common.output);
}

}  // namespace geopipe
