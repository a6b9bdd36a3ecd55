// A client of ControlService. Every call carries a deadline; Unavailable and DeadlineExceeded say which server was
// asked and what to do.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "geopipe/v1/control_service.pb.h"

namespace grpc {
class ClientContext;
}

namespace geopipe {

// Thread-safe.
class ControlClient {
 public:
  // Does not connect yet: the first call does.
  ControlClient(const std::string& server, int64_t timeout_ns);
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  absl::StatusOr<v1::GetVersionResponse> GetVersion();
  absl::StatusOr<v1::JobSummary> ApplyJob(const v1::ApplyJobRequest& request);
  absl::StatusOr<v1::ListJobsResponse> ListJobs();
  absl::StatusOr<v1::JobDetail> GetJob(const std::string& name);
  absl::StatusOr<v1::GetTraceResponse> GetTrace(const std::string& name);
  absl::StatusOr<v1::JobSummary> CancelJob(const std::string& name, const std::string& reason);
  absl::StatusOr<v1::JobSummary> PauseJob(const std::string& name);
  absl::StatusOr<v1::JobSummary> ResumeJob(const std::string& name);
  absl::StatusOr<v1::CheckpointJobResponse> CheckpointJob(const std::string& name);
  absl::StatusOr<v1::DrainSiteResponse> DrainSite(const std::string& site);
  absl::Status UncordonSite(const std::string& site);
  absl::StatusOr<v1::ListSitesResponse> ListSites();
  absl::StatusOr<v1::ListLinksResponse> ListLinks();

  // Calls `on_event` for every state change and every iteration from `from_iteration` on, until the job is in a final
  // state (OK), `on_event` returns false (Cancelled), StopWatching is called (Cancelled) or the server is lost.
  absl::Status WatchJob(const std::string& name, int64_t from_iteration,
                        const std::function<bool(const v1::WatchJobResponse&)>& on_event);
  // Any thread: ends a WatchJob under way.
  void StopWatching();

 private:
  struct Stub;  // keeps gRPC out of what includes this

  absl::Status WatchOnce(const std::string& name, int64_t& from_iteration, int64_t& transitions_seen,
                         const std::function<bool(const v1::WatchJobResponse&)>& on_event);

  std::unique_ptr<Stub> stub_;
  std::mutex watch_mutex_;
  grpc::ClientContext* watch_context_ = nullptr;  // guarded by watch_mutex_
  bool watch_stopped_ = false;                    // guarded by watch_mutex_
};

}  // namespace geopipe
