// Worker cores of one process, connected by an in-process network instead of UCX, and the reports they make.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/run_options.h"
#include "runtime/base/metrics.h"
#include "runtime/checkpoint/exchange/file_server.h"
#include "runtime/worker/worker_core.h"
#include "runtime/worker/worker_metrics.h"
#include "tests/support/in_process_transport.h"

namespace geopipe {

// Some two thousand bytes to train on.
std::string SomeText();
// A model of six layers with the byte tokenizer's vocabulary; iterations of eight micro-batches of two samples of 16
// tokens.
JobSpec SmallJob(const std::string& text_path);
// The plan of epoch 1 for it over `pipeline_ranks` sites of one node each, with the job's tensor and data degrees (data
// divides eight) and its ZeRO stage (0 where absent), run.schedule (1F1B where absent; its stages as its layout says)
// and run.delta_n (one number for all crossings, 0 where absent).
v1::WorkerCommand PrepareCommandFor(const JobSpec& job, const RunOptions& run, int32_t pipeline_ranks, int32_t rank);
v1::WorkerCommand CommitCommandFor(int32_t ranks, int64_t end_iteration);

// A transport over the in-process network, in UCX's place. Only "secret" is the right one.
std::unique_ptr<UcxTransport> OpenFakeTransport(InProcessNetwork& network, const UcxTransportOptions& options);

class FakeCluster {
  struct WorkerFigures {
    MetricRegistry registry{MetricLabels{{"training_job", "small"}}};
    WorkerMetrics metrics{registry};
  };

 public:
  explicit FakeCluster(int32_t workers, ExtendJob extend_job = nullptr);
  FakeCluster(const FakeCluster&) = delete;
  FakeCluster& operator=(const FakeCluster&) = delete;
  ~FakeCluster();

  WorkerCore& worker(int32_t index) { return *workers_[index]; }
  // Server of the checkpoint files of a worker's node.
  FileServer& file_server(int32_t index) { return *file_servers_[index]; }
  // Gives the worker a command as if the agent had sent it.
  void Command(int32_t index, v1::WorkerCommand command);

  // The first report of worker `index` that `matches`, waiting for it; fails the test after a minute.
  v1::WorkerReport Await(int32_t index, const std::function<bool(const v1::WorkerReport&)>& matches);
  // The same of any worker.
  v1::WorkerReport AwaitAny(const std::function<bool(const v1::WorkerReport&)>& matches);
  // Waits for the first finding of the check of the worker's data; fails the test after a minute.
  v1::DataCheckReport AwaitDataCheck(int32_t index);
  // All numbered reports of a worker so far.
  std::vector<v1::WorkerReport> reports(int32_t index) const;
  // The metrics of a worker as a scrape would get them.
  std::string MetricsText(int32_t index);
  // Waits for the worker's exit; fails the test after a minute.
  ExitWorker AwaitExit(int32_t index);

 private:
  v1::WorkerReport AwaitOf(size_t begin, size_t end, const std::function<bool(const v1::WorkerReport&)>& matches);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<v1::WorkerReport>> reports_;
  std::vector<std::vector<v1::DataCheckReport>> data_checks_;
  std::vector<AgentStreamId> streams_;  // the latest
  std::vector<std::vector<ExitWorker>> exits_;
  std::map<uint64_t, std::unique_ptr<InProcessNetwork>> networks_;  // by epoch
  std::vector<std::unique_ptr<WorkerFigures>> figures_;
  std::vector<std::unique_ptr<FileServer>> file_servers_;
  std::vector<std::unique_ptr<WorkerCore>> workers_;
};

}  // namespace geopipe
