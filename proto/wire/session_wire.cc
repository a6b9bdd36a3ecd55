#include "proto/wire/session_wire.h"

#include <algorithm>
#include <set>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "proto/wire/checkpoint_wire.h"
#include "proto/wire/cluster_wire.h"
#include "proto/wire/fields.h"
#include "proto/wire/schedule_wire.h"
#include "proto/wire/telemetry_wire.h"

namespace geopipe {
namespace {

using wire::CheckCount;
using wire::CheckName;
using wire::CheckRange;
using wire::CheckSiteName;
using wire::CheckText;
using wire::kMaxInt32;
using wire::kMaxInt64;
using wire::Under;

constexpr int64_t kMaxWorkersPerNode = 65'536;
constexpr int64_t kMaxThreads = 4096;
constexpr int64_t kMaxMultiprocessors = 65'536;
constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;  // to be measured
constexpr int64_t kMaxReportsPerMessage = 4096;
constexpr int64_t kMaxCheckpoints = 4096;  // that a worker finds
constexpr int64_t kMaxCheckpointFiles = 100'000;
constexpr int64_t kMaxDataChunks = 4096;
constexpr int64_t kMaxStates = 16;  // that a worker can resume from
constexpr int64_t kMaxFileSources = 1024;
constexpr size_t kMaxFileNameBytes = 255;
constexpr int64_t kMinSecretBytes = 16;
constexpr int64_t kMaxProbeNs = 600'000'000'000;

absl::Status Unset(std::string_view field) {
  return absl::InvalidArgumentError(fmt::format("{} is not set, or is of a kind this version does not know", field));
}

absl::Status CheckRank(int32_t rank) { return CheckRange("rank", rank, 0, wire::kMaxRanks - 1); }

template <class Message>
absl::Status ValidateAll(std::string_view field, const google::protobuf::RepeatedPtrField<Message>& messages,
                         int64_t greatest_count) {
  GP_RETURN_IF_ERROR(CheckCount(field, messages.size(), greatest_count));
  for (int i = 0; i < messages.size(); ++i) {
    const absl::Status status = ValidateMessage(messages[i]);
    if (!status.ok()) {
      return Under(fmt::format("{}[{}]", field, i), status);
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateVersions(const v1::DeviceVersions& message) {
  for (const auto& [field, text] :
       {std::pair("name", &message.name()), std::pair("architecture", &message.architecture()),
        std::pair("driver", &message.driver()), std::pair("runtime", &message.runtime()),
        std::pair("cublas_lt", &message.cublas_lt()), std::pair("kernels", &message.kernels())}) {
    GP_RETURN_IF_ERROR(CheckName(field, *text));
  }
  return CheckRange("multiprocessors", message.multiprocessors(), 1, kMaxMultiprocessors);
}

absl::Status ValidatePrepared(const v1::PreparedReport& message) {
  GP_RETURN_IF_ERROR(CheckRank(message.rank()));
  GP_RETURN_IF_ERROR(CheckText("address", message.address(), wire::kMaxAddressBytes));
  GP_RETURN_IF_ERROR(CheckRange("threads", message.threads(), 0, kMaxThreads));
  GP_RETURN_IF_ERROR(CheckText("instructions", message.instructions(), wire::kMaxNameBytes));
  GP_RETURN_IF_ERROR(CheckText("checkpoint_trouble", message.checkpoint_trouble(), wire::kMaxTextBytes));
  if (message.has_device()) {
    GP_RETURN_IF_ERROR(Under("device", ValidateVersions(message.device())));
  }
  GP_RETURN_IF_ERROR(CheckRange("validation_bytes", message.validation_bytes(), 0, kMaxInt64));
  return CheckRange("data_bytes", message.data_bytes(), 0, kMaxInt64);
}

absl::Status ValidateDataCheck(const v1::DataCheckReport& message) {
  GP_RETURN_IF_ERROR(CheckRange("data_bytes", message.data_bytes(), 1, kMaxInt64));
  GP_RETURN_IF_ERROR(CheckRange("chunk_bytes", message.chunk_bytes(), 1, kMaxInt64));
  const int64_t chunks = (message.data_bytes() - 1) / message.chunk_bytes() + 1;
  return CheckCount("checksums", message.checksums_size(), std::min(chunks, kMaxDataChunks));
}

absl::Status ValidateStates(const google::protobuf::RepeatedPtrField<v1::HeldState>& states) {
  GP_RETURN_IF_ERROR(CheckCount("states", states.size(), kMaxStates));
  for (const v1::HeldState& state : states) {
    GP_RETURN_IF_ERROR(Under("states", CheckRange("iteration", state.iteration(), 0, kMaxInt64)));
  }
  return absl::OkStatus();
}

absl::Status ValidateStatus(const v1::WorkerStatus& message) {
  GP_RETURN_IF_ERROR(CheckRange("phase", message.phase(), 0, v1::WORKER_PHASE_FINISHED));
  GP_RETURN_IF_ERROR(CheckRange("next_iteration", message.next_iteration(), 0, kMaxInt64));
  GP_RETURN_IF_ERROR(CheckRange("action_ns", message.action_ns(), 0, kMaxInt64));
  GP_RETURN_IF_ERROR(ValidateStates(message.states()));
  GP_RETURN_IF_ERROR(CheckText("exchange_address", message.exchange_address(), wire::kMaxNameBytes));
  return CheckText("action", message.action(), wire::kMaxNameBytes);
}

absl::Status ValidateHello(const v1::WorkerHello& message) {
  GP_RETURN_IF_ERROR(CheckName("version", message.version()));
  return Under("status", ValidateStatus(message.status()));
}

absl::Status ValidateHeartbeat(const v1::WorkerHeartbeat& message) {
  GP_RETURN_IF_ERROR(CheckRange("iteration", message.iteration(), -1, kMaxInt64));
  return Under("status", ValidateStatus(message.status()));
}

absl::Status ValidateEnded(const v1::EndedReport& message) {
  GP_RETURN_IF_ERROR(CheckRank(message.rank()));
  GP_RETURN_IF_ERROR(ValidateStates(message.states()));
  return CheckRange("next_iteration", message.next_iteration(), 0, kMaxInt64);
}

absl::Status ValidateFailure(const v1::FailureReport& message) {
  GP_RETURN_IF_ERROR(ValidateStates(message.states()));
  GP_RETURN_IF_ERROR(CheckRange("next_iteration", message.next_iteration(), 0, kMaxInt64));
  if (message.has_unreadable()) {
    GP_RETURN_IF_ERROR(Under("unreadable", FromProto(message.unreadable()).status()));
  }
  return CheckText("message", message.message(), wire::kMaxTextBytes);
}

absl::Status ValidateFinished(const v1::FinishedReport& message) {
  GP_RETURN_IF_ERROR(CheckRank(message.rank()));
  GP_RETURN_IF_ERROR(CheckRange("iterations", message.iterations(), 0, kMaxInt64));
  if (message.has_peaks()) {
    GP_RETURN_IF_ERROR(Under("peaks", FromProto(message.peaks()).status()));
  }
  return ValidateStates(message.states());
}

absl::Status ValidateProfile(const v1::ProfileReport& message) {
  GP_RETURN_IF_ERROR(CheckRange("round", message.round(), 0, kMaxInt32));
  if (message.has_entry()) {
    GP_RETURN_IF_ERROR(Under("entry", FromProto(message.entry()).status()));
  }
  GP_RETURN_IF_ERROR(CheckCount("checkpoints", message.checkpoints_size(), kMaxCheckpoints));
  for (const v1::CheckpointIdentity& found : message.checkpoints()) {
    GP_RETURN_IF_ERROR(Under("checkpoints", FromProto(found).status()));
  }
  return message.has_message() ? Under("message", FromProto(message.message()).status()) : absl::OkStatus();
}

absl::Status ValidateCheckpoint(const v1::CheckpointReport& message) {
  GP_RETURN_IF_ERROR(CheckRank(message.rank()));
  GP_RETURN_IF_ERROR(CheckRange("iteration", message.iteration(), 0, kMaxInt64));
  GP_RETURN_IF_ERROR(CheckText("error", message.error(), wire::kMaxTextBytes));
  GP_RETURN_IF_ERROR(wire::CheckDuration("duration_ns", message.duration_ns()));
  return ValidateAll("files", message.files(), kMaxCheckpointFiles);
}

absl::Status ValidateManifest(const v1::ManifestReport& message) {
  GP_RETURN_IF_ERROR(CheckRange("iteration", message.iteration(), 0, kMaxInt64));
  return CheckText("error", message.error(), wire::kMaxTextBytes);
}

absl::Status ValidateReplica(const v1::ReplicaReport& message) {
  GP_RETURN_IF_ERROR(CheckRange("iteration", message.iteration(), 0, kMaxInt64));
  GP_RETURN_IF_ERROR(CheckText("error", message.error(), wire::kMaxTextBytes));
  GP_RETURN_IF_ERROR(CheckRange("bytes", message.bytes(), 0, wire::kMaxBytes));
  return wire::CheckDuration("duration_ns", message.duration_ns());
}

constexpr int64_t kMaxKeptIterations = 100'000;

absl::Status ValidateWriteManifest(const v1::WriteManifestCommand& message) {
  GP_RETURN_IF_ERROR(CheckRange("iteration", message.iteration(), 0, kMaxInt64));
  GP_RETURN_IF_ERROR(CheckRange("kept_iterations", message.kept_iterations_size(), 0, kMaxKeptIterations));
  for (const int64_t kept : message.kept_iterations()) {
    GP_RETURN_IF_ERROR(CheckRange("kept_iterations", kept, 0, kMaxInt64));
  }
  return ValidateAll("files", message.files(), kMaxCheckpointFiles);
}

absl::Status ValidateSource(const v1::FileSource& message) {
  GP_RETURN_IF_ERROR(CheckSiteName("site", message.site()));
  GP_RETURN_IF_ERROR(CheckName("address", message.address()));
  GP_RETURN_IF_ERROR(CheckCount("files", message.files_size(), kMaxCheckpointFiles));
  for (const std::string& file : message.files()) {
    GP_RETURN_IF_ERROR(CheckName("files", file));
    GP_RETURN_IF_ERROR(CheckText("files", file, kMaxFileNameBytes));
  }
  return absl::OkStatus();
}

absl::Status ValidateSources(std::string_view field,
                             const google::protobuf::RepeatedPtrField<v1::FileSource>& sources) {
  GP_RETURN_IF_ERROR(CheckCount(field, sources.size(), kMaxFileSources));
  for (int i = 0; i < sources.size(); ++i) {
    GP_RETURN_IF_ERROR(Under(fmt::format("{}[{}]", field, i), ValidateSource(sources[i])));
  }
  return absl::OkStatus();
}

absl::Status ValidateReplicate(const v1::ReplicateCommand& message) {
  GP_RETURN_IF_ERROR(CheckRange("iteration", message.iteration(), 0, kMaxInt64));
  GP_RETURN_IF_ERROR(wire::CheckFinite("bytes_per_second", message.bytes_per_second(), 0));
  return ValidateSources("sources", message.sources());
}

absl::Status ValidatePrepare(const v1::PrepareCommand& message) {
  GP_RETURN_IF_ERROR(CheckRank(message.rank()));
  GP_RETURN_IF_ERROR(CheckRange("memory_limit_bytes", message.memory_limit_bytes(), 0, wire::kMaxBytes));
  GP_RETURN_IF_ERROR(CheckRange("staging_limit_bytes", message.staging_limit_bytes(), 0, wire::kMaxBytes));
  GP_RETURN_IF_ERROR(CheckRange("threads", message.threads(), 1, kMaxThreads));
  GP_RETURN_IF_ERROR(CheckRange("first_iteration", message.first_iteration(), 0, kMaxInt64));
  if (message.has_from_checkpoint()) {
    GP_RETURN_IF_ERROR(Under("from_checkpoint", FromProto(message.from_checkpoint()).status()));
  }
  GP_RETURN_IF_ERROR(CheckText("checkpoint_mark.id", message.checkpoint_mark().id(), wire::kMaxNameBytes));
  GP_RETURN_IF_ERROR(ValidateSources("file_sources", message.file_sources()));
  GP_RETURN_IF_ERROR(CheckText("exchange_secret", message.exchange_secret(), wire::kMaxNameBytes));
  if (!message.exchange_secret().empty() && std::ssize(message.exchange_secret()) < kMinSecretBytes) {
    return absl::InvalidArgumentError(fmt::format("exchange_secret has {} bytes; it must be empty or have at least {}",
                                                  message.exchange_secret().size(), kMinSecretBytes));
  }
  GP_RETURN_IF_ERROR(CheckCount("shapes", message.shapes_size(), wire::kMaxSites));
  for (int i = 0; i < message.shapes_size(); ++i) {
    const v1::LinkShape& shape = message.shapes(i);
    const std::string field = fmt::format("shapes[{}]", i);
    GP_RETURN_IF_ERROR(Under(field, CheckSiteName("from_site", shape.from_site())));
    GP_RETURN_IF_ERROR(Under(field, CheckSiteName("to_site", shape.to_site())));
    GP_RETURN_IF_ERROR(Under(field, CheckRange("latency_ns", shape.latency_ns(), 0, wire::kMaxLatencyNs)));
    GP_RETURN_IF_ERROR(Under(field, wire::CheckFinite("bandwidth_bytes_per_s", shape.bandwidth_bytes_per_s(), 1)));
    GP_RETURN_IF_ERROR(Under(field, CheckText("pacer_path", shape.pacer_path(), wire::kMaxPathBytes)));
  }
  return absl::OkStatus();
}

absl::Status ValidateCommit(const v1::CommitCommand& message) {
  GP_RETURN_IF_ERROR(CheckRange("start_iteration", message.start_iteration(), 0, kMaxInt64));
  GP_RETURN_IF_ERROR(CheckRange("end_iteration", message.end_iteration(), message.start_iteration(), kMaxInt64));
  GP_RETURN_IF_ERROR(CheckText("secret", message.secret(), wire::kMaxNameBytes));
  GP_RETURN_IF_ERROR(CheckRange("actions_every", message.actions_every(), 0, kMaxInt64));
  GP_RETURN_IF_ERROR(CheckRange("evaluate_from", message.evaluate_from(), 0, kMaxInt64));
  GP_RETURN_IF_ERROR(wire::CheckDuration("orphan_grace_ns", message.orphan_grace_ns()));
  GP_RETURN_IF_ERROR(wire::CheckDuration("rest_grace_ns", message.rest_grace_ns()));
  GP_RETURN_IF_ERROR(CheckCount("peers", message.peers_size(), wire::kMaxRanks));
  std::set<int32_t> ranks;
  for (int i = 0; i < message.peers_size(); ++i) {
    const std::string field = fmt::format("peers[{}]", i);
    GP_RETURN_IF_ERROR(Under(field, CheckRank(message.peers(i).rank())));
    GP_RETURN_IF_ERROR(Under(field, CheckText("address", message.peers(i).address(), wire::kMaxAddressBytes)));
    if (!ranks.insert(message.peers(i).rank()).second) {
      return wire::FieldError(field + ".rank", message.peers(i).rank(), "named once among the peers");
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateProfileCommand(const v1::ProfileCommand& message) {
  constexpr int64_t kMaxSize = int64_t{1} << 24;
  GP_RETURN_IF_ERROR(CheckRange("round", message.round(), 0, kMaxInt32));
  GP_RETURN_IF_ERROR(CheckRange("memory_limit_bytes", message.memory_limit_bytes(), 0, wire::kMaxBytes));
  GP_RETURN_IF_ERROR(CheckRange("message_bytes", message.message_bytes(), 0, kMaxMessageBytes));
  GP_RETURN_IF_ERROR(CheckText("checkpoint_path", message.checkpoint_path(), wire::kMaxPathBytes));
  GP_RETURN_IF_ERROR(CheckText("checkpoint_mark.id", message.checkpoint_mark().id(), wire::kMaxNameBytes));
  if (message.skip_compute()) {
    return absl::OkStatus();
  }
  GP_RETURN_IF_ERROR(FromProto(message.backend()).status());
  GP_RETURN_IF_ERROR(CheckRange("micro_batch_size", message.micro_batch_size(), 1, kMaxSize));
  return CheckRange("sequence_length", message.sequence_length(), 1, kMaxSize);
}

absl::Status ValidateExit(const v1::WorkerExit& message) {
  GP_RETURN_IF_ERROR(Under("worker", ValidateMessage(message.worker())));
  GP_RETURN_IF_ERROR(CheckRange("signal", message.signal(), 0, 64));
  return CheckText("last_words", message.last_words(), wire::kMaxTextBytes);
}

absl::Status ValidateSilent(const v1::WorkerSilent& message) {
  GP_RETURN_IF_ERROR(Under("worker", ValidateMessage(message.worker())));
  return CheckRange("silent_ns", message.silent_ns(), 0, kMaxInt64);
}

absl::Status ValidateMeasured(const v1::ProbeMeasured& message) {
  GP_RETURN_IF_ERROR(Under("outbound", ValidateMessage(message.outbound())));
  return Under("inbound", ValidateMessage(message.inbound()));
}

absl::Status ValidateProbeReport(const v1::ProbeReport& message) {
  switch (message.outcome_case()) {
    case v1::ProbeReport::kOpened:
      GP_RETURN_IF_ERROR(Under("opened", CheckName("address", message.opened().address())));
      return Under("opened", CheckText("secret", message.opened().secret(), wire::kMaxNameBytes));
    case v1::ProbeReport::kMeasured:
      return Under("measured", ValidateMeasured(message.measured()));
    case v1::ProbeReport::kFailed:
      return Under("failed", CheckText("message", message.failed().message(), wire::kMaxTextBytes));
    case v1::ProbeReport::OUTCOME_NOT_SET:
      break;
  }
  return Unset("outcome");
}

absl::Status ValidateProbeLink(const v1::ProbeLink& message) {
  GP_RETURN_IF_ERROR(CheckSiteName("to_site", message.to_site()));
  GP_RETURN_IF_ERROR(CheckText("address", message.address(), wire::kMaxNameBytes));
  GP_RETURN_IF_ERROR(CheckText("secret", message.secret(), wire::kMaxNameBytes));
  GP_RETURN_IF_ERROR(CheckRange("latency_ns", message.latency_ns(), 0, wire::kMaxLatencyNs));
  // A site's own network may be probed before any figure is known; only a link whose bandwidth is known can be shaped.
  GP_RETURN_IF_ERROR(
      wire::CheckFinite("bandwidth_bytes_per_s", message.bandwidth_bytes_per_s(), message.shaped() ? 1 : 0));
  GP_RETURN_IF_ERROR(CheckRange("limit_ns", message.limit_ns(), 1, kMaxProbeNs));
  return CheckRange("budget_ns", message.budget_ns(), 1, kMaxProbeNs);
}

absl::Status ValidateStart(const v1::StartWorkers& message) {
  GP_RETURN_IF_ERROR(wire::CheckJobName("job", message.job()));
  return wire::CheckEach("devices", message.devices(), wire::kMaxDevicesPerNode, 0, wire::kMaxDevicesPerNode - 1);
}

absl::Status ValidateStop(const v1::StopWorkers& message) {
  GP_RETURN_IF_ERROR(wire::CheckJobName("job", message.job()));
  GP_RETURN_IF_ERROR(wire::CheckDuration("grace_ns", message.grace_ns()));
  GP_RETURN_IF_ERROR(
      wire::CheckEach("devices", message.devices(), wire::kMaxDevicesPerNode, 0, wire::kMaxDevicesPerNode - 1));
  return CheckText("reason", message.reason(), wire::kMaxTextBytes);
}

absl::Status ValidateReports(const v1::NodeReports& message) {
  if (message.first_sequence() == 0) {
    return absl::InvalidArgumentError("first_sequence is 0; reports are counted from 1");
  }
  GP_RETURN_IF_ERROR(CheckCount("reports", message.reports_size(), kMaxReportsPerMessage));
  for (int i = 0; i < message.reports_size(); ++i) {
    const v1::NodeReport& report = message.reports(i);
    const std::string field = fmt::format("reports[{}]", i);
    switch (report.report_case()) {
      case v1::NodeReport::kWorker:
        GP_RETURN_IF_ERROR(Under(field, Under("worker.worker", ValidateMessage(report.worker().worker()))));
        GP_RETURN_IF_ERROR(Under(field, Under("worker.report", ValidateMessage(report.worker().report()))));
        break;
      case v1::NodeReport::kExit:
        GP_RETURN_IF_ERROR(Under(field, Under("exit", ValidateExit(report.exit()))));
        break;
      case v1::NodeReport::kProbe:
        GP_RETURN_IF_ERROR(Under(field, Under("probe", ValidateProbeReport(report.probe()))));
        break;
      case v1::NodeReport::kSilent:
        GP_RETURN_IF_ERROR(Under(field, Under("silent", ValidateSilent(report.silent()))));
        break;
      case v1::NodeReport::REPORT_NOT_SET:
        return Under(field, Unset("report"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateMessage(const v1::WorkerId& message) {
  GP_RETURN_IF_ERROR(CheckSiteName("site", message.site()));
  GP_RETURN_IF_ERROR(CheckSiteName("node", message.node()));
  GP_RETURN_IF_ERROR(CheckRange("device", message.device(), 0, wire::kMaxDevicesPerNode - 1));
  return wire::CheckJobName("job", message.job());
}

absl::Status ValidateMessage(const v1::WorkerReport& message) {
  switch (message.report_case()) {
    case v1::WorkerReport::kHello:
      return Under("hello", ValidateHello(message.hello()));
    case v1::WorkerReport::kProfile:
      return Under("profile", ValidateProfile(message.profile()));
    case v1::WorkerReport::kPrepared:
      return Under("prepared", ValidatePrepared(message.prepared()));
    case v1::WorkerReport::kCommitted:
      return Under("committed", CheckRank(message.committed().rank()));
    case v1::WorkerReport::kIteration:
      return Under("iteration", ValidateMessage(message.iteration()));
    case v1::WorkerReport::kEvaluation:
      return Under("evaluation", ValidateMessage(message.evaluation()));
    case v1::WorkerReport::kFinished:
      return Under("finished", ValidateFinished(message.finished()));
    case v1::WorkerReport::kFailure:
      return Under("failure", ValidateFailure(message.failure()));
    case v1::WorkerReport::kHeartbeat:
      return Under("heartbeat", ValidateHeartbeat(message.heartbeat()));
    case v1::WorkerReport::kEnded:
      return Under("ended", ValidateEnded(message.ended()));
    case v1::WorkerReport::kCheckpoint:
      return Under("checkpoint", ValidateCheckpoint(message.checkpoint()));
    case v1::WorkerReport::kManifest:
      return Under("manifest", ValidateManifest(message.manifest()));
    case v1::WorkerReport::kReplica:
      return Under("replica", ValidateReplica(message.replica()));
    case v1::WorkerReport::kDataCheck:
      return Under("data_check", ValidateDataCheck(message.data_check()));
    case v1::WorkerReport::REPORT_NOT_SET:
      break;
  }
  return Unset("report");
}

absl::Status ValidateMessage(const v1::WorkerCommand& message) {
  switch (message.command_case()) {
    case v1::WorkerCommand::kProfile:
      return Under("profile", ValidateProfileCommand(message.profile()));
    case v1::WorkerCommand::kPrepare:
      return Under("prepare", ValidatePrepare(message.prepare()));
    case v1::WorkerCommand::kCommit:
      return Under("commit", ValidateCommit(message.commit()));
    case v1::WorkerCommand::kStop:
      return Under("stop", CheckText("reason", message.stop().reason(), wire::kMaxTextBytes));
    case v1::WorkerCommand::kEndEpoch:
      return Under("end_epoch", CheckRange("next_iteration", message.end_epoch().next_iteration(), 0, kMaxInt64));
    case v1::WorkerCommand::kCheckpoint:
      return Under("checkpoint", CheckRange("iteration", message.checkpoint().iteration(), 0, kMaxInt64));
    case v1::WorkerCommand::kWriteManifest:
      return Under("write_manifest", ValidateWriteManifest(message.write_manifest()));
    case v1::WorkerCommand::kReplicate:
      return Under("replicate", ValidateReplicate(message.replicate()));
    case v1::WorkerCommand::COMMAND_NOT_SET:
      break;
  }
  return Unset("command");
}

absl::Status ValidateMessage(const v1::AttachRequest& message) {
  GP_RETURN_IF_ERROR(Under("worker", ValidateMessage(message.worker())));
  return Under("report", ValidateMessage(message.report()));
}

absl::Status ValidateMessage(const v1::AttachResponse& message) {
  return message.has_command() ? Under("command", ValidateMessage(message.command())) : absl::OkStatus();
}

absl::Status ValidateMessage(const v1::AgentHello& message) {
  GP_RETURN_IF_ERROR(Under("node", ValidateMessage(message.node())));
  GP_RETURN_IF_ERROR(CheckName("version", message.version()));
  GP_RETURN_IF_ERROR(CheckText("host", message.host(), wire::kMaxNameBytes));
  GP_RETURN_IF_ERROR(CheckRange("pid", message.pid(), 0, kMaxInt64));
  GP_RETURN_IF_ERROR(ValidateAll("links", message.links(), wire::kMaxSites));
  GP_RETURN_IF_ERROR(wire::CheckDuration("orphan_grace_ns", message.orphan_grace_ns()));
  GP_RETURN_IF_ERROR(wire::CheckDuration("leaving.within_ns", message.leaving().within_ns()));
  GP_RETURN_IF_ERROR(ValidateAll("workers", message.workers(), kMaxWorkersPerNode));
  GP_RETURN_IF_ERROR(CheckRange("worker_states", message.worker_states_size(), 0, message.workers_size()));
  for (int i = 0; i < message.worker_states_size(); ++i) {
    const std::string field = fmt::format("worker_states[{}].status", i);
    GP_RETURN_IF_ERROR(Under(field, ValidateStatus(message.worker_states(i).status())));
  }
  return absl::OkStatus();
}

absl::Status ValidateMessage(const v1::ConnectRequest& message) {
  switch (message.message_case()) {
    case v1::ConnectRequest::kHello:
      return Under("hello", ValidateMessage(message.hello()));
    case v1::ConnectRequest::kHeartbeat:
      return wire::CheckDuration("heartbeat.leaving.within_ns", message.heartbeat().leaving().within_ns());
    case v1::ConnectRequest::kReports:
      return Under("reports", ValidateReports(message.reports()));
    case v1::ConnectRequest::MESSAGE_NOT_SET:
      break;
  }
  return Unset("message");
}

absl::Status ValidateMessage(const v1::ConnectResponse& message) {
  switch (message.message_case()) {
    case v1::ConnectResponse::kWelcome:
      GP_RETURN_IF_ERROR(Under("welcome", CheckRange("heartbeat_interval_ns", message.welcome().heartbeat_interval_ns(),
                                                     1'000'000, wire::kMaxDurationNs)));
      return Under("welcome", wire::CheckDuration("silent_after_ns", message.welcome().silent_after_ns()));
    case v1::ConnectResponse::kStartWorkers:
      return Under("start_workers", ValidateStart(message.start_workers()));
    case v1::ConnectResponse::kCommand:
      GP_RETURN_IF_ERROR(Under("command.worker", ValidateMessage(message.command().worker())));
      return Under("command.command", ValidateMessage(message.command().command()));
    case v1::ConnectResponse::kReportsTaken:
      return absl::OkStatus();
    case v1::ConnectResponse::kStopWorkers:
      return Under("stop_workers", ValidateStop(message.stop_workers()));
    case v1::ConnectResponse::kProbeLink:
      return Under("probe_link", ValidateProbeLink(message.probe_link()));
    case v1::ConnectResponse::kEndProbe:
      return absl::OkStatus();
    case v1::ConnectResponse::MESSAGE_NOT_SET:
      break;
  }
  return Unset("message");
}

}  // namespace geopipe
