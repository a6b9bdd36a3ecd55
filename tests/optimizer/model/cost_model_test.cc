#include "optimizer/model/cost_model.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

namespace geopipe {
namespace {

SiteSpec Site() {
  return {.name = "north",
          .nodes = 1,
          .devices_per_node = 8,
          .device = {.kind = "npu",
                     .memory_bytes = int64_t{64} << 30,
                     .peak_flops = 320e12,
                     .memory_bandwidth_bytes_per_s = 1.6e12,
                     .intra_node_bandwidth_bytes_per_s = 200e9,
                     .efficiency = 0.5}};
}

ExecutionConfig Config(int64_t tensor) {
  return {.micro_batch_size = 1,
          .sequence_length = 4096,
          .tensor = tensor,
          .data = 1,
          .sequence_parallel = tensor > 1,
          .zero_stage = 1,
          .recompute = Recompute::kNone,
          .precision = Precision::kBf16,
          .attention = Attention::kDense};
}

TEST_CASE("roofline: the slower of arithmetic and traffic") {
  const DeviceSpec device = Site().device;
  // 4096 tokens: efficiency 0.5 * 4096 / 4352.
  CHECK(Efficiency(device, 4096) == Approx(0.5 * 4096 / 4352).epsilon(1e-12));
  const ProductShape shape{4096, 4096, 128};
  CHECK(RooflineSeconds({.flops = 320'000'000'000, .bytes = 0}, device, shape) ==
        Approx(1e-3 / (0.5 * 4096 / 4352)).epsilon(1e-12));
  CHECK(RooflineSeconds({.flops = 1, .bytes = 1'600'000'000}, device, shape) == Approx(1e-3).epsilon(1e-12));
  CHECK(Efficiency(device, 128) < Efficiency(device, 256));
}

TEST_CASE("attention's products have an efficiency of their own, of the device or as part of the others'") {
  DeviceSpec device = Site().device;
  CHECK(AttentionEfficiency(device, {4096, 4096, 128}) == Approx(0.35 * 0.5 * 4096 / 4352).epsilon(1e-12));
  CHECK(AttentionEfficiency(device, {1024, 256, 128}) == Approx(0.35 * 0.5 / 2).epsilon(1e-12));
  CHECK(AttentionEfficiency(device, {1024, 256, 256}) == AttentionEfficiency(device, {512, 256, 128}));
  // Heads of 64: two thirds of 64 against four fifths of 128.
  CHECK(AttentionShapeShare({1024, 256, 64}) == Approx(0.5 * (2.0 / 3) / 0.8).epsilon(1e-12));
  device.attention_efficiency = 0.3;
  CHECK(AttentionEfficiency(device, {1024, 256, 128}) == Approx(0.15).epsilon(1e-12));

  const ProductShape shape{4096, 4096, 128};
  const Work products{.flops = 320'000'000'000, .bytes = 0};
  const Work attention{.flops = 320'000'000'000, .bytes = 0, .attention_flops = 320'000'000'000};
  const Work traffic{.flops = 0, .bytes = 1'600'000'000, .streamed_bytes = 1'600'000'000};
  Work all = products;
  all += attention;
  all += traffic;
  const double products_s = RooflineSeconds(products, device, shape);
  const double attention_s = RooflineSeconds(attention, device, shape);
  CHECK(attention_s == Approx(1e-3 / (0.3 * 4096 / 4352)).epsilon(1e-12));
  CHECK(RooflineSeconds(all, device, shape) == Approx(products_s + attention_s).epsilon(1e-12));
  device.roofline = Roofline::kOperation;
  const double sum_s = RooflineSeconds(products, device, shape) + attention_s + 1e-3;
  CHECK(RooflineSeconds(all, device, shape) == Approx(sum_s).epsilon(1e-12));
}

TEST_CASE("a ring all-reduce moves 2(t-1)/t of the bytes") {
  CHECK(AllReduceSeconds(1'000'000, 1, 0) == 0);
  CHECK(AllReduceSeconds(1'000'000, 8, 1e9) == Approx(2 * 7.0 / 8 * 1e-3).epsilon(1e-12));
}

TEST_CASE("a reduction over nodes is one within each and one of every replica's share over all") {
  const ReplicaGroup together{.nodes = 1, .max_per_node = 4, .min_per_node = 4, .node_bandwidth_bytes_per_s = 1e9};
  CHECK(AllReduceSeconds(1'000'000, together) == AllReduceSeconds(1'000'000, 4, 1e9));
  CHECK(AllReduceSeconds(1'000'000, ReplicaGroup{}) == 0);
  const ReplicaGroup spread{.nodes = 4,
                            .max_per_node = 2,
                            .min_per_node = 2,
                            .node_bandwidth_bytes_per_s = 100e9,
                            .network_bandwidth_bytes_per_s = 10e9,
                            .network_latency_ns = 5'000};
  // 2 * 1/2 of 1 GB at 100 GB/s, 2 * 3/4 of half of it at 10 GB/s, six hops.
  CHECK(AllReduceSeconds(1'000'000'000, spread) == Approx(0.01 + 0.075 + 30e-6).epsilon(1e-12));
}

TEST_CASE("a block is roofline plus two all-reduces of b*s*h each way") {
  const ModelSpec model = *ModelPreset("llama-2-13b");
  const ModelCosts costs = *AnalyticCosts(model, Config(8), Site());
  const PartWork work = BlockWork(model, Config(8));
  // 2 all-reduces of 4096 * 5120 * 2 bytes over 8 ranks at 200 GB/s.
  const double collectives = 2 * 2 * (7.0 / 8) * 41'943'040 / 200e9;
  const double forward = RooflineSeconds(work.forward, Site().device, {4096, 4096, 128}) + collectives;
  CHECK(std::abs(static_cast<double>(costs.block.forward_ns) - forward * 1e9) <= 0.5);
  // W gathers both inputs again: half an all-reduce each.
  const double weight_grad = RooflineSeconds(work.weight_grad, Site().device, {4096, 4096, 128}) + collectives / 2;
  CHECK(std::abs(static_cast<double>(costs.block.weight_grad_ns) - weight_grad * 1e9) <= 0.5);
  CHECK(costs.adamw_ns_per_parameter == Approx(30 / 1.6e12 * 1e9).epsilon(1e-12));
}

TEST_CASE("tensor ranks sum two results each way, or scatter and gather rows, which W gathers again") {
  const ModelSpec model = *ModelPreset("llama-2-13b");
  const auto bytes = [&](const ExecutionConfig& config, ModelPart part) {
    const PartTable<Demand> demands = DemandsOf(model, config);
    std::array<int64_t, 3> all{};
    for (const PartAction action : kPartActions) {
      all.at(static_cast<size_t>(action)) = demands.at(part, action).collective_bytes;
    }
    return all;
  };
  using Bytes = std::array<int64_t, 3>;
  const int64_t m = 41'943'040;
  const int64_t loss = 3 * 4 * 4096;  // three numbers of each row
  ExecutionConfig config = Config(8);
  CHECK(bytes(config, ModelPart::kEmbedding) == Bytes{m / 2, m / 2, 0});
  CHECK(bytes(config, ModelPart::kBlock) == Bytes{2 * m, 2 * m, m});
  CHECK(bytes(config, ModelPart::kHead) == Bytes{m / 2 + loss, m / 2, m / 2});
  config.recompute = Recompute::kFull;
  CHECK(bytes(config, ModelPart::kBlock) == Bytes{2 * m, 2 * m + 3 * m / 2, m});
  config.sequence_parallel = false;
  CHECK(bytes(config, ModelPart::kEmbedding) == Bytes{m, 0, 0});
  CHECK(bytes(config, ModelPart::kBlock) == Bytes{2 * m, 3 * m, 0});
  CHECK(bytes(config, ModelPart::kHead) == Bytes{loss, m, 0});
  CHECK(bytes(Config(1), ModelPart::kHead) == Bytes{0, 0, 0});
}

TEST_CASE("recomputation costs time") {
  const ModelSpec model = *ModelPreset("llama-2-13b");
  ExecutionConfig config = Config(8);
  const ModelCosts none = *AnalyticCosts(model, config, Site());
  config.recompute = Recompute::kSelective;
  const ModelCosts selective = *AnalyticCosts(model, config, Site());
  config.recompute = Recompute::kFull;
  const ModelCosts full = *AnalyticCosts(model, config, Site());
  CHECK(none.block.input_grad_ns < selective.block.input_grad_ns);
  CHECK(selective.block.input_grad_ns < full.block.input_grad_ns);
  CHECK(none.block.forward_ns == full.block.forward_ns);
}

TEST_CASE("a missing device figure is named") {
  const ModelSpec model = *ModelPreset("llama-2-13b");
  SiteSpec site = Site();
  site.device.peak_flops = 0;
  const absl::Status status = AnalyticCosts(model, Config(1), site).status();
  CHECK(std::string(status.message()) ==
        "site \"north\": device.peak_flops is 0, and no profile replaces the cost model; give the figure or a profile");
  site = Site();
  site.device.intra_node_bandwidth_bytes_per_s = 0;
  CHECK(AnalyticCosts(model, Config(1), site).ok());
  CHECK_FALSE(AnalyticCosts(model, Config(8), site).ok());
}

}  // namespace
}  // namespace geopipe
