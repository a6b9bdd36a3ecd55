// Groups over the transport of workers: UCX and TCP on the loopback device.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <future>

#include "optimizer/model/collective_memory.h"
#include "runtime/base/clock.h"
#include "runtime/collective/host_communicator.h"
#include "runtime/transport/ucx/ucx_transport.h"
#include "tests/runtime/collective/communicator_suite.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

// Workers of one process, joined by a transport that carries some groups of all of them.
class Workers {
 public:
  Workers(int32_t size, int32_t groups) {
    setenv("UCX_TLS", "tcp", 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
    for (int32_t rank = 0; rank < size; ++rank) {
      ranks_.push_back(rank);
    }
    std::vector<UcxPeer> peers;
    for (int32_t rank = 0; rank < size; ++rank) {
      UcxTransportOptions options;
      options.rank = rank;
      options.job_hash = 5;
      options.epoch = 1;
      allocators_.push_back(std::make_unique<Allocator>(int64_t{1} << 30));
      options.allocator = allocators_.back().get();
      for (int32_t id = 0; id < groups; ++id) {
        const std::vector<ChannelSpec> channels = CollectiveChannels({.id = id, .ranks = ranks_}, rank);
        options.channels.insert(options.channels.end(), channels.begin(), channels.end());
      }
      options.near.insert(ranks_.begin(), ranks_.end());
      auto opened = UcxTransport::Create(std::move(options));
      REQUIRE(opened.ok());
      transports_.push_back(*std::move(opened));
      peers.push_back({.rank = rank, .address = transports_.back()->address()});
    }
    std::vector<std::future<absl::Status>> connected;
    for (const auto& transport : transports_) {
      connected.push_back(std::async(std::launch::async, [&] {
        return transport->Connect(peers, "the secret of this epoch", Clock::Real().NowNs() + 60 * kSecond);
      }));
    }
    for (std::future<absl::Status>& status : connected) {
      REQUIRE(status.get().ok());
    }
  }

  std::unique_ptr<Communicator> Make(int32_t id, int32_t rank, const GroupOptions& options) {
    const auto index = static_cast<size_t>(rank);
    auto communicator = MakeMessageCommunicator({.rank = rank,
                                                 .size = options.size,
                                                 .own_thread = options.own_thread,
                                                 .longest_wait_ns = options.longest_wait_ns,
                                                 .allocator = allocators_[index].get(),
                                                 .watch = options.watches.empty() ? nullptr : options.watches[index]},
                                                {.id = id, .ranks = ranks_}, *transports_[index]);
    REQUIRE(communicator.ok());
    return *std::move(communicator);
  }

  int64_t PeakBytes(int32_t rank) const {
    return allocators_[static_cast<size_t>(rank)]->usage(MemoryCategory::kTransport).peak_bytes;
  }

 private:
  std::vector<std::unique_ptr<Allocator>> allocators_;
  std::vector<int32_t> ranks_;
  std::vector<std::unique_ptr<UcxTransport>> transports_;
};

std::vector<std::unique_ptr<Communicator>> GroupOver(const std::shared_ptr<Workers>& workers, int32_t id,
                                                     const GroupOptions& options) {
  std::vector<std::unique_ptr<Communicator>> group;
  for (int32_t rank = 0; rank < options.size; ++rank) {
    group.push_back(std::make_unique<KeepingCommunicator>(workers, workers->Make(id, rank, options)));
  }
  return group;
}

std::vector<std::unique_ptr<Communicator>> UcxGroupOf(const GroupOptions& options) {
  return GroupOver(std::make_shared<Workers>(options.size, 1), 0, options);
}

TEST_CASE("UCX: operands of all sizes") {
  CheckOperations(UcxGroupOf, {2, 3}, {1, 17, 20'011, kCollectiveMessageBytes / 4 + 1});
}

TEST_CASE("UCX: two groups at once over one transport") {
  const auto workers = std::make_shared<Workers>(3, 2);
  int32_t next_id = 0;
  CheckTwoGroups([&](const GroupOptions& options) { return GroupOver(workers, next_id++, options); });
}

TEST_CASE("UCX: a rank holds no more than the planner counts") {
  const auto workers = std::make_shared<Workers>(3, 1);
  auto group = GroupOver(workers, 0, {.size = 3});
  OnAllRanks(group, SendMuch);
  for (int32_t rank = 0; rank < 3; ++rank) {
    CHECK(group[static_cast<size_t>(rank)]->status().ok());
    CHECK(workers->PeakBytes(rank) <= MessageCollectiveBytes(3));
    CHECK(workers->PeakBytes(rank) >= MessageCollectiveBytes(3) / 2);
  }
}

TEST_CASE("UCX: an abort ends all waits") { CheckAbort(UcxGroupOf); }

TEST_CASE("UCX: a rank that does not come") { CheckDeadline(UcxGroupOf); }

}  // namespace
}  // namespace geopipe
