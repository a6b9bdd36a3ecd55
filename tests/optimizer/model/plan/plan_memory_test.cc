#include "optimizer/model/plan/plan_memory.h"

#include <catch2/catch.hpp>
#include <map>

#include "optimizer/model/collective_memory.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/parameter_buckets.h"
#include "optimizer/model/transformer.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

// Llama-2 7B over four stages in the sites a, a, b, c; ΔN 3 and 1.
struct FourStages {
  JobSpec job;
  Plan plan;

  FourStages() {
    job.parallelism.tensor = 1;
    job.parallelism.data = 1;
    job.model = *ModelPreset("llama-2-7b");
    plan.schedule = ScheduleKind::kGeoPipe;
    plan.micro_batch_size = 1;
    plan.sequence_length = 512;
    plan.micro_batches = 32;
    plan.delta_n = {3, 1};
    const std::vector<LayerRange> layers = SplitLayers(job.model, 4);
    for (const char* site : {"a", "a", "b", "c"}) {
      plan.Append({.site = site}, layers[plan.stages.size()]);
    }
  }

  int64_t transport(size_t stage) const { return MemoryOfPlan(job, plan)[stage].transport_bytes; }
};

TEST_CASE("in flight: the closed form is what the schedule's lists say") {
  FourStages f;
  CHECK(InFlightOfPlan(f.plan) == std::vector<int64_t>{8, 7, 3, 1});
  for (const ScheduleKind kind : {ScheduleKind::kGpipe, ScheduleKind::kOneFOneB, ScheduleKind::kGeoPipe}) {
    for (const int32_t micro_batches : {1, 3, 5, 32}) {
      f.plan.schedule = kind;
      f.plan.micro_batches = micro_batches;
      f.plan.delta_n = kind == ScheduleKind::kGeoPipe ? std::vector<int32_t>{3, 1} : std::vector<int32_t>{0, 0};
      const Schedule schedule = *MakeSchedule(kind, PipelineShape::Linear(4, micro_batches), BoundaryDeltaN(f.plan));
      CHECK(InFlightOfSchedule(schedule) == InFlightOfPlan(f.plan));
    }
  }
}

TEST_CASE("in flight: with a split backward the closed form is the most there can be") {
  FourStages f;
  for (const ScheduleKind kind : {ScheduleKind::kZbH1, ScheduleKind::kZbH2, ScheduleKind::kGeoPipeZb}) {
    f.plan.schedule = kind;
    f.plan.delta_n = kind == ScheduleKind::kGeoPipeZb ? std::vector<int32_t>{3, 1} : std::vector<int32_t>{0, 0};
    const Schedule schedule = *MakeSchedule(kind, PipelineShape::Linear(4, 32), BoundaryDeltaN(f.plan));
    const std::vector<int64_t> listed = InFlightOfSchedule(schedule);
    const std::vector<int64_t> closed = InFlightOfPlan(f.plan);
    for (size_t stage = 0; stage < 4; ++stage) {
      CHECK(listed[stage] <= closed[stage]);
    }
  }
}

TEST_CASE("messages: slots both ways, activations in flight here, gradients of what is in flight before") {
  FourStages f;
  const int64_t message = 512 * 4096 * 4;
  f.job.training.grad_clip.reset();
  // Micro-batches in flight: 8, 7, 3, 1.
  CHECK(f.transport(0) == (8 + 8) * message);
  CHECK(f.transport(1) == ((8 + 7) + 7 + 1) * message);
  CHECK(f.transport(2) == ((7 + 3) + 3 + 4) * message);
  CHECK(f.transport(3) == (3 + 2) * message);
  f.plan.comm = CommMode::kBlocking;
  CHECK(f.transport(0) == (8 + 1) * message);
  CHECK(f.transport(1) == (15 + 1) * message);
  CHECK(f.transport(3) == 3 * message);
  f.plan.comm = CommMode::kNonBlocking;
  f.plan.schedule = ScheduleKind::kGpipe;
  CHECK(f.transport(1) == 3 * 32 * message);
  CHECK(f.transport(3) == 32 * message);
  f.job.parallelism.tensor = 8;
  const int64_t collectives = SharedCollectiveBytes(8);
  CHECK(f.transport(3) == collectives + 32 * message / 8);
  f.plan.stages = {f.plan.stages[0]};
  f.plan.delta_n.clear();
  CHECK(f.transport(0) == collectives);
}

TEST_CASE("norm terms have two slots and a message to each other rank, tied gradients two slots and a message") {
  FourStages f;
  f.job.training.grad_clip.reset();
  std::vector<int64_t> without;
  for (size_t stage = 0; stage < 4; ++stage) {
    without.push_back(f.transport(stage));
  }
  f.job.training.grad_clip = 1.0;
  std::vector<int64_t> norms;
  int64_t all = 0;
  for (const StagePlan& stage : f.plan.stages) {
    norms.push_back(NormTermSizes(f.job.model).Of(stage.layers));
    all += norms.back();
  }
  for (size_t stage = 0; stage < 4; ++stage) {
    CHECK(f.transport(stage) == without[stage] + 2 * (all - norms[stage]) + 3 * norms[stage]);
  }
  f.job.model.tie_word_embeddings = true;
  const int64_t tied = int64_t{32'000} * 4096 * 4;
  // The last stage now holds "model.embed_tokens.weight" (25 characters) instead of "lm_head.weight" (14).
  const int64_t longer = 28 - 16;
  CHECK(f.transport(0) == without[0] + 2 * (all - norms[0] + longer) + 3 * norms[0] + 3 * tied);
  CHECK(f.transport(1) == without[1] + 2 * (all - norms[1] + longer) + 3 * norms[1]);
  CHECK(f.transport(3) == without[3] + 2 * (all - norms[3]) + 3 * (norms[3] + longer) + 3 * tied);
  f.job.training.grad_clip.reset();
  CHECK(f.transport(0) == without[0] + 4 * tied);  // its own may still be on its way when it goes on
  CHECK(f.transport(3) == without[3] + 3 * tied);
}

TEST_CASE(
    "devices with a memory of their own have a message or two at once, and their hosts what is kept for each slot") {
  FourStages f;
  const int64_t message = 512 * f.job.model.hidden_size * 2;
  f.job.precision = Precision::kBf16;
  f.job.training.grad_clip.reset();
  f.job.training.tokens_per_iteration = 32 * 512;
  f.job.own_memory = true;
  constexpr int64_t kPieces = int64_t{32} << 20;
  const auto host = [&](size_t stage) { return MemoryOfPlan(f.job, f.plan)[stage].host_bytes; };
  // In flight 8, 7, 3, 1. Twice as many as the slots, both ways.
  const int64_t ids = 4 * 512;
  CHECK(host(0) == kPieces + 4 * 8 * message + (32 + 1) * ids);
  CHECK(host(1) == kPieces + 4 * (8 + 7) * message);
  CHECK(host(2) == kPieces + 4 * (7 + 3) * message);
  CHECK(host(3) == kPieces + 4 * 3 * message + (32 + 1) * ids);
  CHECK(f.transport(0) == message);
  CHECK(f.transport(3) == 0);  // an activation becomes the stage's own
  CHECK(NeedsOfPlan(f.job, f.plan)[1].MostBoundaryMessages({.before = 8, .here = 7}) == 2);
  CHECK(NeedsOfPlan(f.job, f.plan)[1].MoreMessageBytes({.before = 8, .here = 7}) == 0);

  const int64_t before = host(1);
  f.job.data.documents = Documents::kReset;  // the host reads both kinds of ids, and tells where documents begin
  CHECK(host(1) == before + (32 + 2) * ids);
  f.job.data.documents = Documents::kPacked;

  f.job.training.grad_clip = 1.0;
  const NormTermSizes sizes(f.job.model);
  const int64_t own = sizes.Of(f.plan.stages[1].layers);
  CHECK(host(1) == before + 4 * (sizes.OfAll(4) - own) + 3 * 4 * own);
  f.job.training.grad_clip.reset();

  f.job.model.tie_word_embeddings = true;
  const int64_t tied = 4 * f.job.model.vocab_size * f.job.model.hidden_size;
  CHECK(host(0) == kPieces + 4 * 8 * message + (32 + 1) * ids + 8 * tied);
  CHECK(f.transport(0) == message + tied);
}

TEST_CASE("groups of devices with a memory of their own pass through two pinned buffers each") {
  FourStages f;
  f.job.parallelism.tensor = 8;
  f.job.model.num_key_value_heads = 4;
  f.job.parallelism.data = 2;
  ExecutionConfig config = ConfigOfPlan(f.job, f.plan);
  const int64_t host = CollectiveBytes(f.job.model, config, true);
  const int64_t over_nodes = CollectiveBytes(f.job.model, config, false);
  config.own_memory = true;
  CHECK(CollectiveBytes(f.job.model, config, true) == host + 3 * (int64_t{32} << 20));
  CHECK(CollectiveBytes(f.job.model, config, false) - over_nodes ==
        3 * (int64_t{32} << 20) + ReadyMessageCollectiveBytes(2) - MessageCollectiveBytes(2));
  CHECK(ReadyMessageCollectiveBytes(1) == 0);
  // Twice two slots both ways, three shorter pieces, half a message that is added up, and four words of an end.
  CHECK(ReadyMessageCollectiveBytes(3) == 2 * 11 * (256 << 10) + (128 << 10) + 2 * 4 * 512);
}

TEST_CASE("the host copies 12 bytes for each parameter that a rank writes to checkpoints") {
  FourStages f;
  f.job.own_memory = true;
  const auto host = [&](size_t stage) { return MemoryOfPlan(f.job, f.plan)[stage].host_bytes; };
  const auto copies = [&](size_t stage) {
    f.job.checkpoint.path.clear();
    const int64_t without = host(stage);
    f.job.checkpoint.path = "/checkpoints";
    return host(stage) - without;
  };
  const auto parameters = [&](size_t stage) {
    return ParameterCountPerRank(f.job.model, f.plan.stages[stage].layers, 1);
  };
  for (const size_t stage : {0, 1, 3}) {
    CHECK(copies(stage) == 12 * parameters(stage));
  }
  // Replicas take turns, layer by layer.
  const int64_t layers = f.plan.stages[1].layers.count();
  f.job.parallelism.data = 3;
  CHECK(copies(1) == 12 * (parameters(1) / layers) * ((layers + 2) / 3));
  f.plan.zero_stage = 1;  // or have a part of each, but for norms
  const int64_t norms = 2 * f.job.model.hidden_size;
  const int64_t part = ShardElements(parameters(1) / layers - norms, 3);
  CHECK(copies(1) == 12 * (layers * part + (layers + 2) / 3 * norms));
  f.job.own_memory = false;
  CHECK(copies(1) == 0);
}

TEST_CASE("terms of all stages: the sum over any split") {
  FourStages f;
  for (const bool tied : {false, true}) {
    f.job.model.tie_word_embeddings = tied;
    for (const int32_t stages : {1, 2, 3, 7}) {
      int64_t all = 0;
      const NormTermSizes sizes(f.job.model);
      for (const LayerRange& layers : SplitLayers(f.job.model, stages)) {
        all += sizes.Of(layers);
      }
      CHECK(sizes.OfAll(stages) == all);
    }
  }
}

TEST_CASE("a stage needs what its own rank's mode says, whatever the others recompute") {
  FourStages f;
  std::map<Recompute, std::vector<StageMemory>> of_modes;
  for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    f.plan.SetRecompute(mode);
    of_modes[mode] = MemoryOfPlan(f.job, f.plan);
  }
  const std::vector<Recompute> mix{Recompute::kFull, Recompute::kNone, Recompute::kSelective, Recompute::kNone};
  for (size_t rank = 0; rank < mix.size(); ++rank) {
    f.plan.pipeline_ranks[rank].recompute = mix[rank];
  }
  CHECK(!f.plan.SameRecompute().has_value());
  CHECK(RecomputeOfRanks(f.plan) == mix);
  const std::vector<StageMemory> mixed = MemoryOfPlan(f.job, f.plan);
  for (size_t stage = 0; stage < mix.size(); ++stage) {
    const StageMemory& own = of_modes[mix[stage]][stage];
    CHECK(mixed[stage].static_bytes() == own.static_bytes());
    CHECK(mixed[stage].activation_bytes == own.activation_bytes);
    CHECK(mixed[stage].weight_grad_bytes == own.weight_grad_bytes);
  }
  CHECK(of_modes[Recompute::kFull][0].activation_bytes < of_modes[Recompute::kNone][0].activation_bytes);
}

TEST_CASE("most layers: with one more the peak exceeds the capacity") {
  FourStages f;
  f.job.model.tie_word_embeddings = true;
  const PlanMemoryModel memory(f.job, MakeExecutionConfig(f.job, 1, 512, Recompute::kFull), {0, 1, 2, 3});
  const StageFlow flow{.before = 8, .here = 7};
  for (const int32_t stage : {0, 1, 3}) {
    const auto peak = [&](int64_t layers) {
      const LayerRange range{.first = 0, .last = layers - 1, .has_embedding = stage == 0, .has_head = stage == 3};
      return memory.Needs(stage, range).PeakBytes(flow);
    };
    for (const int64_t layers : {1, 2, 9, 31, 32}) {
      CHECK(memory.MostLayers(stage, flow, peak(layers)) == layers);
      CHECK(memory.MostLayers(stage, flow, peak(layers) - 1) == layers - 1);
    }
    CHECK(memory.MostLayers(stage, flow, peak(32) * 2) == 32);
  }
}

TEST_CASE("where the tied gradient outweighs the activations the exchange is the peak") {
  FourStages f;
  f.job.model.tie_word_embeddings = true;
  f.job.training.grad_clip = 1.0;
  f.plan.sequence_length = 1;
  const int64_t tied = int64_t{32'000} * 4096 * 4;
  const std::vector<StageNeeds> needs = NeedsOfPlan(f.job, f.plan);
  const std::vector<StageMemory> memory = MemoryOfPlan(f.job, f.plan);
  REQUIRE(8 * memory[0].activation_bytes < tied);
  const int64_t messages = needs[0].TransportBytes({.before = 0, .here = 8});
  CHECK(memory[0].transport_bytes + 8 * memory[0].activation_bytes == messages + tied);
  CHECK(memory[1].transport_bytes == needs[1].TransportBytes({.before = 8, .here = 7}));
}

TEST_CASE("norm terms are counted by the names of the tensors") {
  ModelSpec model = *ModelPreset("llama-2-70b");
  model.num_hidden_layers = 123;
  for (const LayerRange& range : std::vector<LayerRange>{{.first = 0, .last = 4, .has_embedding = true},
                                                         {.first = 7, .last = 13},
                                                         {.first = 98, .last = 101},
                                                         {.first = 5, .last = 120},
                                                         {.first = 110, .last = 122, .has_head = true},
                                                         {.first = 123, .last = 122, .has_head = true}}) {
    int64_t bytes = 4;
    for (const ParameterTensor& tensor : ParameterTensors(model, range)) {
      bytes += 4 + (static_cast<int64_t>(tensor.name.size()) + 3) / 4 * 4 + 8;
    }
    CHECK(NormTermSizes(model).Of(range) == bytes);
  }
}

}  // namespace
}  // namespace geopipe
