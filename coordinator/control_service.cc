#include "coordinator/control_service.h"

#include <deque>
#include <optional>
#include <utility>

#include "coordinator/grpc_status.h"
#include "proto/manifest/job_manifest.h"
#include "proto/wire/run_wire.h"

namespace geopipe {
namespace {

// Messages that the core may have under way to one watcher.
constexpr int64_t kWatchWindow = 256;

grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

// Lives until gRPC is done with the stream.
class ControlServiceAdapter::Watch final : public grpc::ServerWriteReactor<v1::WatchJobResponse>,
                                           public std::enable_shared_from_this<Watch> {
 public:
  Watch(ControlServiceAdapter& service, CallId id)
      : service_(service), id_(id), sender_(std::make_shared<EventSender>(service.port_)) {}

  void Begin() { self_ = shared_from_this(); }

  void Start(const v1::WatchJobRequest& request) {
    sender_->Post(WatchStart{id_, request.name(), request.from_iteration(), kWatchWindow}, {});
  }

  void Send(std::vector<v1::WatchJobResponse> messages) {
    std::lock_guard lock(mutex_);
    for (v1::WatchJobResponse& message : messages) {
      queue_.push_back(std::move(message));
    }
    WriteLocked();
  }

  // After what still waits has been written; at once when `now`.
  void End(const absl::Status& status, bool now) {
    std::lock_guard lock(mutex_);
    if (!ending_.has_value()) {
      ending_ = status;
    }
    if (now) {
      queue_.erase(queue_.begin() + (writing_ ? 1 : 0), queue_.end());
    }
    FinishLocked();
  }

  void OnWriteDone(bool ok) override {
    bool more = false;
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
      queue_.pop_front();
      if (!ok) {
        queue_.clear();
        ending_ = ending_.value_or(absl::CancelledError("the watcher has gone"));
      }
      ++written_;
      if (written_ >= kWatchWindow / 2 && !ending_.has_value()) {
        written_ -= kWatchWindow / 2;
        more = true;
      }
      WriteLocked();
      FinishLocked();
    }
    if (more) {
      sender_->Post(WatchMore{id_, kWatchWindow / 2}, {});
    }
  }

  void OnCancel() override { End(absl::CancelledError("the watcher has gone"), /*now=*/true); }

  void OnDone() override {
    service_.ForgetWatch(id_);
    std::shared_ptr<Watch> self = std::move(self_);
    sender_->Post(WatchStop{id_}, {});
  }

 private:
  void WriteLocked() {
    if (!writing_ && !finished_ && !queue_.empty()) {
      writing_ = true;
      StartWrite(&queue_.front());
    }
  }

  void FinishLocked() {
    if (ending_.has_value() && !writing_ && queue_.empty() && !finished_) {
      finished_ = true;
      Finish(ToGrpcStatus(*ending_));
    }
  }

  ControlServiceAdapter& service_;
  const CallId id_;
  const std::shared_ptr<EventSender> sender_;
  std::shared_ptr<Watch> self_;  // until OnDone
  std::mutex mutex_;
  std::deque<v1::WatchJobResponse> queue_;  // at most kWatchWindow; the front one is being written when writing_
  int64_t written_ = 0;                     // since credits were last given
  bool writing_ = false;
  bool finished_ = false;
  std::optional<absl::Status> ending_;
};

ControlServiceAdapter::ControlServiceAdapter(EventPort& port, std::string version, uint64_t incarnation)
    : port_(port), version_(std::move(version)), incarnation_(incarnation) {}

ControlServiceAdapter::~ControlServiceAdapter() = default;

template <class Response, class Make>
grpc::ServerUnaryReactor* ControlServiceAdapter::Ask(grpc::CallbackServerContext* context, Response* response,
                                                     Make make) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status refused;
  {
    std::lock_guard lock(mutex_);
    refused = closed_;
    if (refused.ok()) {
      const CallId id = next_call_++;
      asked_[id] = [reactor, response](absl::StatusOr<ControlReply> reply) {
        const absl::Status status = reply.status();
        if (reply.ok()) {
          *response = std::get<Response>(*std::move(reply));
        }
        reactor->Finish(ToGrpcStatus(status));
      };
      Event event = make(id);
      if (!port_.TryPost(event)) {
        asked_.erase(id);
        refused = absl::ResourceExhaustedError("the coordinator is busy (its inbox is full); try again");
      }
    }
  }
  if (!refused.ok()) {
    reactor->Finish(ToGrpcStatus(refused));
  }
  return reactor;
}

grpc::ServerUnaryReactor* ControlServiceAdapter::GetVersion(grpc::CallbackServerContext* context,
                                                            const v1::GetVersionRequest* /*request*/,
                                                            v1::GetVersionResponse* response) {
  response->set_version(version_);
  response->set_incarnation(incarnation_);
  return FinishNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ControlServiceAdapter::ApplyJob(grpc::CallbackServerContext* context,
                                                          const v1::ApplyJobRequest* request,
                                                          v1::ApplyJobResponse* response) {
  absl::StatusOr<JobSpec> job = ParseManifest(request->manifest());
  if (!job.ok()) {
    return FinishNow(context, job.status());
  }
  absl::StatusOr<RunOptions> run = FromProto(request->run());
  if (!run.ok()) {
    return FinishNow(context, run.status());
  }
  return Ask(context, response, [&](CallId id) { return geopipe::ApplyJob{id, *std::move(job), *std::move(run)}; });
}

grpc::ServerUnaryReactor* ControlServiceAdapter::ListJobs(grpc::CallbackServerContext* context,
                                                          const v1::ListJobsRequest* /*request*/,
                                                          v1::ListJobsResponse* response) {
  return Ask(context, response, [](CallId id) { return geopipe::ListJobs{id}; });
}

grpc::ServerUnaryReactor* ControlServiceAdapter::GetJob(grpc::CallbackServerContext* context,
                                                        const v1::GetJobRequest* request,
                                                        v1::GetJobResponse* response) {
  return Ask(context, response, [&](CallId id) { return geopipe::GetJob{id, request->name()}; });
}

grpc::ServerUnaryReactor* ControlServiceAdapter::GetTrace(grpc::CallbackServerContext* context,
                                                          const v1::GetTraceRequest* request,
                                                          v1::GetTraceResponse* response) {
  return Ask(context, response, [&](CallId id) { return geopipe::GetTrace{id, request->name()}; });
}

grpc::ServerUnaryReactor* ControlServiceAdapter::CancelJob(grpc::CallbackServerContext* context,
                                                           const v1::CancelJobRequest* request,
                                                           v1::CancelJobResponse* response) {
  return Ask(context, response, [&](CallId id) { return geopipe::CancelJob{id, request->name(), request->reason()}; });
}

grpc::ServerUnaryReactor* ControlServiceAdapter::ListSites(grpc::CallbackServerContext* context,
                                                           const v1::ListSitesRequest* /*request*/,
                                                           v1::ListSitesResponse* response) {
  return Ask(context, response, [](CallId id) { return geopipe::ListSites{id}; });
}

grpc::ServerUnaryReactor* ControlServiceAdapter::ListLinks(grpc::CallbackServerContext* context,
                                                           const v1::ListLinksRequest* /*request*/,
                                                           v1::ListLinksResponse* response) {
  return Ask(context, response, [](CallId id) { return geopipe::ListLinks{id}; });
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* ControlServiceAdapter::WatchJob(
    grpc::CallbackServerContext* /*context*/, const v1::WatchJobRequest* request) {
  std::shared_ptr<Watch> watch;
  absl::Status refused;
  {
    std::lock_guard lock(mutex_);
    const CallId id = next_call_++;
    watch = std::make_shared<Watch>(*this, id);
    refused = closed_;
    if (refused.ok()) {
      watches_[id] = watch;
    }
  }
  watch->Begin();
  if (refused.ok()) {
    watch->Start(*request);
  } else {
    watch->End(refused, /*now=*/true);
  }
  return watch.get();
}

void ControlServiceAdapter::Reply(CallId call, absl::StatusOr<ControlReply> reply) {
  Answer answer;
  {
    std::lock_guard lock(mutex_);
    const auto found = asked_.find(call);
    if (found == asked_.end()) {
      return;
    }
    answer = std::move(found->second);
    asked_.erase(found);
  }
  answer(std::move(reply));
}

void ControlServiceAdapter::SendToWatcher(CallId call, std::vector<v1::WatchJobResponse> messages) {
  if (const std::shared_ptr<Watch> watch = FindWatch(call); watch != nullptr) {
    watch->Send(std::move(messages));
  }
}

void ControlServiceAdapter::EndWatch(CallId call, const absl::Status& status) {
  if (const std::shared_ptr<Watch> watch = FindWatch(call); watch != nullptr) {
    watch->End(status, /*now=*/false);
  }
}

void ControlServiceAdapter::CloseAll(const absl::Status& status) {
  std::map<CallId, Answer> asked;
  std::map<CallId, std::shared_ptr<Watch>> watches;
  {
    std::lock_guard lock(mutex_);
    if (closed_.ok()) {
      closed_ = status;  // the first reason stays
    }
    asked.swap(asked_);
    watches = watches_;
  }
  for (const auto& [id, answer] : asked) {
    answer(status);
  }
  for (const auto& [id, watch] : watches) {
    watch->End(status, /*now=*/true);
  }
}

std::shared_ptr<ControlServiceAdapter::Watch> ControlServiceAdapter::FindWatch(CallId call) {
  std::lock_guard lock(mutex_);
  const auto found = watches_.find(call);
  return found == watches_.end() ? nullptr : found->second;
}

void ControlServiceAdapter::ForgetWatch(CallId call) {
  std::lock_guard lock(mutex_);
  watches_.erase(call);
}

}  // namespace geopipe
