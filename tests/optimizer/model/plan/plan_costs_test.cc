#include "optimizer/model/plan/plan_costs.h"

#include <catch2/catch.hpp>
#include <string>

#include "optimizer/model/memory_model.h"
#include "optimizer/model/transformer.h"
#include "tests/support/durations.h"
#include "tests/support/tiny_model.h"

namespace geopipe {
namespace {

// Three sites in a chain, one device each; the profile makes every duration a round number.
struct Fixture {
  JobSpec job;
  ClusterSpec cluster;
  Profile profile;
  Plan plan;

  Fixture() {
    job.parallelism.tensor = 1;
    job.parallelism.data = 1;
    job.model = TinyModel();
    job.model.intermediate_size = 160;
    job.model.num_attention_heads = 8;
    job.model.num_key_value_heads = 4;
    job.model.vocab_size = 256;
    job.training.tokens_per_iteration = 128 * 2 * 8;
    job.training.grad_clip.reset();
    const DeviceSpec device{.memory_bytes = 1 << 30};
    cluster.sites = {{"a", 1, 1, device}, {"b", 1, 1, device}, {"c", 1, 1, device}};
    cluster.links = {{"a", "b", 20 * kMs, 1e6}, {"b", "c", 30 * kMs, 2e6}};
    plan.micro_batch_size = 2;
    plan.sequence_length = 128;
    plan.micro_batches = 8;
    plan.delta_n = {2, 1};
    const std::vector<LayerRange> layers = SplitLayers(job.model, 3);
    for (int32_t stage = 0; stage < 3; ++stage) {
      const std::string site = cluster.sites[stage].name;
      plan.Append({.site = site, .capacity_bytes = 1 << 30}, layers[stage]);
      profile.entries.push_back({.site = site,
                                 .node = "n0",
                                 .device = 0,
                                 .micro_batch_size = 2,
                                 .sequence_length = 128,
                                 .embedding = {1, 0, 2},
                                 .block = {10, 20, 30},
                                 .head = {100, 200, 300},
                                 .adamw_ns_per_million_parameters = 0});
    }
  }

  absl::StatusOr<PipelineCosts> Costs() const {
    return CostsOfPlan(job, cluster, CostSource(job, cluster, &profile), plan);
  }
};

TEST_CASE("stages add up their parts, crossings take the link, memory follows ΔN") {
  const Fixture f;
  const PipelineCosts costs = *f.Costs();
  CHECK(costs.forward_ns == std::vector<int64_t>{21, 20, 120});
  CHECK(costs.input_grad_ns == std::vector<int64_t>{40, 40, 240});
  CHECK(costs.weight_grad_ns == std::vector<int64_t>{62, 60, 360});
  // 2 * 128 * 64 * 4 = 65,536 bytes.
  CHECK(costs.boundaries[0] == BoundaryCost{true, "a-b", 65'536, 20 * kMs, 65'536'000});
  CHECK(costs.boundaries[1] == BoundaryCost{true, "b-c", 65'536, 30 * kMs, 32'768'000});
  CHECK(costs.epilogue_ns == 0);
  const int64_t message = 65'536;
  const MemoryCosts& memory = *costs.memory;
  const auto without_transport = [&](int32_t stage) {
    return MemoryOfStage(f.job.model, f.plan.stages[stage].layers, {.micro_batch_size = 2, .sequence_length = 128})
        .static_bytes();
  };
  // 6, 3 and 1 micro-batches are in flight. Slots: 6, 6 + 3, 3. Sends: 6 activations; 3 and 3 gradients; 2 gradients.
  CHECK(memory.static_bytes[0] == without_transport(0) + (6 + 6) * message);
  CHECK(memory.static_bytes[1] == without_transport(1) + (9 + 6) * message);
  CHECK(memory.static_bytes[2] == without_transport(2) + (3 + 2) * message);
  CHECK(WanBytesPerIteration(costs, 1) == 2 * 2 * 8 * message);
}

TEST_CASE("a rank that recomputes does its own forward again, and no other's") {
  Fixture f;
  f.plan.pipeline_ranks[1].recompute = Recompute::kFull;
  const PipelineCosts costs = *f.Costs();
  CHECK(costs.forward_ns == std::vector<int64_t>{21, 20, 120});
  CHECK(costs.input_grad_ns == std::vector<int64_t>{40, 58, 240});  // all of its forward but the down projection
  CHECK(costs.weight_grad_ns == std::vector<int64_t>{62, 60, 360});
  f.plan.SetRecompute(Recompute::kNone);
  const PipelineCosts none = *f.Costs();
  CHECK(costs.memory->activation_bytes[0] == none.memory->activation_bytes[0]);
  CHECK(costs.memory->activation_bytes[1] < none.memory->activation_bytes[1]);
  CHECK(costs.memory->activation_bytes[2] == none.memory->activation_bytes[2]);
}

TEST_CASE("a blocking plan waits for acknowledgements, one latency each") {
  Fixture f;
  f.plan.comm = CommMode::kBlocking;
  CHECK(f.Costs()->boundaries[0].acknowledgement_ns == 20 * kMs);
  CHECK(f.Costs()->boundaries[1].acknowledgement_ns == 30 * kMs);
}

TEST_CASE("what messages cost besides their link is in every boundary") {
  Fixture f;
  f.profile.messages = {{.site = "a", .node = "n0", .device = 0, .bytes = 65'536, .whole_ns = 900, .fixed_ns = 300},
                        {.site = "b", .node = "n0", .device = 0, .bytes = 131'072, .whole_ns = 900, .fixed_ns = 500}};
  // The link takes longer than the work per byte and hides all of it: only the fixed work counts.
  CHECK(f.Costs()->boundaries[0].overhead_ns == 400);
  CHECK(f.Costs()->boundaries[0].acknowledgement_ns == 0);
  CHECK(f.Costs()->boundaries[1].overhead_ns == 500);  // site c has measured nothing
  f.plan.comm = CommMode::kBlocking;
  CHECK(f.Costs()->boundaries[0].acknowledgement_ns == 20 * kMs + 400);
  f.plan.comm = CommMode::kNonBlocking;
  // Both stages in one site: all of the work per byte, (900 - 500) / 2 for half as many.
  f.plan.pipeline_ranks[2].site = f.plan.pipeline_ranks[1].site;
  f.plan.delta_n = {2};
  const BoundaryCost inside = f.Costs()->boundaries[1];
  CHECK_FALSE(inside.crosses);
  CHECK(inside.overhead_ns == 700);
}

TEST_CASE("the norm's latency hides behind the pipeline's own ways, unless its terms take a slower one") {
  Fixture f;
  f.job.training.grad_clip = 1.0;
  CHECK(f.Costs()->epilogue_ns == 0);
  CHECK(*PathLatencyNs(f.cluster, "c", "a") == 50 * kMs);
  CHECK(*PathLatencyNs(f.cluster, "b", "b") == 0);
  f.cluster.links.push_back({"a", "c", 200 * kMs, 1e6});
  // Stage 0's terms reach stage 2 in 200 ms; its next activation takes 20 + 30 ms of latency, 65.536 + 32.768 ms of
  // serialization and two forwards.
  CHECK(f.Costs()->epilogue_ns == 200 * kMs - 50 * kMs - 65'536'000 - 32'768'000 - (21 + 20));
}

TEST_CASE("a blocking stage sends its norm terms when its last gradient is acknowledged") {
  Fixture f;
  f.plan.comm = CommMode::kBlocking;
  CHECK(f.Costs()->epilogue_ns == 0);
  f.job.training.grad_clip = 1.0;
  // Stage 1's gradient came to stage 0 one backward (40 + 62) before the end; 20 ms later stage 1 knows, and its terms
  // take 20 ms.
  CHECK(f.Costs()->epilogue_ns == 2 * 20 * kMs - (40 + 62));
}

TEST_CASE("the weight update counts where nothing hides it") {
  Fixture f;
  // 20 us per parameter; without clipping a stage's update hides behind its gradient's way to stage 0 and its next
  // input's way from there.
  for (ProfileEntry& entry : f.profile.entries) {
    entry.adamw_ns_per_million_parameters = 20'000'000'000;
  }
  const int64_t first = 20'000 * ParameterCount(f.job.model, f.plan.stages[0].layers);
  const int64_t middle = 20'000 * ParameterCount(f.job.model, f.plan.stages[1].layers);
  const int64_t last = 20'000 * ParameterCount(f.job.model, f.plan.stages[2].layers);
  const int64_t to_middle = 20 * kMs + 65'536'000;
  const int64_t to_last = to_middle + 30 * kMs + 32'768'000;
  CHECK(f.Costs()->epilogue_ns == std::max({first, middle - 2 * to_middle - (40 + 62) - 21,
                                            last - 2 * to_last - (40 + 62) - (40 + 60) - (21 + 20)}));
  // A clipped stage's update begins when stage 0's terms have come.
  f.job.training.grad_clip = 1.0;
  CHECK(f.Costs()->epilogue_ns ==
        std::max({first, middle + 20 * kMs - to_middle - 21, last + 50 * kMs - to_last - 41}));
}

TEST_CASE("tied embeddings exchange their gradients between the ends") {
  Fixture f;
  f.job.model.tie_word_embeddings = true;
  f.cluster.links.push_back({"a", "c", 5 * kMs, 2e5});
  // 256 * 64 * 4 = 65,536 bytes at 200 kB/s and 5 ms; the last stage waits for stage 0's share, and its next forward
  // comes later by two forwards and crossings.
  CHECK(f.Costs()->epilogue_ns == 5 * kMs + 327'680'000 - 50 * kMs - 65'536'000 - 32'768'000 - 41);
}

TEST_CASE("data-parallel replicas share a crossing") {
  Fixture f;
  f.job.parallelism.data = 2;
  for (SiteSpec& site : f.cluster.sites) {
    site.device.intra_node_bandwidth_bytes_per_s = 1e12;
  }
  CHECK(f.Costs()->boundaries[0].serialization_ns == 2 * 65'536'000);
  CHECK(WanBytesPerIteration(*f.Costs(), 2) == 2 * 2 * 2 * 8 * 65'536);
}

TEST_CASE("offloaded states pass to the device and back while they are updated") {
  Fixture f;
  f.job.parallelism.offload = Offload::kOptimizer;
  CHECK(f.Costs().status().message() ==
        "site \"a\": device.host_bandwidth is not given, and parallelism.offload needs it");
  const auto adamw_ns = [&](Precision precision) {
    f.job.precision = precision;
    return PartsOfPlan(f.job, f.cluster, CostSource(f.job, f.cluster, &f.profile), f.plan)
        ->stages[0]
        .costs.adamw_ns_per_parameter;
  };
  for (SiteSpec& site : f.cluster.sites) {
    site.device.host_bandwidth_bytes_per_s = 32e9;
  }
  f.job.parallelism.offload = Offload::kNone;
  const double without_ns = adamw_ns(Precision::kBf16);
  f.job.parallelism.offload = Offload::kOptimizer;
  // Master weights and two moments, there and back; fp32 weights stay.
  CHECK(adamw_ns(Precision::kBf16) - without_ns == Approx(2 * 12 / 32.0));
  CHECK(adamw_ns(Precision::kFp32) - without_ns == Approx(2 * 8 / 32.0));
}

// One site of two nodes; tensor 1, data 4 over both; four layers a stage, of which a bucket's gradients take `bytes`.
struct Replicated : Fixture {
  explicit Replicated(NetworkSpec network) {
    DeviceSpec device{.memory_bytes = 1 << 30};
    device.intra_node_bandwidth_bytes_per_s = 1e9;
    cluster.sites = {{.name = "a", .nodes = 4, .devices_per_node = 2, .device = device, .network = network}};
    job.parallelism.data = 4;
    job.model.num_hidden_layers = 8;
    job.training.tokens_per_iteration *= 4;
    plan.stages.clear();
    plan.pipeline_ranks.clear();
    plan.devices.clear();
    plan.delta_n.clear();
    plan.grid.data = 4;
    const std::vector<LayerRange> layers = SplitLayers(job.model, 2);
    for (int32_t stage = 0; stage < 2; ++stage) {
      std::vector<DevicePlace> places;
      for (int32_t i = 0; i < 4; ++i) {
        places.push_back({.node = 2 * stage + i / 2, .device = i % 2});
      }
      plan.Append({.site = "a", .capacity_bytes = 1 << 30}, layers[static_cast<size_t>(stage)], places);
    }
    profile.entries.resize(1);
    profile.entries[0].site = "a";
  }

  // Duration of the reduction of so many parameters.
  int64_t ReductionNs(int64_t parameters) const {
    const double bytes = 4.0 * static_cast<double>(parameters);
    const double shared = cluster.sites[0].network.per == NetworkSpec::Per::kNode ? 2 : 1;
    return static_cast<int64_t>(
        1e9 * (bytes / 1e9 + bytes / 2 * shared / cluster.sites[0].network.bandwidth_bytes_per_s) + 2 * 1000);
  }
};

TEST_CASE("ZeRO 2 scatters gradients behind every backward, and 3 gathers weights before whatever needs them") {
  Replicated f({.bandwidth_bytes_per_s = 1e8, .latency_ns = 1000});
  const int64_t layer = ParameterCount(f.job.model, {.first = 0, .last = 0});
  const int64_t half_ns = f.ReductionNs(layer) / 2;  // as many bytes of gradients as of weights: fp32
  // Layers that take nothing, less than one transfer, and more than all.
  for (const int64_t layer_ns : {int64_t{0}, half_ns / 2, 3 * half_ns}) {
    CAPTURE(layer_ns, half_ns);
    f.profile.entries[0].block = {.forward_ns = layer_ns, .input_grad_ns = layer_ns, .weight_grad_ns = layer_ns};
    const auto block_of = [&](int32_t zero_stage) {
      f.plan.zero_stage = zero_stage;
      return PartsOfPlan(f.job, f.cluster, CostSource(f.job, f.cluster, &f.profile), f.plan)->stages[1].costs.block;
    };
    const PartCosts plain = block_of(1);
    CHECK(plain.forward_ns == layer_ns);
    const PartCosts two = block_of(2);
    CHECK(two.forward_ns == layer_ns);
    CHECK(two.input_grad_ns == layer_ns);
    CHECK(std::abs(two.weight_grad_ns - std::max(layer_ns, half_ns - layer_ns)) <= 1);
    const PartCosts three = block_of(3);
    CHECK(std::abs(three.forward_ns - std::max(layer_ns, half_ns)) <= 1);
    CHECK(std::abs(three.input_grad_ns - std::max(layer_ns, half_ns)) <= 1);
    CHECK(std::abs(three.input_grad_ns + three.weight_grad_ns -
                   std::max({2 * layer_ns, 2 * half_ns, half_ns + layer_ns})) <= 2);
  }
  // The last backward leaves its last bucket to reduce; ZeRO 3 need not gather what AdamW updates.
  const auto update_ns = [&](int32_t zero_stage) {
    f.plan.zero_stage = zero_stage;
    const PlanParts parts = *PartsOfPlan(f.job, f.cluster, CostSource(f.job, f.cluster, &f.profile), f.plan);
    const PlanMemoryModel memory(f.job, parts.config, {0, 1});
    return StageUpdateNs(parts, memory, 1, {.first = 4, .last = 7});
  };
  const int64_t all_ns = f.ReductionNs(4 * layer) / 2;
  CHECK(std::abs(update_ns(2) - (half_ns + all_ns)) <= 2);
  CHECK(std::abs(update_ns(3) - half_ns) <= 2);
}

TEST_CASE("replicas reduce over the site's network what the last backward does not hide") {
  const auto per = GENERATE(NetworkSpec::Per::kDevice, NetworkSpec::Per::kNode);
  Replicated f({.bandwidth_bytes_per_s = 1e8, .latency_ns = 1000, .per = per});
  const PlanMemoryModel memory(f.job, MakeExecutionConfig(f.job, 2, 128, Recompute::kNone), {0, 1});
  // Layers whose backward takes ever longer: at first all is exposed but what the others' backward hides, at last one
  // bucket.
  for (const int64_t layer_ns : {int64_t{0}, kMs / 10, kMs, 10 * kMs, kSecond}) {
    f.profile.entries[0].block = {.forward_ns = 10, .input_grad_ns = layer_ns, .weight_grad_ns = 0};
    const PlanParts parts = *PartsOfPlan(f.job, f.cluster, CostSource(f.job, f.cluster, &f.profile), f.plan);
    for (const size_t stage : {size_t{0}, size_t{1}}) {
      const LayerRange& range = f.plan.stages[stage].layers;
      // Bucket by bucket: the head, the layers from the last to the first, the first with the embedding.
      const LayerRange one{.first = range.first, .last = range.first, .has_embedding = false, .has_head = false};
      const LayerRange with_embedding{
          .first = range.first, .last = range.first, .has_embedding = true, .has_head = false};
      const int64_t layer = memory.Parameters(one);
      const int64_t head = stage == 1 ? memory.Parameters(range) - range.count() * layer : 0;
      int64_t reduced_ns = f.ReductionNs(head);
      int64_t backward_ns = 0;
      for (int64_t i = range.count(); i > 0; --i) {
        backward_ns += layer_ns;
        const int64_t bucket = i == 1 && stage == 0 ? memory.Parameters(with_embedding) : layer;
        reduced_ns = std::max(reduced_ns, backward_ns) + f.ReductionNs(bucket);
      }
      INFO(layer_ns << " " << stage);
      CHECK(StageUpdateNs(parts, memory, stage, range) == Approx(reduced_ns - backward_ns).epsilon(1e-3));
      CHECK(MinStageUpdateNs(parts, memory, stage, range) <= StageUpdateNs(parts, memory, stage, range));
    }
  }
}

TEST_CASE("a message between nodes of a site takes their network, one between two stages of a node does not") {
  Replicated f({.bandwidth_bytes_per_s = 1e8, .latency_ns = 1000, .per = NetworkSpec::Per::kDevice});
  const int64_t bytes = 65'536;
  CHECK(f.Costs()->boundaries[0].overhead_ns == 1000 + bytes * 10);
  CHECK_FALSE(f.Costs()->boundaries[0].crosses);
  f.cluster.sites[0].network.per = NetworkSpec::Per::kNode;
  CHECK(f.Costs()->boundaries[0].overhead_ns == 1000 + 2 * bytes * 10);
  for (size_t i = 0; i < f.plan.devices.size(); ++i) {
    f.plan.devices[i] = {.node = static_cast<int32_t>(i % 4), .device = static_cast<int32_t>(i / 4)};
  }
  CHECK(f.Costs()->boundaries[0].overhead_ns == 0);
  f.cluster.sites[0].network = {};
  CHECK(f.Costs().status().message() ==
        "site \"a\": its network is not given, and replicas of a stage on 4 nodes need it");
}

TEST_CASE("between groups of a site a message takes its network, and no link") {
  Fixture f;
  f.cluster.sites[0].name = "a/0";
  f.cluster.sites[1].name = "a/1";
  for (SiteSpec& site : f.cluster.sites) {
    site.network = {.bandwidth_bytes_per_s = 1e8, .latency_ns = 1000};
    site.device.peak_flops = 1e12;
    site.device.memory_bandwidth_bytes_per_s = 1e11;
  }
  f.cluster.links = {{"a/0", "a/1", 1000, 1e8}, {"a/0", "c", 30 * kMs, 2e6}, {"a/1", "c", 30 * kMs, 2e6}};
  f.plan.pipeline_ranks[0].site = "a/0";
  f.plan.pipeline_ranks[1].site = "a/1";
  f.plan.delta_n = {1};
  const PipelineCosts costs = *CostsOfPlan(f.job, f.cluster, CostSource(f.job, f.cluster, nullptr), f.plan);
  // Both on node 0 of their groups.
  const int64_t bytes = 65'536;
  CHECK(costs.boundaries[0].overhead_ns == 1000 + bytes * 10);
  CHECK_FALSE(costs.boundaries[0].crosses);
  CHECK(costs.boundaries[1] == BoundaryCost{true, "a-c", bytes, 30 * kMs, 32'768'000});
  for (SiteSpec& site : f.cluster.sites) {
    site.network = {};
  }
  f.cluster.links[0] = {"a/0", "a/1", 0, 0};
  f.job.model.tie_word_embeddings = true;
  CHECK(CostsOfPlan(f.job, f.cluster, CostSource(f.job, f.cluster, nullptr), f.plan)->boundaries[0].overhead_ns == 0);
}

TEST_CASE("stages of one site exchange for nothing") {
  Fixture f;
  f.plan.pipeline_ranks[1].site = f.cluster.sites[0].name;
  f.plan.delta_n = {1};
  f.cluster.links.push_back({"a", "c", 35 * kMs, 1e6});
  const PipelineCosts costs = *f.Costs();
  CHECK(costs.boundaries[0] == BoundaryCost{false, std::string(), 65'536, 0, 0});
  CHECK(costs.boundaries[1].link == "a-c");
}

TEST_CASE("neighbours without a link and unknown sites are named") {
  Fixture f;
  f.plan.pipeline_ranks[1].site = f.cluster.sites[2].name;
  f.plan.pipeline_ranks[2].site = f.cluster.sites[1].name;
  CHECK(std::string(f.Costs().status().message()) ==
        "there is no link between \"a\" and \"c\", which are neighbours in the pipeline; add the link or change "
        "placement.sites");
  f.plan.pipeline_ranks[1].site = "nowhere";
  CHECK(std::string(f.Costs().status().message()) == "stage 1 is on site \"nowhere\", which the cluster does not have");
}

}  // namespace
}  // namespace geopipe
