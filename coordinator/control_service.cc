#include "coordinator/control_service.h"

#include <atomic>
#include <limits>
#include <optional>
#include <utility>

#include "proto/wire/schedule_wire.h"
#include "runtime/base/ids.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {
namespace {

using Unary = grpc::ServerUnaryReactor;

// Messages that the core may have under way to one watcher.
constexpr int64_t kWatchWindow = 256;
// The core decides how many watches there may be.
const StreamLimits kWatchLimits{
    .peer = "watcher", .max_streams = std::numeric_limits<size_t>::max(), .max_queued_messages = 2 * kWatchWindow};

Unary* FinishNow(grpc::CallbackServerContext* context, const absl::Status& status) {
  Unary* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace

class ControlServiceAdapter::Watch final
    : public ServerStream<grpc::ServerWriteReactor<v1::WatchJobResponse>, v1::WatchJobResponse> {
 public:
  Watch(ControlServiceAdapter& service, CallId id, Context* context)
      : ServerStream(context, kWatchLimits), service_(service), id_(id) {}

  void Start(const v1::WatchJobRequest& request) {
    service_.port_.Post(WatchStart{id_, request.name(), request.from_iteration(), kWatchWindow, request.run()}, {});
  }

 private:
  void OnWritten() override {
    if (++written_ % (kWatchWindow / 2) == 0) {
      service_.port_.Post(WatchMore{id_, kWatchWindow / 2}, {});
    }
  }

  void OnClosed(const absl::Status& /*status*/) override {
    service_.watches_.Remove(id_);
    service_.port_.Post(WatchStop{id_}, {});
  }

  ControlServiceAdapter& service_;
  const CallId id_;
  std::atomic<int64_t> written_ = 0;
};

ControlServiceAdapter::ControlServiceAdapter(EventPort<Event>& port, std::string version, uint64_t incarnation)
    : port_(port), version_(std::move(version)), incarnation_(incarnation), watches_(kWatchLimits) {}

ControlServiceAdapter::~ControlServiceAdapter() = default;

template <class Response, class Make>
Unary* ControlServiceAdapter::Ask(Context* context, Response* response, Make make) {
  Unary* reactor = context->DefaultReactor();
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
        reactor->Finish(ToGrpc(status));
      };
      Event event = make(id);
      if (!port_.TryPost(event)) {
        asked_.erase(id);
        refused = absl::ResourceExhaustedError("the coordinator is busy (its inbox is full); try again");
      }
    }
  }
  if (!refused.ok()) {
    reactor->Finish(ToGrpc(refused));
  }
  return reactor;
}

Unary* ControlServiceAdapter::GetVersion(Context* context, const v1::GetVersionRequest* /*request*/,
                                         v1::GetVersionResponse* response) {
  response->set_version(version_);
  response->set_incarnation(incarnation_);
  return FinishNow(context, absl::OkStatus());
}

Unary* ControlServiceAdapter::ApplyJob(Context* context, const v1::ApplyJobRequest* request,
                                       v1::ApplyJobResponse* response) {
  absl::StatusOr<JobSpec> job = ParseManifest(request->manifest());
  if (!job.ok()) {
    return FinishNow(context, job.status());
  }
  absl::StatusOr<RunOptions> run = FromProto(request->run());
  if (!run.ok()) {
    return FinishNow(context, run.status());
  }
  return Ask(context, response, [&](CallId id) {
    return geopipe::ApplyJob{id, *std::move(job), *std::move(run), request->replace()};
  });
}

Unary* ControlServiceAdapter::ListJobs(Context* context, const v1::ListJobsRequest* request,
                                       v1::ListJobsResponse* response) {
  return Ask(context, response, [&](CallId id) { return geopipe::ListJobs{{id}, request->all()}; });
}

Unary* ControlServiceAdapter::GetJob(Context* context, const v1::GetJobRequest* request, v1::GetJobResponse* response) {
  return Ask(context, response, [&](CallId id) { return geopipe::GetJob{{{{id}, request->name()}, request->run()}}; });
}

Unary* ControlServiceAdapter::GetTrace(Context* context, const v1::GetTraceRequest* request,
                                       v1::GetTraceResponse* response) {
  return Ask(context, response, [&](CallId id) {
    return geopipe::GetTrace{{{{id}, request->name()}, request->run()}};
  });
}

Unary* ControlServiceAdapter::CancelJob(Context* context, const v1::CancelJobRequest* request,
                                        v1::CancelJobResponse* response) {
  return Ask(context, response, [&](CallId id) {
    return geopipe::CancelJob{id, request->name(), request->reason(), request->checkpoint()};
  });
}

Unary* ControlServiceAdapter::PauseJob(Context* context, const v1::PauseJobRequest* request,
                                       v1::PauseJobResponse* response) {
  return Ask(context, response, [&](CallId id) { return geopipe::PauseJob{id, request->name()}; });
}

Unary* ControlServiceAdapter::ResumeJob(Context* context, const v1::ResumeJobRequest* request,
                                        v1::ResumeJobResponse* response) {
  return Ask(context, response, [&](CallId id) {
    return geopipe::ResumeJob{{{id}, request->name()}, RandomBytes(kEpochSecretBytes), request->from()};
  });
}

Unary* ControlServiceAdapter::CheckpointJob(Context* context, const v1::CheckpointJobRequest* request,
                                            v1::CheckpointJobResponse* response) {
  return Ask(context, response, [&](CallId id) { return geopipe::CheckpointJob{id, request->name()}; });
}

Unary* ControlServiceAdapter::BackupStore(Context* context, const v1::BackupStoreRequest* /*request*/,
                                          v1::BackupStoreResponse* response) {
  return Ask(context, response, [](CallId id) { return geopipe::BackupStore{id}; });
}

Unary* ControlServiceAdapter::StopStray(Context* context, const v1::StopStrayRequest* request,
                                        v1::StopStrayResponse* response) {
  return Ask(context, response, [&](CallId id) {
    return geopipe::StopStray{{{id}, request->site()}, request->node()};
  });
}

Unary* ControlServiceAdapter::DrainSite(Context* context, const v1::DrainSiteRequest* request,
                                        v1::DrainSiteResponse* response) {
  return Ask(context, response, [&](CallId id) { return geopipe::DrainSite{id, request->site()}; });
}

Unary* ControlServiceAdapter::UncordonSite(Context* context, const v1::UncordonSiteRequest* request,
                                           v1::UncordonSiteResponse* response) {
  return Ask(context, response, [&](CallId id) { return geopipe::UncordonSite{id, request->site()}; });
}

Unary* ControlServiceAdapter::ListSites(Context* context, const v1::ListSitesRequest* /*request*/,
                                        v1::ListSitesResponse* response) {
  return Ask(context, response, [](CallId id) { return geopipe::ListSites{id}; });
}

Unary* ControlServiceAdapter::ListLinks(Context* context, const v1::ListLinksRequest* /*request*/,
                                        v1::ListLinksResponse* response) {
  return Ask(context, response, [](CallId id) { return geopipe::ListLinks{id}; });
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* ControlServiceAdapter::WatchJob(Context* context,
                                                                                const v1::WatchJobRequest* request) {
  const CallId id = next_call_++;
  const auto watch = std::make_shared<Watch>(*this, id, context);
  watch->Hold();
  if (const absl::Status added = watches_.Add(id, watch); added.ok()) {
    watch->Start(*request);
  } else {
    watch->End(added);
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
  if (const std::shared_ptr<Watch> watch = watches_.Find(call); watch != nullptr) {
    for (v1::WatchJobResponse& message : messages) {
      watch->Send(std::move(message));
    }
  }
}

void ControlServiceAdapter::EndWatch(CallId call, const absl::Status& status) {
  if (const std::shared_ptr<Watch> watch = watches_.Find(call); watch != nullptr) {
    watch->End(status, /*flush=*/true);
  }
}

void ControlServiceAdapter::CloseAll(const absl::Status& status) {
  std::map<CallId, Answer> asked;
  {
    std::lock_guard lock(mutex_);
    if (closed_.ok()) {
      closed_ = status;  // the first reason stays
    }
    asked.swap(asked_);
  }
  for (const auto& [id, answer] : asked) {
    answer(status);
  }
  watches_.EndAll(status);
}

}  // namespace geopipe
