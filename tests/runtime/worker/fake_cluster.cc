#include "tests/runtime/worker/fake_cluster.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/model/transformer.h"
#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/scheduler/auto_schedule.h"
#include "proto/wire/schedule_wire.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {
namespace {

constexpr int32_t kMicroBatches = 8;
constexpr uint64_t kAgentIncarnation = 1;

// The heartbeat of an agent, sent once a second.
AgentSaid BeatOn(AgentStreamId stream) {
  AgentSaid beat{.stream = stream, .message = {}};
  beat.message.set_agent_incarnation(kAgentIncarnation);
  return beat;
}

// UCX's place, over the in-process network.
class FakeUcxTransport final : public UcxTransport {
 public:
  FakeUcxTransport(InProcessNetwork& network, const UcxTransportOptions& options)
      : endpoint_(network.Endpoint(options.rank, *options.allocator)),
        address_("address of rank " + std::to_string(options.rank)) {
    for (const ChannelSpec& channel : options.channels) {
      network.Add(channel);
    }
  }

  const std::string& address() const override { return address_; }
  absl::Status Connect(const std::vector<UcxPeer>&, const std::string& secret, int64_t) override {
    return secret == "secret" ? absl::OkStatus() : absl::UnauthenticatedError("wrong secret");
  }
  TransportStats stats() const override { return {}; }
  std::map<PeerId, PeerClock> peer_clocks() const override { return {}; }
  int64_t progress_cpu_ns() const override { return 0; }
  void BreakConnection(int32_t) override {}

  absl::Status Send(const ChannelId& channel, const MessageTag& tag, Timed<Tensor> payload) override {
    return endpoint_->Send(channel, tag, std::move(payload));
  }
  absl::StatusOr<Timed<Tensor>> Receive(const ChannelId& channel, const MessageTag& tag, int64_t deadline_ns) override {
    return endpoint_->Receive(channel, tag, deadline_ns);
  }
  absl::StatusOr<int64_t> WaitAcknowledged(const ChannelId& channel, const MessageTag& tag,
                                           int64_t deadline_ns) override {
    return endpoint_->WaitAcknowledged(channel, tag, deadline_ns);
  }
  void Fail(absl::Status status) override { endpoint_->Fail(std::move(status)); }

 private:
  std::unique_ptr<MessageTransport> endpoint_;
  std::string address_;
};

}  // namespace

std::unique_ptr<UcxTransport> OpenFakeTransport(InProcessNetwork& network, const UcxTransportOptions& options) {
  return std::make_unique<FakeUcxTransport>(network, options);
}

std::string SomeText() {
  std::string text;
  for (int i = 0; i < 60; ++i) {
    text += "the quick brown fox jumps over the lazy dog; ";
  }
  return text;
}

JobSpec SmallJob(const std::string& text_path) {
  JobSpec job;
  job.parallelism.tensor = 1;
  job.parallelism.data = 1;
  job.name = "small";
  job.model.hidden_size = 16;
  job.model.intermediate_size = 24;
  job.model.num_hidden_layers = 6;
  job.model.num_attention_heads = 4;
  job.model.num_key_value_heads = 2;
  job.model.vocab_size = 258;
  job.model.max_position_embeddings = 32;
  job.model.tie_word_embeddings = true;
  job.data.format = DataFormat::kText;
  job.data.paths = {text_path};
  job.training.iterations = 4;
  job.training.tokens_per_iteration = kMicroBatches * 2 * 16;
  job.training.learning_rate = 0.01;
  job.search.micro_batch_size = {2};
  job.search.sequence_length = {16};
  job.parallelism.recompute = Recompute::kNone;
  return job;
}

v1::WorkerCommand PrepareCommandFor(const JobSpec& job, const RunOptions& run, int32_t pipeline_ranks, int32_t rank) {
  std::optional<Schedule> given;
  if (!run.schedule_csv.empty()) {
    given = ReadScheduleCsv(run.schedule_csv)->schedule;
  }
  Plan plan;
  plan.schedule = given.has_value() ? ScheduleKind::kCsv : run.schedule.value_or(ScheduleKind::kOneFOneB);
  plan.comm = run.comm;
  plan.micro_batch_size = 2;
  plan.sequence_length = 16;
  plan.micro_batches = kMicroBatches / static_cast<int32_t>(job.parallelism.data);
  plan.zero_stage = job.parallelism.zero_stage.value_or(0);
  plan.grid = {.data = static_cast<int32_t>(job.parallelism.data),
               .tensor = static_cast<int32_t>(job.parallelism.tensor)};
  PipelineCosts costs;
  costs.shape = given.has_value() ? given->shape
                                  : PipelineShape::Of(RowOf(plan.schedule).layout, pipeline_ranks, plan.micro_batches);
  const std::vector<LayerRange> layers = SplitLayers(job.model, costs.shape.stages);
  for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
    if (stage < pipeline_ranks) {
      plan.Append({.site = "site" + std::to_string(stage), .capacity_bytes = 1 << 30}, layers[stage]);
    } else {
      plan.stages.emplace_back();
    }
    plan.stages.back() = {.pipeline_rank = costs.shape.placement[stage], .layers = layers[stage]};
  }
  plan.delta_n.assign(plan.Crossings().size(), run.delta_n.empty() ? 0 : run.delta_n.front());
  costs.forward_ns.assign(costs.shape.stages, 1000);
  costs.input_grad_ns.assign(costs.shape.stages, 2000);
  if (RowOf(plan.schedule).splits_backward || plan.schedule == ScheduleKind::kAuto) {
    costs.weight_grad_ns.assign(costs.shape.stages, 1000);
  }
  for (int32_t stage = 1; stage < costs.shape.stages; ++stage) {
    costs.boundaries.push_back(
        {.crosses = plan.SiteOf(stage - 1) != plan.SiteOf(stage), .link = "", .message_bytes = 4096});
  }
  const Schedule schedule = given.has_value() ? *given
                            : plan.schedule == ScheduleKind::kAuto
                                ? FindSchedule(costs, {.evaluations = 200})->schedule
                                : *MakeSchedule(plan.schedule, costs.shape, BoundaryDeltaN(plan));
  v1::WorkerCommand command;
  command.set_epoch(1);
  v1::PrepareCommand& prepare = *command.mutable_prepare();
  prepare.set_manifest(WriteManifest(job));
  *prepare.mutable_plan() = ToProto(plan);
  *prepare.mutable_schedule() = ToProto(*Lower(schedule));
  *prepare.mutable_costs() = ToProto(costs);
  *prepare.mutable_run() = ToProto(run);
  prepare.set_rank(rank);
  prepare.set_memory_limit_bytes(1 << 30);
  prepare.set_threads(1);
  return command;
}

v1::WorkerCommand CommitCommandFor(int32_t ranks, int64_t end_iteration) {
  v1::WorkerCommand command;
  command.set_epoch(1);
  v1::CommitCommand& commit = *command.mutable_commit();
  commit.set_end_iteration(end_iteration);
  commit.set_secret("secret");
  commit.set_actions_every(1);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    v1::Peer& peer = *commit.add_peers();
    peer.set_rank(rank);
    peer.set_address("address of rank " + std::to_string(rank));
  }
  return command;
}

FakeCluster::FakeCluster(int32_t workers, ExtendJob extend_job)
    : reports_(workers), data_checks_(workers), streams_(workers), exits_(workers) {
  for (int32_t index = 0; index < workers; ++index) {
    WorkerMetrics& metrics = figures_.emplace_back(std::make_unique<WorkerFigures>())->metrics;
    WorkerCore::Hooks hooks;
    hooks.on_iteration = [&metrics](int32_t rank, const IterationStats& stats) { metrics.OnIteration(rank, stats); };
    // The core's inbox has room: there is little under way.
    hooks.dial = [this, index](const DialAgent& order) {
      workers_[index]->Post(StreamOpened{order.stream});
      workers_[index]->Post(BeatOn(order.stream));
      const std::lock_guard lock(mutex_);
      streams_[index] = order.stream;  // and from here on commands may follow
      changed_.notify_all();
    };
    hooks.hang_up = [](AgentStreamId) {};
    hooks.send = [this, index](TellAgent order) {
      // The worker does so once a second, and so does its agent.
      const bool beats = order.request.report().has_heartbeat();
      {
        const std::lock_guard lock(mutex_);
        if (order.request.report().sequence() > 0) {
          reports_[index].push_back(std::move(*order.request.mutable_report()));
        } else if (order.request.report().has_data_check()) {
          data_checks_[index].push_back(order.request.report().data_check());
        }
        changed_.notify_all();
      }
      workers_[index]->Post(ReportWritten{order.stream});
      if (beats) {
        workers_[index]->Post(BeatOn(order.stream));
      }
    };
    hooks.on_exit = [this, index](const ExitWorker& exit) {
      const std::lock_guard lock(mutex_);
      exits_[index].push_back(exit);
      changed_.notify_all();
    };
    hooks.open_transport = [this](const UcxTransportOptions& options) -> absl::StatusOr<std::unique_ptr<UcxTransport>> {
      const std::lock_guard lock(mutex_);
      std::unique_ptr<InProcessNetwork>& network = networks_[options.epoch];
      if (network == nullptr) {
        network = std::make_unique<InProcessNetwork>(std::ssize(reports_));
      }
      return OpenFakeTransport(*network, options);
    };
    hooks.open_profile = hooks.open_transport;
    hooks.extend_job = extend_job;
    hooks.file_server = file_servers_.emplace_back(FileServer::Start({}).value()).get();
    WorkerControlOptions options;
    options.exchange_address = hooks.file_server->address();
    options.worker.set_site("site" + std::to_string(index));
    workers_.push_back(
        std::make_unique<WorkerCore>(WorkerIdentity{.site = "site" + std::to_string(index), .node = "n0", .device = 0},
                                     std::move(options), Clock::Real(), std::move(hooks)));
  }
  for (const auto& worker : workers_) {
    worker->Start();
  }
}

// Messages that were never taken belong to the allocators of the workers that sent them, so all stop first.
FakeCluster::~FakeCluster() {
  for (const auto& worker : workers_) {
    worker->Stop("the test is over");
  }
  for (const auto& worker : workers_) {
    worker->WaitExit(60'000'000'000);
    worker->WaitEnded(60'000'000'000);
  }
}

void FakeCluster::Command(int32_t index, v1::WorkerCommand command) {
  AgentStreamId stream = 0;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return streams_[index] > 0; });
    stream = streams_[index];
  }
  AgentSaid event = BeatOn(stream);
  *event.message.mutable_command() = std::move(command);
  workers_[index]->Post(std::move(event));
}

v1::WorkerReport FakeCluster::Await(int32_t index, const std::function<bool(const v1::WorkerReport&)>& matches) {
  return AwaitOf(index, index + 1, matches);
}

v1::WorkerReport FakeCluster::AwaitAny(const std::function<bool(const v1::WorkerReport&)>& matches) {
  return AwaitOf(0, reports_.size(), matches);
}

v1::WorkerReport FakeCluster::AwaitOf(size_t begin, size_t end,
                                      const std::function<bool(const v1::WorkerReport&)>& matches) {
  std::unique_lock lock(mutex_);
  std::optional<v1::WorkerReport> found;
  REQUIRE(changed_.wait_for(lock, std::chrono::minutes(1), [&] {
    for (size_t index = begin; index < end && !found.has_value(); ++index) {
      const auto report = std::ranges::find_if(reports_[index], matches);
      found = report == reports_[index].end() ? std::nullopt : std::optional(*report);
    }
    return found.has_value();
  }));
  return *found;
}

v1::DataCheckReport FakeCluster::AwaitDataCheck(int32_t index) {
  std::unique_lock lock(mutex_);
  REQUIRE(changed_.wait_for(lock, std::chrono::minutes(1), [&] { return !data_checks_[index].empty(); }));
  return data_checks_[index].front();
}

std::vector<v1::WorkerReport> FakeCluster::reports(int32_t index) const {
  const std::lock_guard lock(mutex_);
  return reports_[index];
}

std::string FakeCluster::MetricsText(int32_t index) {
  figures_[index]->metrics.Refresh(workers_[index]->usage());
  return figures_[index]->registry.Text();
}

ExitWorker FakeCluster::AwaitExit(int32_t index) {
  std::unique_lock lock(mutex_);
  REQUIRE(changed_.wait_for(lock, std::chrono::minutes(1), [&] { return !exits_[index].empty(); }));
  CHECK(exits_[index].size() == 1);
  return exits_[index].front();
}

}  // namespace geopipe
