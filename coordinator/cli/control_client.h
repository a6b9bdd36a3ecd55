// A client of ControlService. Every call carries a deadline; Unavailable and DeadlineExceeded say which server was
// asked and what to do.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <condition_variable>
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
  // `all`: earlier runs that are kept, too.
  absl::StatusOr<v1::ListJobsResponse> ListJobs(bool all = false);
  // `run` of the name, here and below; 0: the latest.
  absl::StatusOr<v1::JobDetail> GetJob(const std::string& name, int64_t run = 0);
  absl::StatusOr<v1::GetTraceResponse> GetTrace(const std::string& name, int64_t run = 0);
  // `checkpoint`: the job ends with a checkpoint (CancelJobRequest).
  absl::StatusOr<v1::CancelJobResponse> CancelJob(const std::string& name, const std::string& reason,
                                                  bool checkpoint = false);
  absl::StatusOr<v1::PauseJobResponse> PauseJob(const std::string& name);
  absl::StatusOr<v1::ResumeJobResponse> ResumeJob(const std::string& name,
                                                  v1::ResumeFrom from = v1::RESUME_FROM_UNSPECIFIED);
  absl::StatusOr<v1::CheckpointJobResponse> CheckpointJob(const std::string& name);
  absl::StatusOr<v1::BackupStoreResponse> BackupStore();
  absl::StatusOr<v1::StopStrayResponse> StopStray(const std::string& site, const std::string& node);
  absl::StatusOr<v1::DrainSiteResponse> DrainSite(const std::string& site);
  absl::StatusOr<v1::UncordonSiteResponse> UncordonSite(const std::string& site);
  absl::StatusOr<v1::ListSitesResponse> ListSites();
  absl::StatusOr<v1::ListLinksResponse> ListLinks();

  // A server that is lost is dialled again, later and later, and the watch goes on with what it has not told yet.
  struct Redial {
    int64_t give_up_after_ns = 0;                        // without an answer; 0: never
    std::function<void(const absl::Status&)> on_lost{};  // once each time
    std::function<void()> on_back{};
  };
  // Calls `on_event` for every state change, every iteration and evaluation from `from_iteration` on and every notice,
  // until the job is in a final state (OK), `on_event` returns false (Cancelled), StopWatching is called (Cancelled) or
  // the server is lost, where it is not dialled again.
  absl::Status WatchJob(const std::string& name, int64_t from_iteration,
                        const std::function<bool(const v1::WatchJobResponse&)>& on_event,
                        const Redial* redial = nullptr, int64_t run = 0);
  // Any thread: ends a WatchJob under way.
  void StopWatching();

 private:
  struct Stub;  // keeps gRPC out of what includes this

  // Keeps what a watch is about, and has told, over all its streams.
  struct Told {
    int64_t run = 0;             // of the name
    int64_t from_iteration = 0;  // not yet
    int64_t transitions = 0;
    int64_t evaluation = -1;  // the last
    std::string notice = {};  // the latest warning
  };
  absl::Status WatchOnce(const std::string& name, Told& told,
                         const std::function<bool(const v1::WatchJobResponse&)>& on_event);
  // Waits before the next attempt. False: the watch was stopped meanwhile.
  bool WaitToDial(int64_t delay_ns);

  std::unique_ptr<Stub> stub_;
  std::mutex watch_mutex_;
  std::condition_variable watch_changed_;
  grpc::ClientContext* watch_context_ = nullptr;  // guarded by watch_mutex_
  bool watch_stopped_ = false;                    // guarded by watch_mutex_
};

}  // namespace geopipe
