// Groups over a transport between threads of the test.
#include <catch2/catch.hpp>

#include "optimizer/model/collective_memory.h"
#include "runtime/collective/host_communicator.h"
#include "tests/runtime/collective/communicator_suite.h"
#include "tests/support/in_process_transport.h"

namespace geopipe {
namespace {

Allocator& MessageMemory() {
  static Allocator allocator(int64_t{4} << 30);
  return allocator;
}

// Ranks of a job's transport, not the first ones, and in an order of their own.
struct Job {
  explicit Job(int32_t size) : network(2 * size) {
    for (int32_t rank = 0; rank < size; ++rank) {
      group.ranks.push_back(2 * (size - rank) - 1);
    }
    for (int32_t rank = 0; rank < size; ++rank) {
      for (const ChannelSpec& channel : CollectiveChannels(group, rank)) {
        network.Add(channel);
      }
      transports.push_back(network.Endpoint(group.ranks[static_cast<size_t>(rank)], MessageMemory()));
    }
  }

  InProcessNetwork network;
  MessageGroup group{.id = 5, .ranks = {}};
  std::vector<std::unique_ptr<MessageTransport>> transports;
};

// The communicator, and what it needs.
class OnJob final : public Communicator {
 public:
  OnJob(std::shared_ptr<Job> job, std::unique_ptr<Communicator> of) : job_(std::move(job)), of_(std::move(of)) {}
  int32_t rank() const override { return of_->rank(); }
  int32_t size() const override { return of_->size(); }
  absl::StatusOr<Completion> Broadcast(int32_t root, const Elements& data) override {
    return of_->Broadcast(root, data);
  }
  absl::StatusOr<Completion> Reduce(ReduceOp op, int32_t root, const ConstElements& in, const Elements& out) override {
    return of_->Reduce(op, root, in, out);
  }
  absl::StatusOr<Completion> AllReduce(ReduceOp op, const ConstElements& in, const Elements& out) override {
    return of_->AllReduce(op, in, out);
  }
  absl::StatusOr<Completion> AllGather(const ConstElements& in, const Elements& out) override {
    return of_->AllGather(in, out);
  }
  absl::StatusOr<Completion> Gather(int32_t root, const ConstElements& in, const Elements& out) override {
    return of_->Gather(root, in, out);
  }
  absl::StatusOr<Completion> Scatter(int32_t root, const ConstElements& in, const Elements& out) override {
    return of_->Scatter(root, in, out);
  }
  absl::StatusOr<Completion> ReduceScatter(ReduceOp op, const ConstElements& in, const Elements& out) override {
    return of_->ReduceScatter(op, in, out);
  }
  absl::StatusOr<Completion> AllToAll(const ConstElements& in, const Elements& out) override {
    return of_->AllToAll(in, out);
  }
  absl::StatusOr<Completion> Barrier() override { return of_->Barrier(); }
  absl::Status Join(const Completion& done) override { return of_->Join(done); }
  void Abort(absl::Status why) override { of_->Abort(std::move(why)); }
  absl::Status status() const override { return of_->status(); }

 private:
  std::shared_ptr<Job> job_;
  std::unique_ptr<Communicator> of_;
};

std::vector<std::unique_ptr<Communicator>> MessageGroupOf(const GroupOptions& options) {
  const auto job = std::make_shared<Job>(options.size);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int32_t rank = 0; rank < options.size; ++rank) {
    const auto index = static_cast<size_t>(rank);
    auto communicator = MakeMessageCommunicator({.rank = rank,
                                                 .size = options.size,
                                                 .own_thread = options.own_thread,
                                                 .longest_wait_ns = options.longest_wait_ns,
                                                 .allocator = &MessageMemory(),
                                                 .watch = options.watches.empty() ? nullptr : options.watches[index]},
                                                job->group, *job->transports[index]);
    REQUIRE(communicator.ok());
    group.push_back(std::make_unique<OnJob>(job, *std::move(communicator)));
  }
  return group;
}

TEST_CASE("messages: small operands") { CheckOperations(MessageGroupOf, {1, 2, 3, 4, 5, 6, 7, 8}, {1, 3, 17}); }

TEST_CASE("messages: about a slot of fp32") {
  constexpr int64_t kElements = kCollectiveMessageBytes / 4;
  CheckOperations(MessageGroupOf, {2, 3}, {kElements - 1, kElements, kElements + 1});
}

TEST_CASE("messages: several slots") {
  CheckOperations(MessageGroupOf, {2, 4}, {kCollectiveMessageBytes + 3});
  CheckOperations(MessageGroupOf, {7}, {20'011});
}

TEST_CASE("messages: two groups at once") { CheckTwoGroups(MessageGroupOf); }

TEST_CASE("messages: an abort ends all waits") { CheckAbort(MessageGroupOf); }

TEST_CASE("messages: a rank that does not come") { CheckDeadline(MessageGroupOf); }

TEST_CASE("messages: ranks in different operations") { CheckMismatch(MessageGroupOf); }

TEST_CASE("messages: few are on their way, and a rank holds no more than the planner counts") {
  constexpr int32_t kSize = 3;
  Job job(kSize);
  // Slots, which an in-process transport has none of.
  const int64_t slots = (kSize - 1) * (kCollectiveMessageSlots * kCollectiveMessageBytes + kAbortMessageBytes);
  std::vector<std::unique_ptr<Allocator>> memories;
  std::vector<std::unique_ptr<MessageTransport>> transports;
  std::vector<std::unique_ptr<Communicator>> group;
  for (int32_t rank = 0; rank < kSize; ++rank) {
    memories.push_back(std::make_unique<Allocator>(int64_t{1} << 30));
    transports.push_back(job.network.Endpoint(job.group.ranks[static_cast<size_t>(rank)], *memories.back()));
    auto communicator = MakeMessageCommunicator({.rank = rank, .size = kSize, .allocator = memories.back().get()},
                                                job.group, *transports.back());
    REQUIRE(communicator.ok());
    group.push_back(*std::move(communicator));
  }
  OnAllRanks(group, [&](Communicator& communicator) {
    std::vector<float> values(3 * kCollectiveMessageBytes);
    const Elements data{.data = reinterpret_cast<std::byte*>(values.data()),
                        .count = static_cast<int64_t>(values.size())};
    for (int32_t root = 0; root < kSize; ++root) {
      static_cast<void>(communicator.Broadcast(root, data));
      static_cast<void>(communicator.AllReduce(ReduceOp::kSum, data, data));
    }
  });
  CHECK(group[0]->status() == absl::OkStatus());
  for (const ChannelSpec& channel : CollectiveChannels(job.group, 0)) {
    CHECK(job.network.greatest_outstanding(channel.id) <= 2 * kCollectiveMessageSlots);
  }
  for (const auto& memory : memories) {
    CHECK(memory->usage(MemoryCategory::kTransport).peak_bytes <= MessageCollectiveBytes(kSize) - slots);
  }
  group.clear();
}

}  // namespace
}  // namespace geopipe
