#include "coordinator/cli/control_client.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "coordinator/cli/verb.h"
#include "geopipe/v1/control_service.grpc.pb.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/backoff.h"
#include "runtime/base/clock.h"
#include "runtime/base/grpc/channel.h"
#include "runtime/base/grpc/grpc_status.h"
#include "runtime/manifest/coordinator_config.h"

namespace geopipe {
namespace {

// One watch stream lives at most this long; a longer watch goes on with the next.
constexpr std::chrono::hours kWatchDeadline{1};

// A network that breaks says nothing: whoever watches asks so often whether the server is still there.
constexpr int64_t kKeepaliveNs = 20'000'000'000;

// Refuses addresses that gRPC would accept (with a scheme, or port 0 as if there were none) and then fail on in words
// of its own.
absl::Status CheckServer(std::string_view server) {
  const size_t colon = server.rfind(':');
  const std::string_view host = server.substr(0, colon);
  const absl::StatusOr<int64_t> port = ParseInteger(colon == std::string_view::npos ? "" : server.substr(colon + 1));
  const bool v6 = host.starts_with('[') && host.ends_with(']');
  if (host.empty() || host.find('/') != std::string_view::npos || (!v6 && host.find(':') != std::string_view::npos) ||
      !port.ok() || *port < 1 || *port > 65'535) {
    const char* from_environment = std::getenv("GEOPIPE_SERVER");
    return absl::InvalidArgumentError(fmt::format(
        "{}: '{}' is not host:port; write it like {}",
        from_environment != nullptr && server == from_environment ? "environment variable GEOPIPE_SERVER" : "--server",
        server, kDefaultCoordinator));
  }
  return absl::OkStatus();
}

// gRPC's reason, in a few words.
std::string_view ReasonOf(const std::string& message) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kReasons{
      {{"Connection refused", "nothing listens on that port"},
       {"DNS resolution failed", "the host's name is not known"},
       {"No route to host", "there is no route to the host"},
       {"Deadline Exceeded", "timed out, see --timeout"}}};
  for (const auto& [part, reason] : kReasons) {
    if (message.find(part) != std::string::npos) {
      return reason;
    }
  }
  return message;
}

// Says which server did not answer; with the exit code of an error from the coordinator.
absl::Status StatusOf(const grpc::Status& status, const std::string& server) {
  absl::Status ours = FromGrpc(status);
  if (absl::IsUnavailable(ours) || absl::IsDeadlineExceeded(ours)) {
    ours = absl::Status(ours.code(), fmt::format("no answer from a coordinator at {} ({}): is it running there? name "
                                                 "another with --server",
                                                 server, ReasonOf(status.error_message())));
  }
  return ours.ok() ? ours : WithExitCode(ours, RemoteExitCode(ours));
}

}  // namespace

struct ControlClient::Stub {
  // A unary call with the client's deadline.
  template <class Request, class Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::ControlService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                                 Response*),
                                const Request& request) {
    GP_RETURN_IF_ERROR(CheckServer(server));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(timeout_ns));
    Response response;
    GP_RETURN_IF_ERROR(StatusOf((*grpc.*method)(&context, request, &response), server));
    return response;
  }

  const std::string server;
  const int64_t timeout_ns;
  const std::unique_ptr<v1::ControlService::Stub> grpc;
};

ControlClient::ControlClient(const std::string& server, int64_t timeout_ns)
    : stub_(new Stub{server, timeout_ns, v1::ControlService::NewStub(MakeChannel(server, kKeepaliveNs))}) {}

ControlClient::~ControlClient() = default;

absl::StatusOr<v1::GetVersionResponse> ControlClient::GetVersion() {
  return stub_->Call(&v1::ControlService::Stub::GetVersion, v1::GetVersionRequest());
}

absl::StatusOr<v1::JobSummary> ControlClient::ApplyJob(const v1::ApplyJobRequest& request) {
  GP_ASSIGN_OR_RETURN(auto response, stub_->Call(&v1::ControlService::Stub::ApplyJob, request));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::ListJobsResponse> ControlClient::ListJobs(bool all) {
  v1::ListJobsRequest request;
  request.set_all(all);
  return stub_->Call(&v1::ControlService::Stub::ListJobs, request);
}

absl::StatusOr<v1::JobDetail> ControlClient::GetJob(const std::string& name, int64_t run) {
  GP_RETURN_IF_ERROR(CheckJobName(name));
  v1::GetJobRequest request;
  request.set_name(name);
  request.set_run(run);
  GP_ASSIGN_OR_RETURN(auto response, stub_->Call(&v1::ControlService::Stub::GetJob, request));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::GetTraceResponse> ControlClient::GetTrace(const std::string& name, int64_t run) {
  GP_RETURN_IF_ERROR(CheckJobName(name));
  v1::GetTraceRequest request;
  request.set_name(name);
  request.set_run(run);
  return stub_->Call(&v1::ControlService::Stub::GetTrace, request);
}

absl::StatusOr<v1::CancelJobResponse> ControlClient::CancelJob(const std::string& name, const std::string& reason,
                                                               bool checkpoint) {
  GP_RETURN_IF_ERROR(CheckJobName(name));
  v1::CancelJobRequest request;
  request.set_name(name);
  request.set_reason(reason);
  request.set_checkpoint(checkpoint);
  return stub_->Call(&v1::ControlService::Stub::CancelJob, request);
}

absl::StatusOr<v1::PauseJobResponse> ControlClient::PauseJob(const std::string& name) {
  GP_RETURN_IF_ERROR(CheckJobName(name));
  v1::PauseJobRequest request;
  request.set_name(name);
  return stub_->Call(&v1::ControlService::Stub::PauseJob, request);
}

absl::StatusOr<v1::ResumeJobResponse> ControlClient::ResumeJob(const std::string& name, v1::ResumeFrom from) {
  GP_RETURN_IF_ERROR(CheckJobName(name));
  v1::ResumeJobRequest request;
  request.set_from(from);
  request.set_name(name);
  return stub_->Call(&v1::ControlService::Stub::ResumeJob, request);
}

absl::StatusOr<v1::CheckpointJobResponse> ControlClient::CheckpointJob(const std::string& name) {
  GP_RETURN_IF_ERROR(CheckJobName(name));
  v1::CheckpointJobRequest request;
  request.set_name(name);
  return stub_->Call(&v1::ControlService::Stub::CheckpointJob, request);
}

absl::StatusOr<v1::BackupStoreResponse> ControlClient::BackupStore() {
  return stub_->Call(&v1::ControlService::Stub::BackupStore, v1::BackupStoreRequest());
}

absl::StatusOr<v1::StopStrayResponse> ControlClient::StopStray(const std::string& site, const std::string& node) {
  v1::StopStrayRequest request;
  request.set_site(site);
  request.set_node(node);
  return stub_->Call(&v1::ControlService::Stub::StopStray, request);
}

absl::StatusOr<v1::DrainSiteResponse> ControlClient::DrainSite(const std::string& site) {
  v1::DrainSiteRequest request;
  request.set_site(site);
  return stub_->Call(&v1::ControlService::Stub::DrainSite, request);
}

absl::StatusOr<v1::UncordonSiteResponse> ControlClient::UncordonSite(const std::string& site) {
  v1::UncordonSiteRequest request;
  request.set_site(site);
  return stub_->Call(&v1::ControlService::Stub::UncordonSite, request);
}

absl::StatusOr<v1::ListSitesResponse> ControlClient::ListSites() {
  return stub_->Call(&v1::ControlService::Stub::ListSites, v1::ListSitesRequest());
}

absl::StatusOr<v1::ListLinksResponse> ControlClient::ListLinks() {
  return stub_->Call(&v1::ControlService::Stub::ListLinks, v1::ListLinksRequest());
}

void ControlClient::StopWatching() {
  const std::lock_guard lock(watch_mutex_);
  watch_stopped_ = true;
  watch_changed_.notify_all();
  if (watch_context_ != nullptr) {
    watch_context_->TryCancel();
  }
}

bool ControlClient::WaitToDial(int64_t delay_ns) {
  std::unique_lock lock(watch_mutex_);
  return !watch_changed_.wait_for(lock, std::chrono::nanoseconds(delay_ns), [this] { return watch_stopped_; });
}

absl::Status ControlClient::WatchOnce(const std::string& name, Told& told,
                                      const std::function<bool(const v1::WatchJobResponse&)>& on_event) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kWatchDeadline);
  {
    const std::lock_guard lock(watch_mutex_);
    if (watch_stopped_) {
      return absl::CancelledError("the watch was stopped");
    }
    watch_context_ = &context;
  }
  v1::WatchJobRequest request;
  request.set_name(name);
  request.set_run(told.run);
  request.set_from_iteration(told.from_iteration);
  const auto reader = stub_->grpc->WatchJob(&context, request);
  v1::WatchJobResponse event;
  bool wanted = true;
  // A stream begins with all transitions so far, and with what goes wrong at the moment: what an earlier stream has
  // told is passed over.
  int64_t transitions_in_stream = 0;
  while (wanted && reader->Read(&event)) {
    if (event.has_iteration()) {
      told.from_iteration = event.iteration().iteration() + 1;
    } else if (event.has_notice()) {
      const bool again = event.notice().is_warning() && event.notice().text() == told.notice;
      told.notice = event.notice().is_warning() ? event.notice().text() : told.notice;
      if (again) {
        continue;
      }
    } else if (event.has_evaluation()) {
      if (event.evaluation().iteration() <= told.evaluation) {
        continue;
      }
      told.evaluation = event.evaluation().iteration();
    } else if (event.has_transition() && ++transitions_in_stream <= told.transitions) {
      event.Clear();  // not news, but an answer
    } else {
      told.transitions = transitions_in_stream;
    }
    wanted = on_event(event);
  }
  if (!wanted) {
    context.TryCancel();
  }
  const grpc::Status status = reader->Finish();
  const std::lock_guard lock(watch_mutex_);
  watch_context_ = nullptr;
  if (!wanted || watch_stopped_) {
    return absl::CancelledError("the watch was stopped");
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError("the stream's time was up");
  }
  return StatusOf(status, stub_->server);
}

absl::Status ControlClient::WatchJob(const std::string& name, int64_t from_iteration,
                                     const std::function<bool(const v1::WatchJobResponse&)>& on_event,
                                     const Redial* redial, int64_t run) {
  constexpr int64_t kFirstDelayNs = 250'000'000;
  constexpr int64_t kMaxDelayNs = 10'000'000'000;
  const Clock& clock = Clock::Real();
  SplitMix64 jitter(static_cast<uint64_t>(clock.UnixNowNs()));
  Told told{.run = run, .from_iteration = from_iteration};
  int32_t failures = 0;
  int64_t lost_ns = 0;
  const auto heard = [&](const v1::WatchJobResponse& event) {
    if (std::exchange(failures, 0) > 0 && redial->on_back) {
      redial->on_back();
    }
    return event.event_case() == v1::WatchJobResponse::EVENT_NOT_SET || on_event(event);
  };
  while (true) {
    absl::Status status = WatchOnce(name, told, heard);
    if (absl::IsDeadlineExceeded(status)) {
      continue;
    }
    if (redial == nullptr || !absl::IsUnavailable(status)) {
      return status;
    }
    if (++failures == 1) {
      lost_ns = clock.NowNs();
      if (redial->on_lost) {
        redial->on_lost(status);
      }
    }
    const int64_t left_ns =
        redial->give_up_after_ns == 0 ? kMaxDelayNs : lost_ns + redial->give_up_after_ns - clock.NowNs();
    if (left_ns <= 0) {
      return status;
    }
    if (!WaitToDial(std::min(left_ns, BackoffNs(kFirstDelayNs, kMaxDelayNs, failures, jitter)))) {
      return absl::CancelledError("the watch was stopped");
    }
  }
}

}  // namespace geopipe
