#include "tests/runtime/executor/grid_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/execution_config.h"
#include "optimizer/model/gpu_workspace.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/model/plan/rank_memory.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/schedule/lowering.h"
#include "runtime/base/clock.h"
#include "runtime/collective/staged_communicator.h"
#include "runtime/executor/channels.h"
#include "runtime/executor/executor.h"
#include "runtime/model/dry_run.h"
#include "tests/runtime/model/small_models.h"
#include "tests/support/in_process_transport.h"
#include "tests/support/thread_communicator.h"

namespace geopipe {
namespace {

// Other random tokens than those that are trained on.
class ValidationTokens final : public TokenSource {
 public:
  explicit ValidationTokens(const GridOptions& options) : tokens_(options.model.vocab_size, options.sequence_length) {}

  absl::Status Read(int64_t iteration, int64_t first_sample, int64_t samples, std::span<int32_t> inputs,
                    std::span<int32_t> targets) override {
    return tokens_.Read(kFirstOfValidation + iteration, first_sample, samples, inputs, targets);
  }

 private:
  RandomTokens tokens_;
};

// The processor or device of a rank, and its memory.
struct Hardware {
  Hardware(const GridOptions& options, GridDevice own, int64_t memory_bytes)
      : options(options),
        own(std::move(own)),
        allocator(memory_bytes, this->own.device != nullptr ? *this->own.device : HostDevice()) {}

  absl::StatusOr<std::unique_ptr<Backend>> Open() {
    if (own.device != nullptr) {
      return own.open_backend(allocator);
    }
    return CpuBackend::Create(options.processors, allocator);
  }
  std::unique_ptr<Communicator> Reach(std::unique_ptr<Communicator> host) {
    return own.device == nullptr ? std::move(host)
                                 : *MakeStagedCommunicator(
                                       {.allocator = &allocator, .piece_bytes = options.piece_bytes}, std::move(host));
  }

  const GridOptions& options;
  const GridDevice own;  // of no device: the processor
  Allocator allocator;
};

// One communicator for each rank of the grid, by group; null where the rank is alone in it.
std::vector<std::unique_ptr<Communicator>> GroupsOf(const ProcessGrid& grid,
                                                    const std::vector<std::unique_ptr<Hardware>>& hardware,
                                                    const std::function<std::vector<int32_t>(int32_t)>& group_of) {
  std::vector<std::unique_ptr<Communicator>> communicators(static_cast<size_t>(grid.size()));
  for (int32_t rank = 0; rank < grid.size(); ++rank) {
    const std::vector<int32_t> group = group_of(rank);
    if (group.size() > 1 && group.front() == rank) {
      std::vector<std::unique_ptr<Communicator>> made = MakeThreadCommunicators(static_cast<int32_t>(group.size()));
      for (size_t i = 0; i < group.size(); ++i) {
        communicators[group[i]] = hardware[group[i]]->Reach(std::move(made[i]));
      }
    }
  }
  return communicators;
}

Plan PlanOf(const GridOptions& options, const PipelineShape& shape) {
  Plan plan;
  plan.schedule = options.schedule;
  plan.micro_batch_size = options.micro_batch_size;
  plan.sequence_length = options.sequence_length;
  plan.micro_batches = shape.micro_batches;
  plan.zero_stage = options.zero_stage;
  plan.grid = options.grid;
  plan.devices.resize(static_cast<size_t>(options.grid.size()));
  plan.pipeline_ranks.resize(static_cast<size_t>(options.grid.pipeline));
  for (size_t rank = 0; rank < options.recompute.size(); ++rank) {
    plan.pipeline_ranks[rank].recompute = options.recompute[rank];
  }
  for (const LayerRange& layers : SplitLayers(options.model, shape.stages)) {
    plan.stages.push_back({.pipeline_rank = shape.placement[plan.stages.size()], .layers = layers});
  }
  return plan;
}

JobSpec JobOf(const GridOptions& options) {
  JobSpec job;
  job.model = options.model;
  job.training = options.training;
  job.precision = options.precision;
  job.parallelism.tensor = options.grid.tensor;
  job.parallelism.data = options.grid.data;
  job.parallelism.sequence_parallel = options.sequence_parallel;
  job.own_memory = options.open_device != nullptr;
  return job;
}

Schedule ComputeOf(const GridOptions& options) {
  const ProcessGrid& grid = options.grid;
  const int64_t tokens = options.micro_batch_size * options.sequence_length * grid.data;
  GP_CHECK(options.training.tokens_per_iteration % tokens == 0);
  const PipelineShape shape =
      PipelineShape::Of(RowOf(options.schedule).layout, grid.pipeline,
                        static_cast<int32_t>(options.training.tokens_per_iteration / tokens), options.stages_per_rank);
  const auto made = MakeSchedule(options.schedule, shape, std::vector<int32_t>(shape.stages - 1, options.delta_n));
  GP_CHECK(made.ok(), "{}", std::string(made.status().message()));
  return *made;
}

class Grid {
 public:
  // `devices`: of each rank, if any.
  Grid(const GridOptions& options, std::vector<GridDevice> devices) : options_(options), network_(options.grid.size()) {
    const ProcessGrid& grid = options.grid;
    const Schedule compute = ComputeOf(options);
    schedule_ = *Lower(compute);
    plan_ = PlanOf(options, compute.shape);
    for (int32_t rank = 0; rank < grid.size(); ++rank) {
      hardware_.push_back(std::make_unique<Hardware>(
          options_, std::move(devices[rank]),
          options.limits.empty() ? options.memory_bytes : options.limits[grid.At(rank).pipeline]));
    }
    tensor_groups_ = GroupsOf(grid, hardware_, [&](int32_t rank) { return grid.TensorGroupOf(rank); });
    data_groups_ = GroupsOf(grid, hardware_, [&](int32_t rank) { return grid.ReplicasOf(rank); });
    const int64_t sharers = std::max<int64_t>(1, grid.tensor / options.model.num_key_value_heads);
    key_value_groups_ = GroupsOf(grid, hardware_, [&](int32_t rank) {
      std::vector<int32_t> group;
      for (const int32_t other : grid.TensorGroupOf(rank)) {
        if (other % grid.tensor / sharers == rank % grid.tensor / sharers) {
          group.push_back(other);
        }
      }
      return group;
    });
    for (int32_t rank = 0; rank < grid.size(); ++rank) {
      const ChannelMessages messages = MessagesOfPlan(plan_, JobOf(options), /*norms=*/true);
      for (const ChannelSpec& channel :
           ChannelsOf(schedule_, grid.At(rank).pipeline, grid.PipelineOf(rank), messages)) {
        network_.Add(channel);
      }
    }
  }

  GridResult Train() {
    const auto ranks = static_cast<size_t>(options_.grid.size());
    std::vector<Reports> reports(ranks);
    std::vector<absl::Status> statuses(ranks);
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < options_.grid.size(); ++rank) {
      threads.emplace_back([&, rank] {
        statuses[rank] = TrainRank(rank, reports[rank]);
        if (!statuses[rank].ok()) {
          Fail();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return ResultOf(statuses, reports);
  }

 private:
  struct Reports {
    std::vector<IterationStats> iterations;
    std::vector<EvaluationStats> evaluations;
  };

  void Fail() {
    const absl::Status gone = absl::UnavailableError("a peer is gone");
    network_.FailAll(gone);
    for (const auto* groups : {&tensor_groups_, &data_groups_, &key_value_groups_}) {
      for (const std::unique_ptr<Communicator>& communicator : *groups) {
        if (communicator != nullptr) {
          communicator->Abort(gone);
        }
      }
    }
  }

  absl::Status TrainRank(int32_t rank, Reports& reports) {
    const Rank place = options_.grid.At(rank);
    Allocator& allocator = hardware_[rank]->allocator;
    GP_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, hardware_[rank]->Open());
    const std::unique_ptr<TokenSource> tokens =
        options_.tokens ? options_.tokens(place)
                        : std::make_unique<RandomTokens>(options_.model.vocab_size, options_.sequence_length);
    ValidationTokens validation(options_);
    LargeRandomWeights random_weights(5);
    WeightSource& weights = options_.state != nullptr ? *options_.state : random_weights;
    SharedRooms rooms(allocator, options_.max_run_elements);
    const PipelineShape& shape = schedule_.shape;
    std::vector<std::unique_ptr<TransformerStage>> stages(static_cast<size_t>(shape.stages));
    for (int32_t i = 0; i < shape.stages; ++i) {
      if (shape.placement[i] == place.pipeline) {
        GP_ASSIGN_OR_RETURN(stages[i], TransformerStage::Create(StageOptions(i, place), allocator, *backend,
                                                                tokens.get(), weights, &rooms, &validation));
      }
    }
    std::vector<TransformerStage*> own;
    std::ranges::transform(stages, std::back_inserter(own), &std::unique_ptr<TransformerStage>::get);
    if (!options_.limits.empty()) {
      GP_RETURN_IF_ERROR(DryRun(schedule_.devices[place.pipeline], own, options_.first_iteration, rank));
    }
    for (TransformerStage* const stage : own) {
      if (stage != nullptr) {
        GP_RETURN_IF_ERROR(stage->UseGroups({.tensor = tensor_groups_[rank].get(),
                                             .key_value = key_value_groups_[rank].get(),
                                             .data = data_groups_[rank].get()}));
      }
    }
    const std::unique_ptr<MessageTransport> transport = network_.Endpoint(rank, allocator.staging());
    ExecutorOptions executor_options;
    executor_options.schedule = schedule_;
    executor_options.pipeline_rank = place.pipeline;
    executor_options.pipeline = options_.grid.PipelineOf(rank);
    for (const std::unique_ptr<TransformerStage>& stage : stages) {
      executor_options.engines.push_back(stage.get());
    }
    executor_options.exchange_norms = true;
    executor_options.start_iteration = options_.first_iteration;
    executor_options.end_iteration = options_.iterations;
    executor_options.on_begin = [&](int64_t /*iteration*/) {
      if (options_.on_begin) {
        options_.on_begin(rank, allocator.device(), *backend);
      }
      return true;
    };
    executor_options.on_report = [&](IterationStats stats) { reports.iterations.push_back(std::move(stats)); };
    executor_options.evaluation = {
        .passes = options_.evaluate_every > 0 ? options_.passes : 0,
        .is_due =
            [&](int64_t iteration) {
              return iteration > 0 && (iteration % options_.evaluate_every == 0 || iteration == options_.iterations);
            },
        .on_report = [&](EvaluationStats stats) { reports.evaluations.push_back(stats); }};
    GP_ASSIGN_OR_RETURN(Executor executor,
                        Executor::Create(std::move(executor_options), *transport, allocator, Clock::Real()));
    GP_RETURN_IF_ERROR(executor.Run());
    for (int32_t i = 0; options_.at_end && i < shape.stages; ++i) {
      if (stages[i] != nullptr) {
        GP_RETURN_IF_ERROR(options_.at_end(place, *stages[i], StageOptions(i, place)));
      }
    }
    return FinishGroups(rank);
  }

  // Waits for operations that nothing has joined: they use the memory of stages.
  absl::Status FinishGroups(int32_t rank) {
    for (const auto* groups : {&tensor_groups_, &key_value_groups_, &data_groups_}) {
      if (Communicator* const group = (*groups)[rank].get(); group != nullptr) {
        GP_ASSIGN_OR_RETURN(const Completion done, group->Barrier());
        GP_RETURN_IF_ERROR(group->Join(done));
      }
    }
    return absl::OkStatus();
  }

  TransformerStageOptions StageOptions(int32_t stage, const Rank& place) const {
    TransformerStageOptions options;
    options.model = options_.model;
    options.layers = plan_.stages[stage].layers;
    options.training = options_.training;
    options.micro_batch_size = options_.micro_batch_size;
    options.sequence_length = options_.sequence_length;
    options.micro_batches = plan_.micro_batches;
    options.sharding = {.tensor = options_.grid.tensor,
                        .tensor_rank = place.tensor,
                        .data = options_.grid.data,
                        .data_rank = place.data,
                        .zero_stage = options_.zero_stage,
                        .sequence_parallel = options_.sequence_parallel,
                        .precision = options_.precision,
                        .offloads_optimizer = options_.offloads_optimizer};
    options.document_end = options_.document_end;
    options.recompute = options_.recompute.empty() ? Recompute::kNone : options_.recompute[place.pipeline];
    return options;
  }

  static void Expect(bool same, int32_t rank, std::string_view what, GridResult& result) {
    if (!same) {
      result.status.Update(absl::InternalError(fmt::format("rank {} has other {}", rank, what)));
    }
  }

  GridResult ResultOf(const std::vector<absl::Status>& statuses, const std::vector<Reports>& reports) const {
    GridResult result;
    for (const absl::Status& status : statuses) {
      if (!status.ok() && (result.status.ok() || absl::IsUnavailable(result.status))) {
        result.status = status;
      }
    }
    for (const std::unique_ptr<Hardware>& hardware : hardware_) {
      result.peak_bytes.push_back(hardware->allocator.total().peak_bytes);
    }
    const int32_t last = schedule_.shape.placement.back();
    for (int32_t rank = 0; result.status.ok() && rank < options_.grid.size(); ++rank) {
      std::vector<double> losses;
      std::vector<double> norms;
      for (const IterationStats& stats : reports[rank].iterations) {
        losses.push_back(stats.loss.value_or(-1));
        norms.push_back(stats.grad_norm.value_or(-1));
      }
      if (options_.grid.At(rank).pipeline == last) {
        Expect(result.losses.empty() || result.losses == losses, rank, "losses", result);
        result.losses = losses;
        std::vector<double> validation;
        for (const EvaluationStats& stats : reports[rank].evaluations) {
          validation.push_back(stats.loss.value_or(-1));
        }
        Expect(result.validation_losses.empty() || result.validation_losses == validation, rank, "validation losses",
               result);
        result.validation_losses = validation;
      }
      Expect(result.norms.empty() || result.norms == norms, rank, "norms", result);
      result.norms = norms;
    }
    return result;
  }

  const GridOptions options_;
  // Memory goes last: messages that an error left in the network are in it.
  std::vector<std::unique_ptr<Hardware>> hardware_;
  InProcessNetwork network_;
  Schedule schedule_;
  Plan plan_;
  std::vector<std::unique_ptr<Communicator>> tensor_groups_;
  std::vector<std::unique_ptr<Communicator>> data_groups_;
  std::vector<std::unique_ptr<Communicator>> key_value_groups_;
};

}  // namespace

std::string GridOptions::name() const {
  std::vector<std::string_view> modes;
  for (const Recompute mode : recompute) {
    modes.push_back(RecomputeName(mode));
  }
  return fmt::format("tp {} dp {} pp {} x {} {} delta_n {} zero {}{}{}{} recompute [{}] b {}", grid.tensor, grid.data,
                     grid.pipeline, stages_per_rank, ScheduleKindName(schedule), delta_n, zero_stage,
                     sequence_parallel ? " sp" : "", precision == Precision::kBf16 ? " bf16" : "",
                     offloads_optimizer ? " offload" : "", fmt::join(modes, ","), micro_batch_size);
}

OpenGridDevice SeededGridDevices(uint64_t seed, DeviceFault fault) {
  return [seed, fault](int32_t rank) -> absl::StatusOr<GridDevice> {
    auto device = std::make_unique<SeededDevice>(seed + 1000 * static_cast<uint64_t>(rank), fault);
    SeededDevice& own = *device;
    return GridDevice{.device = std::move(device), .open_backend = [&own](Allocator& memory) {
                        return std::make_unique<SeededBackend>(own, memory);
                      }};
  };
}

GridResult TrainGrid(const GridOptions& options) {
  std::vector<GridDevice> devices(static_cast<size_t>(options.grid.size()));
  for (int32_t rank = 0; options.open_device && rank < options.grid.size(); ++rank) {
    absl::StatusOr<GridDevice> device = options.open_device(rank);
    if (!device.ok()) {
      GridResult failed;
      failed.status = device.status();
      return failed;
    }
    devices[static_cast<size_t>(rank)] = *std::move(device);
  }
  return Grid(options, std::move(devices)).Train();
}

std::vector<int64_t> PlannedBytes(const GridOptions& options) {
  const JobSpec job = JobOf(options);
  const Schedule compute = ComputeOf(options);
  const Plan plan = PlanOf(options, compute.shape);
  std::vector<int64_t> of_backend(static_cast<size_t>(options.grid.pipeline), 0);
  for (const StagePlan& stage : plan.stages) {
    int64_t& most = of_backend[stage.pipeline_rank];
    most = std::max(most, GpuWorkspaceBytes(job.model, stage.layers, ConfigOfPlan(job, plan, stage.pipeline_rank)));
  }
  std::vector<int64_t> bytes;
  for (const RankMemory& rank : MemoryOfRanks(job, plan, compute)) {
    bytes.push_back(rank.peak - of_backend[bytes.size()]);
  }
  return bytes;
}

}  // namespace geopipe
