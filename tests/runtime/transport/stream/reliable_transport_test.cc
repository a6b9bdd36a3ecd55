// The transport above the carrier: tensors, slots and errors, over a loopback network pumped by the test.
#include "runtime/transport/stream/reliable_transport.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <thread>

#include "tests/support/fake_clock.h"
#include "tests/support/loopback_frame.h"

namespace geopipe {
namespace {

constexpr ChannelId kDown{.kind = MessageKind::kActivation, .boundary = 0, .from_rank = 0, .to_rank = 1};
constexpr int64_t kActivationBytes = 2 * 3 * 5 * 4;

// The layouts of kDown's messages that its ends are told.
struct Layouts {
  std::optional<PayloadLayout> sender = std::nullopt;
  std::optional<PayloadLayout> receiver = std::nullopt;
};

// Ranks 0 and 1 on fake time.
class World {
 public:
  explicit World(const Layouts& layouts) : World(2, 8, {}, layouts) {}
  explicit World(int32_t slots = 2, size_t max_messages = 8, const std::vector<ChannelSpec>& more = {},
                 const Layouts& layouts = {})
      : network(0, 1, 32, 1) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      ReliableTransportOptions options;
      options.rank = rank;
      options.allocator = &allocators[static_cast<size_t>(rank)];
      options.channels = {{.id = kDown,
                           .slot_bytes = kActivationBytes,
                           .slots = slots,
                           .layout = rank == 0 ? layouts.sender : layouts.receiver}};
      options.channels.insert(options.channels.end(), more.begin(), more.end());
      options.stream.session = 10 + static_cast<uint64_t>(rank);
      options.stream.max_messages = max_messages;
      options.clock = &clock;
      options.sites = {"east", "west"};
      options.warn = [this](const std::string& warning) { warnings.push_back(warning); };
      auto made = ReliableTransport::Create(options, network.carrier(rank));
      REQUIRE(made.ok());
      ends[static_cast<size_t>(rank)] = *std::move(made);
      network.Attach(rank, ends[static_cast<size_t>(rank)].get());
    }
    network.Connect(0);
    Run();
  }

  // Lets a second pass.
  void Run() {
    const int64_t until_ns = clock.NowNs() + 1'000'000'000;
    while (clock.NowNs() < until_ns) {
      clock.SleepUntilNs(std::min(until_ns, std::max(network.Pump(clock.NowNs()), clock.NowNs() + 1)));
    }
  }

  Timed<Tensor> Message(float first) {
    auto tensor = Tensor::Create(allocators[0], MemoryCategory::kTransport, DType::kFp32, {2, 3, 5});
    REQUIRE(tensor.ok());
    std::iota(tensor->fp32().begin(), tensor->fp32().end(), first);
    return {.value = *std::move(tensor), .ready = Completion::At(clock.NowNs())};
  }

  std::vector<std::string> warnings;
  FakeClock clock;
  std::array<Allocator, 2> allocators{Allocator(1 << 20), Allocator(1 << 20)};
  std::array<std::unique_ptr<ReliableTransport>, 2> ends;
  LoopbackNetwork network;
};

TEST_CASE("a received tensor has the sender's dtype, shape and values") {
  World world;
  CHECK(world.ends[0]->WaitConnected(0).ok());
  for (int i = 0; i < 6; ++i) {
    const MessageTag tag{.iteration = i, .micro_batch = 1};
    REQUIRE(world.ends[0]->Send(kDown, tag, world.Message(static_cast<float>(i))).ok());
    world.Run();
    CHECK(world.ends[0]->WaitAcknowledged(kDown, tag, 0).ok());
    const auto tensor = world.ends[1]->Receive(kDown, tag, 0);
    REQUIRE(tensor.ok());
    CHECK(tensor->value.dtype() == DType::kFp32);
    CHECK(tensor->value.shape() == std::vector<int64_t>{2, 3, 5});
    CHECK(tensor->value.fp32()[0] == static_cast<float>(i));
    CHECK(tensor->value.fp32()[29] == static_cast<float>(i + 29));
  }
}

TEST_CASE("damaged frames are counted by peer, and warned of with the link, at most every ten seconds") {
  World world;
  world.network.set_faults({.corrupt = 1});
  REQUIRE(world.ends[0]->Send(kDown, {}, world.Message(0)).ok());
  world.Run();
  world.network.set_faults({});
  const int64_t first = world.ends[1]->stats().peers[0].corrupt_frames;
  CHECK(first > 1);
  CHECK(world.ends[1]->stats().streams.refused_frames == 0);
  const auto told_by_1 = [&] {
    std::vector<std::string> told;
    std::copy_if(world.warnings.begin(), world.warnings.end(), std::back_inserter(told), [](const std::string& each) {
      return each.find("frames from rank 0 (site east) came to rank 1 (site west) with other bytes") !=
             std::string::npos;
    });
    return told;
  };
  CHECK(told_by_1().size() == 1);
  for (int second = 0; second < 40; ++second) {
    world.Run();
  }
  // The rest was told of later, though no further frame was damaged.
  REQUIRE(told_by_1().size() == 2);
  CHECK(told_by_1()[1].find(std::to_string(first) + " of ") == 0);
  CHECK(world.ends[1]->Receive(kDown, {}, 0).ok());
}

TEST_CASE("a message is received in its slot, whatever its shape") {
  World world;
  REQUIRE(world.ends[0]->Send(kDown, {}, world.Message(0)).ok());
  Timed<Tensor> small{.value = *Tensor::Zeros(world.allocators[0], MemoryCategory::kTransport, DType::kBf16, {3}),
                      .ready = {}};
  REQUIRE(world.ends[0]->Send(kDown, {.iteration = 1, .micro_batch = 0}, std::move(small)).ok());
  world.Run();
  const auto first = world.ends[1]->Receive(kDown, {}, 0);
  const auto second = world.ends[1]->Receive(kDown, {.iteration = 1, .micro_batch = 0}, 0);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(second->value.dtype() == DType::kBf16);
  CHECK(second->value.shape() == std::vector<int64_t>{3});
  // Each message holds the memory of its slot, and two slots wait for more.
  CHECK(world.allocators[1].usage(MemoryCategory::kTransport).bytes == 4 * kActivationBytes);
}

TEST_CASE("a channel with a layout carries no other messages") {
  constexpr ChannelId kShaped{.kind = MessageKind::kGradient, .boundary = 0, .from_rank = 0, .to_rank = 1};
  const auto layout = PayloadLayout::Of(DType::kFp32, {2, 3, 5});
  World world(2, 8, {{.id = kShaped, .slot_bytes = kActivationBytes, .slots = 2, .layout = layout}});
  REQUIRE(world.ends[0]->Send(kShaped, {}, world.Message(4)).ok());
  world.Run();
  const auto received = world.ends[1]->Receive(kShaped, {}, 0);
  REQUIRE(received.ok());
  CHECK(received->value.shape() == layout.shape());
  CHECK(received->value.fp32()[29] == 33);
  Timed<Tensor> flat = world.Message(0);
  flat.value = std::move(flat.value).Into(DType::kFp32, {30});
  const absl::Status refused = world.ends[0]->Send(kShaped, {}, std::move(flat));
  CHECK(refused ==
        absl::InvalidArgumentError("gradient of boundary 0 from rank 0 to 1: a message is fp32 [30], but the "
                                   "channel's are fp32 [2, 3, 5]"));
}

TEST_CASE("a message of another layout than the receiver's is an error there") {
  World world(
      Layouts{.sender = PayloadLayout::Of(DType::kFp32, {2, 3, 5}), .receiver = PayloadLayout::Of(DType::kFp32, {30})});
  REQUIRE(world.ends[0]->Send(kDown, {}, world.Message(4)).ok());
  world.Run();
  CHECK(world.ends[1]->Receive(kDown, {}, 0).status() ==
        absl::InternalError("activation of boundary 0 from rank 0 to 1: a message is fp32 [2, 3, 5], but the channel's "
                            "are fp32 [30]; do all agents run the same version?"));
}

TEST_CASE("a message leaves when it is ready, and is acknowledged no sooner") {
  World world;
  Completion made = Completion::Pending();
  Timed<Tensor> message = world.Message(3);
  message.ready = made;
  const absl::Status sent = world.ends[0]->Send(kDown, {}, std::move(message));
  REQUIRE(sent.ok());
  world.Run();
  CHECK(absl::IsDeadlineExceeded(world.ends[0]->WaitAcknowledged(kDown, {}, 0).status()));
  CHECK(absl::IsDeadlineExceeded(world.ends[1]->Receive(kDown, {}, 0).status()));
  const int64_t made_ns = world.clock.NowNs();
  made.Complete(made_ns, made_ns);
  world.Run();
  CHECK(*world.ends[0]->WaitAcknowledged(kDown, {}, 0) >= made_ns);
  CHECK(world.ends[1]->Receive(kDown, {}, 0)->value.fp32()[0] == 3);
}

TEST_CASE("a message that could not be made never leaves, and fails its transport with the reason") {
  World world;
  Completion made = Completion::Pending();
  Timed<Tensor> message = world.Message(3);
  message.ready = made;
  REQUIRE(world.ends[0]->Send(kDown, {}, std::move(message)).ok());
  made.Fail(absl::InternalError("off the bus"));
  world.Run();
  CHECK(world.ends[0]->Send(kDown, {.iteration = 1, .micro_batch = 0}, world.Message(3)).message() == "off the bus");
  CHECK(absl::IsDeadlineExceeded(world.ends[1]->Receive(kDown, {}, 0).status()));
}

TEST_CASE("memory is the slots, what was taken, and what is not acknowledged") {
  World world(2);
  const auto in_use = [&](size_t rank) { return world.allocators[rank].usage(MemoryCategory::kTransport).bytes; };
  const int64_t slots = in_use(1);
  CHECK(slots >= 2 * kActivationBytes);
  for (int i = 0; i < 4; ++i) {
    REQUIRE(world.ends[0]->Send(kDown, {.iteration = i, .micro_batch = 0}, world.Message(0)).ok());
  }
  CHECK(in_use(0) >= 4 * kActivationBytes);
  world.Run();
  // Two have arrived in the two slots; the others stay with the sender.
  CHECK(in_use(0) < 3 * kActivationBytes + 3 * 64);
  CHECK(in_use(0) >= 2 * kActivationBytes);
  CHECK(in_use(1) == slots);
  CHECK(world.ends[0]->WaitAcknowledged(kDown, {.iteration = 1, .micro_batch = 0}, 0).ok());
  CHECK(world.ends[0]->WaitAcknowledged(kDown, {.iteration = 2, .micro_batch = 0}, 0).status().code() ==
        absl::StatusCode::kDeadlineExceeded);
  for (int i = 0; i < 4; ++i) {
    CHECK(world.ends[1]->Receive(kDown, {.iteration = i, .micro_batch = 0}, 0).ok());
    world.Run();
  }
  CHECK(in_use(0) == 0);
  CHECK(in_use(1) == slots);
}

TEST_CASE("once the shape is known a message is received without a copy") {
  World world(1);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(world.ends[0]->Send(kDown, {.iteration = i, .micro_batch = 0}, world.Message(0)).ok());
    world.Run();
    const int64_t before = world.allocators[1].usage(MemoryCategory::kTransport).peak_bytes;
    const auto tensor = world.ends[1]->Receive(kDown, {.iteration = i, .micro_batch = 0}, 0);
    REQUIRE(tensor.ok());
    // A copy would need the slot, the copy and the fresh slot at once, or the slot and the copy.
    CHECK(world.allocators[1].usage(MemoryCategory::kTransport).peak_bytes <=
          std::max(before, 2 * (kActivationBytes + 64)));
    world.Run();
  }
}

TEST_CASE("a lossy network changes nothing for the user") {
  World world;
  LoopbackFaults faults;
  faults.drop = 0.2;
  faults.duplicate = 0.2;
  faults.reorder = 0.5;
  faults.disconnect = 0.02;
  world.network.set_faults(faults);
  for (int i = 0; i < 8; ++i) {
    REQUIRE(world.ends[0]->Send(kDown, {.iteration = i, .micro_batch = 0}, world.Message(static_cast<float>(i))).ok());
  }
  for (int i = 0; i < 8; ++i) {
    auto tensor = world.ends[1]->Receive(kDown, {.iteration = i, .micro_batch = 0}, 0);
    for (int second = 0; second < 60 && !tensor.ok(); ++second) {
      world.Run();
      tensor = world.ends[1]->Receive(kDown, {.iteration = i, .micro_batch = 0}, 0);
    }
    REQUIRE(tensor.ok());
    CHECK(tensor->value.fp32()[7] == static_cast<float>(i + 7));
  }
  const ReliableTransport::Stats stats = world.ends[0]->stats();
  CHECK(stats.streams.frames_resent > 0);
  // A message that was sent again counts once.
  REQUIRE(stats.peers.size() == 1);
  REQUIRE(stats.peers[0].between_stages.size() == 1);
  CHECK(stats.peers[0].between_stages[0].kind == MessageKind::kActivation);
  CHECK(stats.peers[0].between_stages[0].messages == 8);
  CHECK(stats.peers[0].between_stages[0].bytes == 8 * kActivationBytes);
}

TEST_CASE("a full channel is an error at once") {
  World world(1, 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(world.ends[0]->Send(kDown, {.iteration = i, .micro_batch = 0}, world.Message(0)).ok());
  }
  const absl::Status status = world.ends[0]->Send(kDown, {.iteration = 3, .micro_batch = 0}, world.Message(0));
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("of several channels several threads wait, and each is woken by its own") {
  constexpr ChannelId kOther{.kind = MessageKind::kCollective, .boundary = 3, .from_rank = 0, .to_rank = 1};
  World world(2, 8, {{.id = kOther, .slot_bytes = kActivationBytes, .slots = 2}});
  const int64_t deadline_ns = Clock::Real().NowNs() + 60'000'000'000;
  std::map<ChannelId, absl::Status> received;
  std::map<ChannelId, absl::Status> acknowledged;
  std::map<ChannelId, std::vector<std::thread>> threads;
  for (const ChannelId& channel : {kDown, kOther}) {
    threads[channel].emplace_back([&, channel, &result = received[channel]] {
      result = world.ends[1]->Receive(channel, {}, deadline_ns).status();
    });
  }
  for (const ChannelId& channel : {kOther, kDown}) {  // the other one still waits
    Completion made = Completion::Pending();
    Timed<Tensor> message = world.Message(1);
    message.ready = made;
    const absl::Status sent = world.ends[0]->Send(channel, {}, std::move(message));
    REQUIRE(sent.ok());
    threads[channel].emplace_back([&, channel, &result = acknowledged[channel]] {
      result = world.ends[0]->WaitAcknowledged(channel, {}, deadline_ns).status();
    });
    made.Complete(world.clock.NowNs(), world.clock.NowNs());
    world.Run();
    for (std::thread& thread : threads[channel]) {
      thread.join();
    }
    CHECK(received[channel].ok());
    CHECK(acknowledged[channel].ok());
  }
}

TEST_CASE("a failure ends the waits of all threads") {
  constexpr ChannelId kOther{.kind = MessageKind::kCollective, .boundary = 3, .from_rank = 0, .to_rank = 1};
  World world(2, 8, {{.id = kOther, .slot_bytes = kActivationBytes, .slots = 2}});
  const int64_t deadline_ns = Clock::Real().NowNs() + 60'000'000'000;
  std::array<absl::Status, 2> results;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 2; ++i) {
    threads.emplace_back(
        [&, i] { results[i] = world.ends[1]->Receive(i == 0 ? kDown : kOther, {}, deadline_ns).status(); });
  }
  world.ends[1]->Fail(absl::CancelledError("enough"));
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(results[0] == absl::CancelledError("enough"));
  CHECK(results[1] == results[0]);
}

TEST_CASE("a silent peer fails the transport") {
  World world;
  REQUIRE(world.ends[0]->Send(kDown, {}, world.Message(0)).ok());
  LoopbackFaults faults;
  faults.drop = 1;
  world.network.set_faults(faults);
  for (int second = 0; second < 70; ++second) {
    world.Run();
  }
  CHECK(world.ends[0]->WaitAcknowledged(kDown, {}, 0).status().code() == absl::StatusCode::kUnavailable);
  CHECK(world.ends[1]->Receive(kDown, {}, 0).status().code() == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("channels that do not belong to the rank are refused") {
  LoopbackNetwork network(0, 1, 32, 1);
  Allocator allocator(1 << 20);
  ReliableTransportOptions options;
  options.rank = 2;
  options.allocator = &allocator;
  options.channels = {{.id = kDown, .slot_bytes = 8, .slots = 1}};
  CHECK(ReliableTransport::Create(options, network.carrier(0)).status().code() == absl::StatusCode::kInvalidArgument);
  options.rank = 0;
  options.channels[0].layout = PayloadLayout::Of(DType::kFp32, {3});  // does not fill its slot
  CHECK(ReliableTransport::Create(options, network.carrier(0)).status().code() == absl::StatusCode::kInvalidArgument);
  options.channels[0].layout.reset();
  options.channels.push_back(options.channels[0]);
  CHECK(ReliableTransport::Create(options, network.carrier(0)).status().code() == absl::StatusCode::kInvalidArgument);
  World world;
  CHECK(world.ends[1]->Send(kDown, {}, world.Message(0)).code() == absl::StatusCode::kInvalidArgument);
  CHECK(world.ends[0]->Receive(kDown, {}, 0).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace geopipe
