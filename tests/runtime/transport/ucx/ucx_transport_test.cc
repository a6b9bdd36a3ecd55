// The transport over real UCX and TCP on the loopback device, several workers in one process.
#include "runtime/transport/ucx/ucx_transport.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>

#include "optimizer/base/check.h"
#include "optimizer/base/splitmix64.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"
#include "runtime/transport/ucx/ucx_environment.h"
#include "tests/support/durations.h"
#include "tests/support/listening_ports.h"

namespace geopipe {
namespace {

constexpr int64_t kGenerousNs = 60'000 * kMs;  // what must happen happens long before

int64_t In(int64_t ns) { return Clock::Real().NowNs() + ns; }

// UCX reads these when it is opened. (Under ThreadSanitizer UCX_MEM_MMAP_HOOK_MODE=none must be in the environment when
// the program starts: UCX's library reads it as it is loaded.)
void UseLoopback() {
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
}

ChannelId Forward(int32_t boundary) {
  return {.kind = MessageKind::kActivation, .boundary = boundary, .from_rank = boundary, .to_rank = boundary + 1};
}

ChannelId Backward(int32_t boundary) {
  return {.kind = MessageKind::kGradient, .boundary = boundary, .from_rank = boundary + 1, .to_rank = boundary};
}

// Workers 0, 1, ... in one process, with one allocator each.
class Workers {
 public:
  Workers(
      int count, const std::vector<ChannelSpec>& channels,
      const std::function<void(UcxTransportOptions&)>& adjust = [](UcxTransportOptions&) {}) {
    UseLoopback();
    for (int32_t rank = 0; rank < count; ++rank) {
      allocators.push_back(std::make_unique<Allocator>(int64_t{1} << 30));
      UcxTransportOptions options;
      options.rank = rank;
      options.job_hash = 5;
      options.epoch = 1;
      options.allocator = allocators.back().get();
      for (const ChannelSpec& spec : channels) {
        if (spec.id.from_rank == rank || spec.id.to_rank == rank) {
          options.channels.push_back(spec);
        }
      }
      for (int32_t peer = 0; peer < count; ++peer) {
        options.near.insert(peer);
      }
      adjust(options);
      auto opened = UcxTransport::Create(std::move(options));
      REQUIRE(opened.ok());
      transports.push_back(*std::move(opened));
    }
  }

  std::vector<absl::Status> Connect(const std::vector<std::string>& secrets, int64_t limit_ns = kGenerousNs) {
    std::vector<UcxPeer> peers;
    for (size_t rank = 0; rank < transports.size(); ++rank) {
      peers.push_back({.rank = static_cast<int32_t>(rank), .address = transports[rank]->address()});
    }
    std::vector<std::future<absl::Status>> results;
    for (size_t rank = 0; rank < transports.size(); ++rank) {
      results.push_back(std::async(std::launch::async, [&, rank] {
        return transports[rank]->Connect(peers, secrets[rank % secrets.size()], In(limit_ns));
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

  Timed<Tensor> Message(int32_t rank, int64_t words, int64_t value) {
    auto tensor =
        Tensor::Create(*allocators[static_cast<size_t>(rank)], MemoryCategory::kTransport, DType::kInt32, {words});
    GP_CHECK(tensor.ok());  // also called off the test's thread, where Catch does not work
    const std::span<int32_t> ints = tensor->int32();
    for (size_t i = 0; i < ints.size(); ++i) {
      ints[i] = static_cast<int32_t>(value * 7919 + static_cast<int64_t>(i));
    }
    return {.value = *std::move(tensor), .ready = Completion::At(In(0))};
  }

  static bool Holds(const Timed<Tensor>& message, int64_t words, int64_t value) {
    const std::span<const int32_t> ints = message.value.int32();
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

TEST_CASE("three workers, many channels, more messages than slots") {
  constexpr int64_t kWords = 50'000;
  constexpr int kMessages = 12;
  std::vector<ChannelSpec> channels;
  for (const int32_t boundary : {0, 1}) {
    channels.push_back({.id = Forward(boundary), .slot_bytes = 4 * kWords, .slots = 3});
    channels.push_back({.id = Backward(boundary), .slot_bytes = 4 * kWords, .slots = 2});
  }
  const auto norm = [](int32_t from, int32_t to) {
    return ChannelId{.kind = MessageKind::kNormTerms, .boundary = 0, .from_rank = from, .to_rank = to};
  };
  for (const auto& [from, to] :
       std::vector<std::pair<int32_t, int32_t>>{{0, 1}, {1, 0}, {0, 2}, {2, 0}, {1, 2}, {2, 1}}) {
    channels.push_back({.id = norm(from, to), .slot_bytes = 400, .slots = 1});
  }
  Workers workers(3, channels);
  workers.ConnectAll();
  // Sends do not wait for anything: all of them go before the first receive.
  for (int i = 0; i < kMessages; ++i) {
    const MessageTag tag{.iteration = i, .micro_batch = 0};
    for (const ChannelSpec& spec : channels) {
      const int32_t from = spec.id.from_rank;
      REQUIRE(workers.transports[static_cast<size_t>(from)]
                  ->Send(spec.id, tag, workers.Message(from, spec.slot_bytes / 4, i + from))
                  .ok());
    }
  }
  for (const ChannelSpec& spec : channels) {
    for (int i = 0; i < kMessages; ++i) {
      const MessageTag tag{.iteration = i, .micro_batch = 0};
      const auto message =
          workers.transports[static_cast<size_t>(spec.id.to_rank)]->Receive(spec.id, tag, In(kGenerousNs));
      INFO(message.status().ToString());
      REQUIRE(message.ok());
      CHECK(Workers::Holds(*message, spec.slot_bytes / 4, i + spec.id.from_rank));
    }
    const MessageTag last{.iteration = kMessages - 1, .micro_batch = 0};
    CHECK(workers.transports[static_cast<size_t>(spec.id.from_rank)]
              ->WaitAcknowledged(spec.id, last, In(kGenerousNs))
              .ok());
  }
}

TEST_CASE("a message of another tag or none in time is an error") {
  Workers workers(2, {{.id = Forward(0), .slot_bytes = 64, .slots = 1}});
  workers.ConnectAll();
  const MessageTag tag{.iteration = 1, .micro_batch = 2};
  const auto none = workers.transports[1]->Receive(Forward(0), tag, In(kMs));
  CHECK(none.status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(std::string(none.status().message()).find("iteration 1, micro-batch 2") != std::string::npos);
  REQUIRE(workers.transports[0]->Send(Forward(0), {.iteration = 1, .micro_batch = 3}, workers.Message(0, 4, 0)).ok());
  CHECK(workers.transports[1]->Receive(Forward(0), tag, In(kGenerousNs)).status().code() ==
        absl::StatusCode::kInternal);
  CHECK(workers.transports[0]->Send(Forward(0), tag, workers.Message(0, 17, 0)).code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("Fail wakes whoever waits, and the first reason stays") {
  Workers workers(2, {{.id = Forward(0), .slot_bytes = 64, .slots = 1}});
  workers.ConnectAll();
  auto waiting = std::async(std::launch::async,
                            [&] { return workers.transports[1]->Receive(Forward(0), {}, In(kGenerousNs)).status(); });
  workers.transports[1]->Fail(absl::AbortedError("the job was cancelled"));
  workers.transports[1]->Fail(absl::InternalError("later"));
  CHECK(waiting.get() == absl::AbortedError("the job was cancelled"));
  CHECK(workers.transports[1]->Receive(Forward(0), {}, In(kGenerousNs)).status().code() == absl::StatusCode::kAborted);
}

TEST_CASE("a peer without the epoch's secret is refused and counted") {
  Workers workers(2, {{.id = Forward(0), .slot_bytes = 64, .slots = 1}});
  const std::vector<absl::Status> statuses = workers.Connect({"the secret", "another"}, 300 * kMs);
  for (const absl::Status& status : statuses) {
    CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
  }
  CHECK(std::string(statuses[0].message()).find("secret") != std::string::npos);
  CHECK(workers.transports[0]->stats().refused_frames > 0);
  CHECK(workers.transports[1]->stats().refused_frames > 0);
  CHECK(workers.transports[1]->stats().bytes_received == 0);
}

TEST_CASE("broken connections are made again and lose nothing") {
  constexpr int64_t kWords = 1 << 18;
  constexpr int kMessages = 20;
  Workers workers(2, {{.id = Forward(0), .slot_bytes = 4 * kWords, .slots = 3},
                      {.id = Backward(0), .slot_bytes = 4 * kWords, .slots = 3}});
  workers.ConnectAll();
  auto sender = std::async(std::launch::async, [&] {
    for (int i = 0; i < kMessages; ++i) {
      const MessageTag tag{.iteration = i, .micro_batch = 0};
      if (!workers.transports[0]->Send(Forward(0), tag, workers.Message(0, kWords, i)).ok() ||
          !workers.transports[0]->WaitAcknowledged(Forward(0), tag, In(kGenerousNs)).ok()) {
        return i;
      }
    }
    return kMessages;
  });
  for (int i = 0; i < kMessages; ++i) {
    const MessageTag tag{.iteration = i, .micro_batch = 0};
    REQUIRE(workers.transports[1]->Send(Backward(0), tag, workers.Message(1, kWords, -i)).ok());
    if (i % 5 == 2) {
      workers.transports[static_cast<size_t>(i / 5 % 2)]->BreakConnection(1 - i / 5 % 2);
    }
    const auto message = workers.transports[1]->Receive(Forward(0), tag, In(kGenerousNs));
    INFO(message.status().ToString());
    REQUIRE(message.ok());
    CHECK(Workers::Holds(*message, kWords, i));
  }
  CHECK(sender.get() == kMessages);
  for (int i = 0; i < kMessages; ++i) {
    const auto message =
        workers.transports[0]->Receive(Backward(0), {.iteration = i, .micro_batch = 0}, In(kGenerousNs));
    REQUIRE(message.ok());
    CHECK(Workers::Holds(*message, kWords, -i));
  }
  CHECK(workers.transports[0]->stats().reconnects >= 3);
  CHECK(workers.transports[1]->stats().reconnects >= 3);
}

TEST_CASE("a connection that breaks while large messages arrive loses nothing") {
  constexpr int64_t kWords = 1 << 20;
  constexpr int kMessages = 12;
  Workers workers(2, {{.id = Forward(0), .slot_bytes = 4 * kWords, .slots = 4}});
  workers.ConnectAll();
  for (int i = 0; i < kMessages; ++i) {
    REQUIRE(workers.transports[0]->Send(Forward(0), {.iteration = i}, workers.Message(0, kWords, i)).ok());
  }
  for (int i = 0; i < kMessages; ++i) {
    if (i % 3 == 1) {
      workers.transports[static_cast<size_t>(i / 3 % 2)]->BreakConnection(1 - i / 3 % 2);
    }
    const auto message = workers.transports[1]->Receive(Forward(0), {.iteration = i}, In(kGenerousNs));
    INFO(message.status().ToString());
    REQUIRE(message.ok());
    CHECK(Workers::Holds(*message, kWords, i));
  }
  CHECK(workers.transports[0]->WaitAcknowledged(Forward(0), {.iteration = kMessages - 1}, In(kGenerousNs)).ok());
  CHECK(workers.transports[0]->stats().reconnects >= 1);
}

TEST_CASE("a worker that is gone leaves its peer able to fail cleanly") {
  Workers workers(2, {{.id = Forward(0), .slot_bytes = 64, .slots = 1}});
  workers.ConnectAll();
  workers.transports[1].reset();
  REQUIRE(workers.transports[0]->Send(Forward(0), {}, workers.Message(0, 4, 0)).ok());
  CHECK(workers.transports[0]->WaitAcknowledged(Forward(0), {}, In(20 * kMs)).status().code() ==
        absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("with nothing to do the progress thread sleeps") {
  Workers workers(2, {{.id = Forward(0), .slot_bytes = 64, .slots = 1}});
  workers.ConnectAll();
  // A round trip later everything has settled; a receive that nobody answers lets 200 ms pass.
  REQUIRE(workers.transports[0]->Send(Forward(0), {}, workers.Message(0, 4, 0)).ok());
  REQUIRE(workers.transports[1]->Receive(Forward(0), {}, In(kGenerousNs)).ok());
  const int64_t before_ns = workers.transports[1]->progress_cpu_ns();
  CHECK_FALSE(workers.transports[1]->Receive(Forward(0), {}, In(200 * kMs)).ok());
  CHECK(workers.transports[1]->progress_cpu_ns() - before_ns < 10 * kMs);
}

TEST_CASE("every port that listens is of the range") {
  const std::set<uint16_t> before = ListeningPorts(getpid());
  const PortRange range{.first = 47'310, .last = 47'329};
  const Workers workers(3, {{.id = Forward(0), .slot_bytes = 64, .slots = 1}},
                        [&](UcxTransportOptions& options) { options.limits.ports = range; });
  std::set<uint16_t> opened;
  std::ranges::set_difference(ListeningPorts(getpid()), before, std::inserter(opened, opened.begin()));
  CHECK(opened.size() == 6);  // of each worker: the listener's and UCX's for data
  CHECK(*opened.begin() >= range.first);
  CHECK(*opened.rbegin() <= range.last);
}

TEST_CASE("a process that may open no more files is told so, and not that it has no device") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const UniqueFd next(open("/dev/null", O_RDONLY | O_CLOEXEC));
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(next.get()) + 4;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  const absl::Status status = OpenUcpContext({.frame_bytes = 64 * 1024}).status();
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(status.message()), Catch::Contains("may open 3 more files only; raise their number"));
}

// Opens `count` connections to `address`, as a stranger can who knows UCX and nothing else.
class Strangers {
 public:
  Strangers(const std::string& address, int count) : context_(*OpenUcpContext({.frame_bytes = 64 * 1024})) {
    worker_ = *OpenUcpWorker(context_.get());
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    for (int i = 0; i < count; ++i) {
      ucp_ep_params_t params{};
      params.field_mask =
          UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
      params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
      params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
      params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&to);
      params.sockaddr.addrlen = sizeof to;
      ucp_ep_h endpoint = nullptr;
      REQUIRE(ucp_ep_create(worker_.get(), &params, &endpoint) == UCS_OK);
    }
  }

  void Progress() { ucp_worker_progress(worker_.get()); }

 private:
  UcpContext context_;
  UcpWorker worker_;
};

TEST_CASE("strangers that hold connections keep no peer out") {
  Workers workers(2, {{.id = Forward(0), .slot_bytes = 64, .slots = 1}});
  const std::vector<UcxPeer> peers = {{.rank = 0, .address = workers.transports[0]->address()},
                                      {.rank = 1, .address = workers.transports[1]->address()}};
  std::future<absl::Status> listening = std::async(
      std::launch::async, [&] { return workers.transports[1]->Connect(peers, "the secret", In(kGenerousNs)); });
  Strangers strangers(peers[1].address, 80);
  for (const int64_t limit_ns = In(kGenerousNs); workers.transports[1]->stats().refused_frames < 8;) {
    REQUIRE(Clock::Real().NowNs() < limit_ns);
    strangers.Progress();
    Clock::Real().SleepUntilNs(In(kMs));
  }
  // Strangers are shown the door by themselves only after 10 s.
  const absl::Status dialed = workers.transports[0]->Connect(peers, "the secret", In(8'000 * kMs));
  INFO(dialed.ToString());
  CHECK(dialed.ok());
  CHECK(listening.get().ok());
}

TEST_CASE("without a device UCX is not opened, and the message says where to look") {
  UseLoopback();
  setenv("UCX_NET_DEVICES", "nonesuch", 1);
  Allocator allocator(1 << 20);
  UcxTransportOptions options;
  options.allocator = &allocator;
  const auto opened = UcxTransport::Create(std::move(options));
  UseLoopback();
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.status().code() == absl::StatusCode::kUnavailable);
  CHECK(std::string(opened.status().message()).find("UCX_NET_DEVICES") != std::string::npos);
}

// Changes nothing.
class ThroughLayer : public FrameLayer {
 public:
  explicit ThroughLayer(FrameCarrier& below) : below_(below) {}
  void Attach(FrameSink* above) override { above_ = above; }
  int64_t max_payload_bytes(PeerId peer) const override { return below_.max_payload_bytes(peer); }
  int64_t max_header_bytes() const override { return below_.max_header_bytes(); }
  bool Writable(PeerId peer) const override { return below_.Writable(peer); }
  void Send(PeerId peer, const Frame& frame, std::function<void()> done) override {
    below_.Send(peer, frame, std::move(done));
  }
  void Wake() override { below_.Wake(); }
  void OnFrame(PeerId from, const Frame& frame) override { above_->OnFrame(from, frame); }
  void OnPeerUp(PeerId peer) override { above_->OnPeerUp(peer); }
  void OnPeerDown(PeerId peer, const absl::Status& why) override { above_->OnPeerDown(peer, why); }
  int64_t OnProgress(int64_t now_ns) override { return above_->OnProgress(now_ns); }

 private:
  FrameCarrier& below_;
  FrameSink* above_ = nullptr;
};

TEST_CASE("a frame that comes damaged costs no wait for others that it may have overtaken") {
  // Flips a bit in the payload of every eleventh full frame, as memory on the way would; a host that is not this one.
  class Damaging final : public ThroughLayer {
   public:
    using ThroughLayer::ThroughLayer;
    void OnFrame(PeerId from, const Frame& frame) override {
      if (frame.payload.size() < 64 * 1024 || ++full_frames_ % 11 != 0) {
        ThroughLayer::OnFrame(from, frame);
        return;
      }
      std::vector<std::byte> bytes(frame.payload.begin(), frame.payload.end());
      bytes[bytes.size() / 2] ^= std::byte{4};
      ThroughLayer::OnFrame(from, {frame.header, bytes, frame.ready_ns});
    }

   private:
    int full_frames_ = 0;
  };
  constexpr int64_t kWords = 1 << 18;
  constexpr int kMessages = 10;
  Workers workers(2, {{.id = Forward(0), .slot_bytes = 4 * kWords, .slots = 2}}, [](UcxTransportOptions& options) {
    options.near.clear();
    options.links = {{.peer_rank = 1 - options.rank, .latency_ns = kMs}};
    options.sites = {"east", "west"};
    options.layer = [](FrameCarrier& below) -> absl::StatusOr<std::unique_ptr<FrameLayer>> {
      return std::make_unique<Damaging>(below);
    };
  });
  workers.ConnectAll();
  const int64_t begin_ns = In(0);
  for (int i = 0; i < kMessages; ++i) {
    const MessageTag tag{.iteration = i, .micro_batch = 0};
    REQUIRE(workers.transports[0]->Send(Forward(0), tag, workers.Message(0, kWords, i)).ok());
    const auto message = workers.transports[1]->Receive(Forward(0), tag, In(kGenerousNs));
    REQUIRE(message.ok());
    CHECK(Workers::Holds(*message, kWords, i));
  }
  CHECK(In(0) - begin_ns < kMessages * 1000 * kMs);  // two seconds each, when nobody asked
  const TransportStats stats = workers.transports[1]->stats();
  CHECK(stats.corrupt_frames >= kMessages);
  REQUIRE(stats.peers.size() == 1);
  CHECK(stats.peers[0].corrupt_frames == stats.corrupt_frames);
  CHECK(stats.refused_frames == 0);
}

TEST_CASE("a layer stands between UCX and the streams, and its thread is prepared") {
  // Says that every frame was there a second before it was.
  class Early final : public ThroughLayer {
   public:
    using ThroughLayer::ThroughLayer;
    void OnFrame(PeerId from, const Frame& frame) override {
      ThroughLayer::OnFrame(from, {frame.header, frame.payload, frame.ready_ns - 1000 * kMs});
    }
  };
  std::atomic<int> threads = 0;
  Workers workers(2, {{.id = Forward(0), .slot_bytes = 400'000, .slots = 2}}, [&](UcxTransportOptions& options) {
    options.on_thread = [&] { ++threads; };
    options.layer = [](FrameCarrier& below) -> absl::StatusOr<std::unique_ptr<FrameLayer>> {
      return std::make_unique<Early>(below);
    };
  });
  workers.ConnectAll();
  const int64_t begin_ns = In(0);
  REQUIRE(workers.transports[0]->Send(Forward(0), {}, workers.Message(0, 100'000, 1)).ok());
  const auto message = workers.transports[1]->Receive(Forward(0), {}, In(kGenerousNs));
  REQUIRE(message.ok());
  CHECK(message->ready_ns() >= begin_ns - 1000 * kMs);
  CHECK(message->ready_ns() <= In(0) - 1000 * kMs);
  const auto acknowledged_ns = workers.transports[0]->WaitAcknowledged(Forward(0), {}, In(kGenerousNs));
  REQUIRE(acknowledged_ns.ok());
  CHECK(*acknowledged_ns <= In(0) - 1000 * kMs);
  CHECK(threads == 2);
}

// Endpoints of as many workers, and their transports of one epoch.
class Endpoints {
 public:
  explicit Endpoints(int32_t count) {
    UseLoopback();
    for (int32_t rank = 0; rank < count; ++rank) {
      allocators.push_back(std::make_unique<Allocator>(int64_t{1} << 30));
      endpoints.push_back(std::make_unique<UcxEndpoint>(NetworkLimits{}, nullptr));
    }
    transports.resize(count);
  }

  void Open(int32_t rank, uint64_t epoch, const std::function<void(UcxTransportOptions&)>& adjust = nullptr) {
    UcxTransportOptions options;
    options.rank = rank;
    options.job_hash = 5;
    options.epoch = epoch;
    options.allocator = allocators[rank].get();
    for (int32_t boundary = 0; boundary + 1 < std::ssize(endpoints); ++boundary) {
      for (const ChannelId& id : {Forward(boundary), Backward(boundary)}) {
        if (id.from_rank == rank || id.to_rank == rank) {
          options.channels.push_back({.id = id, .slot_bytes = 200'000, .slots = 2});
        }
      }
    }
    if (adjust) {
      adjust(options);
    }
    transports[rank] = nullptr;
    auto opened = endpoints[rank]->Open(std::move(options));
    REQUIRE(opened.ok());
    transports[rank] = *std::move(opened);
  }
  void OpenAll(uint64_t epoch) {
    for (int32_t rank = 0; rank < std::ssize(endpoints); ++rank) {
      Open(rank, epoch);
    }
  }
  std::vector<UcxPeer> Peers() const {
    std::vector<UcxPeer> peers;
    for (int32_t rank = 0; rank < std::ssize(transports); ++rank) {
      peers.push_back({.rank = rank, .address = transports[rank]->address()});
    }
    return peers;
  }

  std::vector<std::unique_ptr<Allocator>> allocators;
  std::vector<std::unique_ptr<UcxEndpoint>> endpoints;
  std::vector<std::unique_ptr<UcxTransport>> transports;
};

TEST_CASE("epoch after epoch over the same endpoints, however each one ends") {
  constexpr int32_t kRanks = 3;
  constexpr int64_t kWords = 30'000;
  const uint64_t seed = 16;
  INFO("seed " << seed);
  SplitMix64 random(seed);
  Endpoints workers(kRanks);
  std::vector<std::string> addresses;
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    workers.OpenAll(epoch);
    const std::string secret = "secret " + std::to_string(epoch);
    const std::vector<UcxPeer> peers = workers.Peers();
    if (addresses.empty()) {
      std::ranges::transform(peers, std::back_inserter(addresses), &UcxPeer::address);
    }
    // Each rank sends to both neighbours and takes what they send, up to a random message.
    std::vector<std::future<absl::Status>> ranks;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      CHECK(peers[rank].address == addresses[rank]);
      const auto rounds = static_cast<int64_t>(random.Next() % 12);
      const auto late_ns = static_cast<int64_t>(random.Next() % 3) * 30 * kMs;
      ranks.push_back(std::async(std::launch::async, [&, rank, rounds, late_ns]() -> absl::Status {
        Clock::Real().SleepUntilNs(In(late_ns));
        UcxTransport& transport = *workers.transports[rank];
        GP_RETURN_IF_ERROR(transport.Connect(peers, secret, In(kGenerousNs)));
        for (int64_t round = 0; round < 2 + rounds; ++round) {
          for (const int32_t peer : {rank - 1, rank + 1}) {
            if (peer < 0 || peer >= kRanks) {
              continue;
            }
            const ChannelId out = peer > rank ? Forward(rank) : Backward(peer);
            const ChannelId in = peer > rank ? Backward(rank) : Forward(peer);
            auto tensor = Tensor::Zeros(*workers.allocators[rank], MemoryCategory::kTransport, DType::kInt32, {kWords});
            GP_RETURN_IF_ERROR(tensor.status());
            tensor->int32()[0] = static_cast<int32_t>(epoch);
            GP_RETURN_IF_ERROR(transport.Send(out, {round, 0}, {*std::move(tensor), Completion::At(In(0))}));
            if (round < 2) {  // which all ranks reach
              GP_ASSIGN_OR_RETURN(const Timed<Tensor> message, transport.Receive(in, {round, 0}, In(kGenerousNs)));
              GP_CHECK(message.value.int32()[0] == static_cast<int32_t>(epoch), "a message of another epoch");
            }
          }
        }
        return absl::OkStatus();
      }));
    }
    for (std::future<absl::Status>& rank : ranks) {
      const absl::Status status = rank.get();
      INFO(status.ToString());
      CHECK(status.ok());
    }
  }
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    workers.transports[rank] = nullptr;
    CHECK(workers.allocators[rank]->total().bytes == 0);
  }
}

TEST_CASE("a peer that still is in an ended epoch is refused and counted, and let in when it follows") {
  Endpoints workers(2);
  workers.OpenAll(1);
  std::vector<UcxPeer> peers = workers.Peers();
  const auto connect = [&](int32_t rank, const std::string& secret, int64_t limit_ns) {
    return std::async(std::launch::async, [&, rank, secret, limit_ns] {
      return workers.transports[rank]->Connect(peers, secret, In(limit_ns));
    });
  };
  {
    auto zero = connect(0, "one", kGenerousNs);
    auto one = connect(1, "one", kGenerousNs);
    REQUIRE(zero.get().ok());
    REQUIRE(one.get().ok());
  }
  workers.Open(1, 2);  // says goodbye to rank 0
  workers.Open(0, 1);  // of the old epoch
  {
    auto one = connect(1, "two", 400 * kMs);
    auto zero = connect(0, "one", 400 * kMs);
    CHECK(absl::IsDeadlineExceeded(one.get()));
    const absl::Status stale = zero.get();
    CHECK(std::string(stale.message()).find("another job, epoch or secret") != std::string::npos);
    CHECK(workers.transports[1]->stats().refused_frames > 0);
  }
  workers.OpenAll(3);
  CHECK(workers.transports[1]->stats().refused_frames == 0);
  auto one = connect(1, "three", kGenerousNs);
  auto zero = connect(0, "three", kGenerousNs);
  CHECK(zero.get().ok());
  CHECK(one.get().ok());
}

TEST_CASE("each session has its own layer") {
  Endpoints workers(2);
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    int made = 0;
    for (const int32_t rank : {0, 1}) {
      workers.Open(rank, epoch, [&](UcxTransportOptions& options) {
        options.layer = [&](FrameCarrier&) -> absl::StatusOr<std::unique_ptr<FrameLayer>> {
          ++made;
          return nullptr;
        };
      });
    }
    CHECK(made == 2);
  }
  UcxTransportOptions options;
  options.allocator = workers.allocators[0].get();
  options.layer = [](FrameCarrier&) { return absl::UnavailableError("no pacer"); };
  workers.transports[0] = nullptr;
  CHECK(workers.endpoints[0]->Open(std::move(options)).status() == absl::UnavailableError("no pacer"));
  workers.Open(0, 4);
}

}  // namespace
}  // namespace geopipe
