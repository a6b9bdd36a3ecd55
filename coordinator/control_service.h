// ControlService over gRPC. Calls become events in the core's inbox and wait for the core's reply; a full inbox answers
// RESOURCE_EXHAUSTED. A watch gives the core credits, so that nothing is sent faster than it is read.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "coordinator/runner.h"
#include "geopipe/v1/control_service.grpc.pb.h"
#include "runtime/base/event_port.h"
#include "runtime/base/grpc/stream_server.h"

namespace geopipe {

class ControlServiceAdapter final : public v1::ControlService::CallbackService, public ControlCalls {
 public:
  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  // The port outlives the service, and the service outlives its server.
  ControlServiceAdapter(EventPort<Event>& port, std::string version, uint64_t incarnation);
  ~ControlServiceAdapter() override;

  Unary* GetVersion(Context* context, const v1::GetVersionRequest* request, v1::GetVersionResponse* response) override;
  Unary* ApplyJob(Context* context, const v1::ApplyJobRequest* request, v1::ApplyJobResponse* response) override;
  Unary* ListJobs(Context* context, const v1::ListJobsRequest* request, v1::ListJobsResponse* response) override;
  Unary* GetJob(Context* context, const v1::GetJobRequest* request, v1::GetJobResponse* response) override;
  Unary* GetTrace(Context* context, const v1::GetTraceRequest* request, v1::GetTraceResponse* response) override;
  Unary* CancelJob(Context* context, const v1::CancelJobRequest* request, v1::CancelJobResponse* response) override;
  Unary* CheckpointJob(Context* context, const v1::CheckpointJobRequest* request,
                       v1::CheckpointJobResponse* response) override;
  Unary* BackupStore(Context* context, const v1::BackupStoreRequest* request,
                     v1::BackupStoreResponse* response) override;
  Unary* StopStray(Context* context, const v1::StopStrayRequest* request, v1::StopStrayResponse* response) override;
  Unary* DrainSite(Context* context, const v1::DrainSiteRequest* request, v1::DrainSiteResponse* response) override;
  Unary* UncordonSite(Context* context, const v1::UncordonSiteRequest* request,
                      v1::UncordonSiteResponse* response) override;
  Unary* PauseJob(Context* context, const v1::PauseJobRequest* request, v1::PauseJobResponse* response) override;
  Unary* ResumeJob(Context* context, const v1::ResumeJobRequest* request, v1::ResumeJobResponse* response) override;
  Unary* ListSites(Context* context, const v1::ListSitesRequest* request, v1::ListSitesResponse* response) override;
  Unary* ListLinks(Context* context, const v1::ListLinksRequest* request, v1::ListLinksResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(Context* context,
                                                           const v1::WatchJobRequest* request) override;

  // Called by the core's thread. Calls that have ended are passed over.
  void Reply(CallId call, absl::StatusOr<ControlReply> reply) override;
  void SendToWatcher(CallId call, std::vector<v1::WatchJobResponse> messages) override;
  void EndWatch(CallId call, const absl::Status& status) override;

  // Ends every call with the status, and every later one at once. Any thread.
  void CloseAll(const absl::Status& status);

 private:
  class Watch;
  using Answer = std::function<void(absl::StatusOr<ControlReply>)>;

  // Registers the call and posts `make(id)`, or refuses it.
  template <class Response, class Make>
  Unary* Ask(Context* context, Response* response, Make make);

  EventPort<Event>& port_;
  const std::string version_;
  const uint64_t incarnation_;
  std::atomic<CallId> next_call_ = 1;
  std::mutex mutex_;
  std::map<CallId, Answer> asked_;
  absl::Status closed_;  // not OK: no more calls
  StreamSet<Watch> watches_;
};

}  // namespace geopipe
