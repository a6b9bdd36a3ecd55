// The transport over real UCX and TCP on the loopback device, several workers in one process.
#include "runtime/transport/ucx_transport.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/transport/jitter.h"

namespace geopipe {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kGenerousNs = 60'000 * kMs;  // what must happen happens long before

int64_t In(int64_t ns) { return Clock::Real().NowNs() + ns; }

// UCX reads these when it is opened. bistro hooks patch code under ThreadSanitizer's feet.
void UseLoopback() {
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
  setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 1);
}

ChannelId Forward(int32_t boundary) {
  return {.kind = MessageKind::kActivation, .boundary = boundary, .from_stage = boundary, .to_stage = boundary + 1};
}

ChannelId Backward(int32_t boundary) {
  return {.kind = MessageKind::kGradient, .boundary = boundary, .from_stage = boundary + 1, .to_stage = boundary};
}

// Workers 0, 1, ... in one process, with one allocator each.
class Workers {
 public:
  Workers(int count, const std::vector<ChannelSpec>& channels, const std::vector<PeerShape>& shapes = {}) {
    UseLoopback();
    for (int32_t stage = 0; stage < count; ++stage) {
      allocators.push_back(std::make_unique<Allocator>(int64_t{1} << 30));
      UcxTransportOptions options;
      options.stage = stage;
      options.job_hash = 5;
      options.epoch = 1;
      options.allocator = allocators.back().get();
      for (const ChannelSpec& spec : channels) {
        if (spec.id.from_stage == stage || spec.id.to_stage == stage) {
          options.channels.push_back(spec);
        }
      }
      for (const PeerShape& shape : shapes) {
        if (std::abs(shape.peer_stage - stage) == 1) {
          options.shapes.push_back(shape);
        }
      }
      auto opened = UcxTransport::Create(std::move(options));
      REQUIRE(opened.ok());
      transports.push_back(*std::move(opened));
    }
  }

  std::vector<absl::Status> Connect(const std::vector<std::string>& secrets, int64_t limit_ns = kGenerousNs) {
    std::vector<UcxPeer> peers;
    for (size_t stage = 0; stage < transports.size(); ++stage) {
      peers.push_back({.stage = static_cast<int32_t>(stage), .address = transports[stage]->address()});
    }
    std::vector<std::future<absl::Status>> results;
    for (size_t stage = 0; stage < transports.size(); ++stage) {
      results.push_back(std::async(std::launch::async, [&, stage] {
        return transports[stage]->Connect(peers, secrets[stage % secrets.size()], In(limit_ns));
      }));
    }
    std::vector<absl::Status> statuses;
    for (std::future<absl::Status>& result : results) {
      statuses.push_back(result.get());
    }
    return statuses;
  }

  void ConnectAll() {
    for (const absl::Status& status : Connect({"the secret of this epoch"})) {
      INFO(status.ToString());
      REQUIRE(status.ok());
    }
  }

  Tensor Message(int32_t stage, int64_t words, int64_t value) {
    auto tensor =
        Tensor::Create(*allocators[static_cast<size_t>(stage)], MemoryCategory::kTransport, DType::kInt32, {words});
    REQUIRE(tensor.ok());
    const std::span<int32_t> ints = tensor->int32();
    for (size_t i = 0; i < ints.size(); ++i) {
      ints[i] = static_cast<int32_t>(value * 7919 + static_cast<int64_t>(i));
    }
    return *std::move(tensor);
  }

  static bool Holds(const Tensor& tensor, int64_t words, int64_t value) {
    const std::span<const int32_t> ints = tensor.int32();
    if (std::cmp_not_equal(ints.size(), words)) {
      return false;
    }
    for (size_t i = 0; i < ints.size(); ++i) {
      if (ints[i] != static_cast<int32_t>(value * 7919 + static_cast<int64_t>(i))) {
        return false;
      }
    }
    return true;
  }

  std::vector<std::unique_ptr<Allocator>> allocators;
  std::vector<std::unique_ptr<UcxTransport>> transports;
};

TEST_CASE("messages of every size cross both ways, in order and whole") {
  constexpr int64_t kSlot = 8 << 20;
  const std::vector<int64_t> words{1, 2, 100, 4096, 16384, 16385, 100'000, kSlot / 4};
  Workers workers(
      2, {{.id = Forward(0), .slot_bytes = kSlot, .slots = 2}, {.id = Backward(0), .slot_bytes = kSlot, .slots = 1}});
  workers.ConnectAll();
  for (size_t i = 0; i < words.size(); ++i) {
    const MessageTag tag{.iteration = 3, .micro_batch = static_cast<int32_t>(i)};
    const auto value = static_cast<int64_t>(i);
    REQUIRE(workers.transports[0]->Send(Forward(0), tag, workers.Message(0, words[i], value)).ok());
    REQUIRE(workers.transports[1]->Send(Backward(0), tag, workers.Message(1, words[i], -value)).ok());
  }
  for (size_t i = 0; i < words.size(); ++i) {
    const MessageTag tag{.iteration = 3, .micro_batch = static_cast<int32_t>(i)};
    const auto value = static_cast<int64_t>(i);
    const auto forward = workers.transports[1]->Receive(Forward(0), tag, In(kGenerousNs));
    INFO(forward.status().ToString());
    REQUIRE(forward.ok());
    CHECK(Workers::Holds(*forward, words[i], value));
    const auto backward = workers.transports[0]->Receive(Backward(0), tag, In(kGenerousNs));
    REQUIRE(backward.ok());
    CHECK(Workers::Holds(*backward, words[i], -value));
    CHECK(workers.transports[0]->WaitAcknowledged(Forward(0), tag, In(kGenerousNs)).ok());
  }
  CHECK(workers.transports[0]->stats().refused_frames == 0);
  CHECK(workers.transports[0]->stats().frames_resent == 0);
}

}  // namespace
}  // namespace geopipe
