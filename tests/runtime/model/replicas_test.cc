// Parameters of replicas whose devices have memory and queues of their own.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/collective/staged_communicator.h"
#include "runtime/model/init.h"
#include "runtime/model/parameters.h"
#include "runtime/tensor/staging.h"
#include "tests/runtime/model/pipeline_driver.h"
#include "tests/support/seed.h"
#include "tests/support/seeded_device.h"
#include "tests/support/thread_communicator.h"

namespace geopipe {
namespace {

// Weights and moments that differ from seed to seed.
class States final : public WeightSource {
 public:
  explicit States(uint64_t seed) : seed_(seed), weights_(seed) {}

  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override {
    return weights_.Read(name, shape, values);
  }
  absl::StatusOr<bool> ReadMomentsPiece(const TensorPiece&, std::span<float> first, std::span<float> second) override {
    std::ranges::fill(first, 0.5F * static_cast<float>(seed_));
    std::ranges::fill(second, 0.25F * static_cast<float>(seed_));
    return true;
  }

 private:
  const uint64_t seed_;
  LargeRandomWeights weights_;
};

struct Replica {
  Replica(uint64_t seed, ParameterSharding sharding, int64_t rank, std::unique_ptr<Communicator> host)
      : device(seed + 1000 * static_cast<uint64_t>(rank)),
        allocator(int64_t{1} << 26, device),
        backend(device, allocator),
        rooms(allocator, /*max_run_elements=*/1000),
        group(*MakeStagedCommunicator({.allocator = &allocator, .piece_bytes = 1 << 12}, std::move(host))) {
    sharding.data_rank = rank;
    States states(static_cast<uint64_t>(rank) + 1);
    set = std::make_unique<ParameterSet>(
        *ParameterSet::Create(ParameterBuckets(SmallOptions(false).model, {.first = 1, .last = 2}), sharding, states,
                              allocator, backend, &rooms));
  }

  // fp32 weights, moments, and the weights that compute, of all parameters.
  std::vector<float> Values() {
    std::vector<float> values;
    const auto append = [&](const Tensor& tensor) {
      if (tensor.empty()) {
        return;  // another replica updates it
      }
      REQUIRE(ReadOnHost(tensor, [&](const Tensor& host) {
                for (int64_t i = 0; i < host.elements(); ++i) {
                  values.push_back(host.dtype() == DType::kFp32 ? host.fp32()[i]
                                                                : static_cast<float>(host.bf16()[i].bits));
                }
              }).ok());
    };
    for (const Parameter& parameter : set->all()) {
      append(parameter.master);
      append(parameter.first_moment);
      append(parameter.second_moment);
      append(parameter.value);
    }
    return values;
  }

  SeededDevice device;
  Allocator allocator;
  SeededBackend backend;
  SharedRooms rooms;
  std::unique_ptr<ParameterSet> set;
  std::unique_ptr<Communicator> group;  // goes first
};

std::vector<std::unique_ptr<Replica>> ReplicasOf(int32_t count, uint64_t seed, ParameterSharding sharding = {}) {
  std::vector<std::unique_ptr<Communicator>> host = MakeThreadCommunicators(count);
  sharding.data = count;
  std::vector<std::unique_ptr<Replica>> replicas;
  for (int32_t rank = 0; rank < count; ++rank) {
    replicas.push_back(std::make_unique<Replica>(seed, sharding, rank, std::move(host[rank])));
  }
  return replicas;
}

void OnAll(const std::vector<std::unique_ptr<Replica>>& replicas, const std::function<void(Replica&)>& work) {
  std::vector<std::thread> threads;
  for (const std::unique_ptr<Replica>& replica : replicas) {
    threads.emplace_back([&] { work(*replica); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_CASE("a replica gives its states to those that receive, and the others keep theirs, on devices too") {
  const ParameterSharding sharding =
      GENERATE(ParameterSharding{}, ParameterSharding{.precision = Precision::kBf16},
               ParameterSharding{.offloads_optimizer = true},
               ParameterSharding{.precision = Precision::kBf16, .offloads_optimizer = true});
  CAPTURE(static_cast<int>(sharding.precision), sharding.offloads_optimizer);
  for (int i = 0; i < TestSeeds(4); ++i) {
    INFO("seed " << TestSeed() + i);
    const auto replicas = ReplicasOf(3, TestSeed() + i, sharding);
    const std::vector<float> given = replicas[0]->Values();
    const std::vector<float> kept = replicas[2]->Values();
    REQUIRE(given != kept);
    OnAll(replicas, [](Replica& replica) {
      CHECK(replica.set->UseGroups({.data = replica.group.get()}).ok());
      CHECK(replica.set->ShareStates(/*giver=*/0, /*receives=*/replica.group->rank() == 1).ok());
    });
    CHECK(replicas[0]->Values() == given);
    CHECK(replicas[1]->Values() == given);
    CHECK(replicas[2]->Values() == kept);
  }
}

TEST_CASE("an abandoned iteration leaves nothing under way, and states as they were") {
  const int32_t zero_stage = GENERATE(0, 1, 2);
  CAPTURE(zero_stage);
  const auto replicas = ReplicasOf(2, TestSeed(), {.zero_stage = zero_stage});
  std::vector<std::vector<float>> before(2);
  OnAll(replicas, [&](Replica& replica) {
    CHECK(replica.set->UseGroups({.data = replica.group.get()}).ok());
    for (const int64_t layer : {1, 2}) {
      CHECK(replica.set->Use(replica.set->BucketOf(BucketKind::kLayer, layer), std::nullopt).ok());
    }
    before[static_cast<size_t>(replica.group->rank())] = replica.Values();
  });
  // The other replica never comes to the sums of these gradients.
  Replica& replica = *replicas[0];
  REQUIRE(replica.set->BeginIteration().ok());
  for (const int64_t layer : {1, 2}) {
    const size_t bucket = replica.set->BucketOf(BucketKind::kLayer, layer);
    REQUIRE(replica.set->BeginGradients(bucket).ok());
    REQUIRE(replica.set->EndGradients(bucket, /*last=*/true).ok());
  }
  const absl::Status why = absl::CancelledError("the epoch has ended");
  replicas[1]->group->Abort(why);
  replica.set->Abandon();
  replica.group = nullptr;
  replica.set->LeaveGroups();
  CHECK(replica.device.WaitIdle(DeviceDeadlineNs()).ok());
  CHECK(replica.Values() == before[0]);
  CHECK(replica.set->BeginIteration().ok());
}

}  // namespace
}  // namespace geopipe
