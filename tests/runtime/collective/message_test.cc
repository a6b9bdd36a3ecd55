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
    group.push_back(std::make_unique<KeepingCommunicator>(job, *std::move(communicator)));
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

TEST_CASE("messages: few are on their way, however far a root is ahead") {
  constexpr int32_t kSize = 3;
  Job job(kSize);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int32_t rank = 0; rank < kSize; ++rank) {
    auto communicator = MakeMessageCommunicator({.rank = rank, .size = kSize, .allocator = &MessageMemory()}, job.group,
                                                *job.transports[static_cast<size_t>(rank)]);
    REQUIRE(communicator.ok());
    group.push_back(*std::move(communicator));
  }
  OnAllRanks(group, SendMuch);
  CHECK(group[0]->status() == absl::OkStatus());
  for (const ChannelSpec& channel : CollectiveChannels(job.group, 0)) {
    CHECK(job.network.greatest_outstanding(channel.id) <= 2 * kCollectiveMessageSlots);
  }
}

}  // namespace
}  // namespace geopipe
