#include "runtime/executor/rank_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/tensor/staging.h"
#include "tests/support/durations.h"
#include "tests/support/in_process_transport.h"
#include "tests/support/seed.h"
#include "tests/support/seeded_device.h"

namespace geopipe {
namespace {

constexpr int64_t kElements = 1000;

// Two tensor ranks of one key-value head and two replicas, these on nodes of their own.
Plan PlanOverTwoNodes() {
  Plan plan;
  plan.grid = {.pipeline = 1, .data = 2, .tensor = 2};
  plan.pipeline_ranks.push_back({.site = "a"});
  for (int32_t rank = 0; rank < plan.grid.size(); ++rank) {
    plan.devices.push_back({.node = plan.grid.At(rank).data, .device = plan.grid.At(rank).tensor});
  }
  return plan;
}

// The sum of all ranks' numbers over the group, read from the device's memory; nullopt: an error.
std::optional<float> SumOver(Communicator& group, Allocator& allocator, float number) {
  const absl::StatusOr<Tensor> values =
      Tensor::Create(allocator, MemoryCategory::kWorkspace, DType::kFp32, {kElements});
  absl::Status status = FillFromHost(*values, [&](const Tensor& host) {
    std::ranges::fill(host.fp32(), number);
    return absl::OkStatus();
  });
  const absl::StatusOr<Completion> done = group.AllReduce(ReduceOp::kSum, ElementsOf(*values), ElementsOf(*values));
  status.Update(done.ok() ? group.Join(*done) : done.status());
  std::optional<float> sum;
  status.Update(ReadOnHost(*values, [&](const Tensor& host) {
    const std::span<const float> all = host.fp32();
    sum = std::ranges::count(all, all.front()) == kElements ? std::optional(all.front()) : std::nullopt;
  }));
  return status.ok() ? sum : std::nullopt;
}

TEST_CASE("ranks come together on processors and on devices, in shared memory and over messages") {
  const bool on_devices = GENERATE(false, true);
  CAPTURE(on_devices);
  const Plan plan = PlanOverTwoNodes();
  ModelSpec model;
  model.num_key_value_heads = 1;
  const std::string epoch = fmt::format("epoch of {}", Clock::Real().NowNs());
  std::vector<std::unique_ptr<SeededDevice>> devices;
  std::vector<std::unique_ptr<Allocator>> allocators;
  InProcessNetwork network(plan.grid.size());
  for (int32_t rank = 0; rank < plan.grid.size(); ++rank) {
    devices.push_back(std::make_unique<SeededDevice>(TestSeed() + static_cast<uint64_t>(rank)));
    Device& device = on_devices ? static_cast<Device&>(*devices.back()) : HostDevice();
    allocators.push_back(std::make_unique<Allocator>(int64_t{1} << 28, device));
    for (const ChannelSpec& channel : RankGrouping(plan, model, rank).Channels()) {
      network.Add(channel);
    }
  }
  std::vector<std::vector<std::optional<float>>> sums(static_cast<size_t>(plan.grid.size()));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < plan.grid.size(); ++rank) {
    threads.emplace_back([&, rank] {
      Allocator& allocator = *allocators[rank];
      const std::unique_ptr<MessageTransport> transport = network.Endpoint(rank, allocator.staging());
      ActionWatch watch;
      const auto collectives = RankCollectives::Join(RankGrouping(plan, model, rank),
                                                     {.epoch = epoch,
                                                      .secret = "the secret",
                                                      .join_deadline_ns = Clock::Real().NowNs() + 30 * kSecond,
                                                      .longest_wait_ns = 30 * kSecond,
                                                      .allocator = &allocator,
                                                      .watch = &watch},
                                                     *transport);
      if (!collectives.ok()) {
        return;
      }
      const RankGroups groups = (*collectives)->groups();
      for (Communicator* const group : {groups.tensor, groups.key_value, groups.data}) {
        sums[rank].push_back(SumOver(*group, allocator, static_cast<float>(1 << rank)));
      }
      (*collectives)->Finish();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  using Sums = std::vector<std::optional<float>>;
  CHECK(sums == std::vector<Sums>{{3, 3, 5}, {3, 3, 10}, {12, 12, 5}, {12, 12, 10}});
}

}  // namespace
}  // namespace geopipe
