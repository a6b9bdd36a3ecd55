#include "runtime/rehearsal/link_shaper.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/transport/stream/stream_frame.h"
#include "tests/support/durations.h"
#include "tests/support/fake_clock.h"

namespace geopipe {
namespace {

constexpr double kBandwidth = 125e6;  // 1 Gbit/s: 8 ns a byte

// Records when frames come through, as their first header byte says which.
class Below final : public FrameCarrier {
 public:
  explicit Below(const Clock& clock) : clock_(clock) {}
  int64_t max_payload_bytes(PeerId /*peer*/) const override { return 64 * 1024; }
  bool SameHost(PeerId /*peer*/) const override { return same_host; }
  int64_t max_header_bytes() const override { return 4096; }
  bool Writable(PeerId /*peer*/) const override { return writable; }
  void Send(PeerId /*peer*/, std::span<const std::byte> header, std::span<const std::byte> payload,
            std::function<void()> done) override {
    arrivals.push_back({static_cast<int>(header[0]), clock_.NowNs()});
    bytes += static_cast<int64_t>(header.size() + payload.size());
    due_ns.push_back(DueOf(header));
    done();
  }
  void Wake() override {}

  std::vector<std::pair<int, int64_t>> arrivals;
  int64_t bytes = 0;
  std::vector<int64_t> due_ns;
  bool writable = true;
  bool same_host = true;

 private:
  const Clock& clock_;
};

// Offers `left` frames of 1000 bytes as fast as they are taken.
class Above final : public FrameSink {
 public:
  void OnFrame(PeerId /*from*/, std::span<const std::byte> /*header*/,
               std::span<const std::byte> /*payload*/) override {}
  void OnPeerUp(PeerId /*peer*/) override {}
  void OnPeerDown(PeerId /*peer*/, const absl::Status& /*why*/) override {}
  int64_t OnProgress(int64_t /*now_ns*/) override {
    while (left > 0 && carrier->Writable(1)) {
      const std::vector<std::byte> header(1000, static_cast<std::byte>(number++));
      carrier->Send(1, header, {}, [this] { ++done; });
      --left;
    }
    return kNeverNs;
  }

  FrameCarrier* carrier = nullptr;
  int left = 0;
  int number = 0;
  int done = 0;
};

struct ShapedWorld {
  explicit ShapedWorld(std::vector<PeerShape> shapes) {
    auto made = LinkShaper::Create(below, shapes, LinkShaper::Carrier::kInstant, clock);
    REQUIRE(made.ok());
    shaped = *std::move(made);
    shaped->Attach(&above);
    above.carrier = shaped.get();
    shaped->OnPeerUp(1);
  }
  // Lets time pass, always to the moment the shaper asked for.
  void Run() {
    for (int64_t next_ns = shaped->OnProgress(clock.NowNs()); next_ns != kNeverNs;
         next_ns = shaped->OnProgress(clock.NowNs())) {
      REQUIRE(next_ns > clock.NowNs());
      clock.SleepUntilNs(next_ns);
    }
  }

  FakeClock clock;
  Below below{clock};
  Above above;
  std::unique_ptr<LinkShaper> shaped;
};

PeerShape Shape() {
  PeerShape shape;
  shape.peer_rank = 1;
  shape.latency_ns = 20 * kMs;
  shape.bandwidth_bytes_per_s = kBandwidth;
  return shape;
}

TEST_CASE("a frame takes its bytes over the bandwidth, and the latency") {
  ShapedWorld world({Shape()});
  world.above.left = 1;
  world.Run();
  REQUIRE(world.below.arrivals.size() == 1);
  CHECK(world.below.arrivals[0].second == 20 * kMs + 8000);
  CHECK(world.above.done == 1);
}

TEST_CASE("many frames keep the link full, in order, and the line short") {
  ShapedWorld world({Shape()});
  world.above.left = 2000;  // 2 MB: more than the shaper takes at once
  world.shaped->OnProgress(world.clock.NowNs());
  CHECK(world.above.left > 0);
  world.Run();
  REQUIRE(world.below.arrivals.size() == 2000);
  CHECK(world.below.arrivals.back().second == 20 * kMs + 2000 * 8000);
  for (size_t i = 0; i < 2000; ++i) {
    CHECK(world.below.arrivals[i].first == static_cast<int>(i % 256));
  }
}

TEST_CASE("a progress thread that comes late does not slow the link down") {
  ShapedWorld world({Shape()});
  world.above.left = 2000;
  int64_t next_ns = world.shaped->OnProgress(world.clock.NowNs());
  while (next_ns != kNeverNs) {
    world.clock.SleepUntilNs(next_ns + 3 * kMs);
    next_ns = world.shaped->OnProgress(world.clock.NowNs());
  }
  CHECK(world.below.arrivals.back().second <= 20 * kMs + 2000 * 8000 + 4 * kMs);
}

// A frame of 1000 bytes that is ready at `ready_ns`.
void SendReady(ShapedWorld& world, int64_t ready_ns) {
  DataHeader data;
  data.due_ns = ready_ns;
  static const std::vector<std::byte> payload(1000);
  const std::vector<std::byte> header = EncodeData({}, data, payload);
  world.shaped->Send(1, header, std::span(payload).first(1000 - header.size()), [] {});
}

TEST_CASE("what has a due time is due as of when it was ready, however late it is handed over") {
  ShapedWorld world({Shape()});
  CHECK(world.shaped->KeepsTime(1));
  world.below.same_host = false;
  CHECK_FALSE(world.shaped->KeepsTime(1));
  world.clock.AdvanceNs(1000 * kMs);
  SendReady(world, 993 * kMs);
  SendReady(world, 993 * kMs);             // waits for the first
  SendReady(world, 1000 * kMs + kMs / 4);  // its maker rests until then
  SendReady(world, 0);                     // has none
  world.Run();
  REQUIRE(world.below.arrivals.size() == 4);
  CHECK(world.below.due_ns ==
        std::vector<int64_t>{1013 * kMs + 8000, 1013 * kMs + 16'000, 1020 * kMs + kMs / 4 + 8000, 0});
  // None arrives sooner than the latency after it was handed over.
  CHECK(world.below.arrivals[0].second == 1020 * kMs);
  CHECK(world.below.arrivals[1].second == 1020 * kMs);
  CHECK(world.below.arrivals[2].second == 1020 * kMs + kMs / 4 + 8000);
}

TEST_CASE("acknowledgements and payload are due as they were ready, whichever a late thread brings first") {
  ShapedWorld world({Shape()});
  world.clock.AdvanceNs(1000 * kMs);
  const auto acknowledge = [&](int64_t ready_ns) {
    const std::vector<std::byte> header = EncodeControl({}, {.sent_ns = 0, .due_ns = ready_ns});
    world.shaped->Send(1, header, {}, [] {});
    return static_cast<int64_t>(header.size()) * 8;
  };
  SendReady(world, 990 * kMs);
  SendReady(world, 995 * kMs);
  SendReady(world, 995 * kMs);
  const int64_t took_ns = acknowledge(993 * kMs);  // between the first and the second
  acknowledge(995 * kMs - 1);                      // the second is under way before it could go
  acknowledge(999 * kMs);
  SendReady(world, 997 * kMs);  // its maker was late, and the acknowledgement behind it in time
  world.Run();
  CHECK(world.below.due_ns == std::vector<int64_t>{1010 * kMs + 8000, 1015 * kMs + 8000, 1015 * kMs + 16'000,
                                                   1013 * kMs + took_ns, 1015 * kMs + 16'000 + took_ns,
                                                   1019 * kMs + took_ns, 1017 * kMs + 8000});
}

TEST_CASE("a due time far from now is no lateness of a thread") {
  ShapedWorld world({Shape()});
  world.clock.AdvanceNs(1000 * kMs);
  SendReady(world, 1);
  SendReady(world, 5000 * kMs);
  world.Run();
  CHECK(world.below.due_ns == std::vector<int64_t>{920 * kMs + 8000, 1120 * kMs + 8000});
}

TEST_CASE("what a late progress thread hands over needs the latency from then on") {
  ShapedWorld world({Shape()});
  world.above.left = 1000;
  const int64_t next_ns = world.shaped->OnProgress(world.clock.NowNs());
  const auto handed_over = static_cast<size_t>(world.above.number);
  REQUIRE(world.above.left > 0);  // the link is full
  world.clock.SleepUntilNs(next_ns + 10 * kMs);
  const int64_t late_ns = world.clock.NowNs();
  world.Run();
  REQUIRE(world.below.arrivals.size() == 1000);
  CHECK(world.below.arrivals[handed_over - 1].second < late_ns + 20 * kMs);
  CHECK(world.below.arrivals[handed_over].second == late_ns + 20 * kMs);
}

TEST_CASE("an idle link saves nothing up") {
  ShapedWorld world({Shape()});
  world.above.left = 1;
  world.Run();
  world.clock.AdvanceNs(1000 * kMs);
  const int64_t now_ns = world.clock.NowNs();
  world.above.left = 10;
  world.Run();
  CHECK(world.below.arrivals.back().second == now_ns + 20 * kMs + 10 * 8000);
}

TEST_CASE("peers without a shape pass untouched") {
  ShapedWorld world({});
  world.above.left = 1;
  world.Run();
  REQUIRE(world.below.arrivals.size() == 1);
  CHECK(world.below.arrivals[0].second == 0);
}

TEST_CASE("in an outage frames wait, and none are lost") {
  PeerShape shape = Shape();
  shape.outages = {{.begin_ns = 1 * kMs, .end_ns = 300 * kMs}};
  ShapedWorld world({shape});
  world.above.left = 500;  // 4 ms of transmission
  world.Run();
  REQUIRE(world.below.arrivals.size() == 500);
  CHECK(world.below.arrivals.front().second == 20 * kMs + 8000);
  int before = 0;
  for (const auto& [number, at_ns] : world.below.arrivals) {
    CHECK((at_ns < 21 * kMs || at_ns >= 320 * kMs));
    before += at_ns < 21 * kMs ? 1 : 0;
  }
  CHECK(before == 124);
  CHECK(world.below.arrivals.back().second == 320 * kMs + (500 - 124) * 8000);
}

TEST_CASE("jitter lengthens, and lets no frame overtake another") {
  PeerShape shape = Shape();
  shape.jitter_ns = 5 * kMs;
  ShapedWorld world({shape});
  world.above.left = 100;
  world.Run();
  for (size_t i = 0; i < 100; ++i) {
    CHECK(world.below.arrivals[i].first == static_cast<int>(i));
    CHECK(world.below.arrivals[i].second >= 20 * kMs + static_cast<int64_t>(i + 1) * 8000);
    CHECK(world.below.arrivals[i].second <= 25 * kMs + static_cast<int64_t>(i + 1) * 8000);
  }
  CHECK(world.below.arrivals.back().second > 21 * kMs);
}

TEST_CASE("a carrier that takes no more holds the frames up without a busy timer") {
  ShapedWorld world({Shape()});
  world.below.writable = false;
  world.above.left = 3;
  world.Run();
  CHECK(world.below.arrivals.empty());
  world.below.writable = true;
  world.Run();
  CHECK(world.below.arrivals.size() == 3);
}

TEST_CASE("workers that name the same pacer share its bandwidth") {
  std::string folder = (std::filesystem::temp_directory_path() / "geopipe_pacer_XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/link";
  {
    auto first = LinkPacer::Open(path);
    auto second = LinkPacer::Open(path);
    REQUIRE((first.ok() && second.ok()));
    CHECK((*first)->Occupy(100, 50) == 150);
    CHECK((*second)->Occupy(100, 50) == 200);
    CHECK((*first)->Occupy(1000, 50) == 1050);
  }
  std::ofstream(folder + "/other") << "something else that is here";
  CHECK(LinkPacer::Open(folder + "/other").status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(LinkPacer::Open(folder + "/missing/link").status().code() == absl::StatusCode::kUnavailable);
  std::filesystem::remove_all(folder);
}

TEST_CASE("impossible shapes are refused") {
  FakeClock clock;
  Below below(clock);
  PeerShape negative = Shape();
  negative.latency_ns = -1;
  CHECK(LinkShaper::Create(below, {negative}, LinkShaper::Carrier::kInstant, clock).status().code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(LinkShaper::Create(below, {Shape(), Shape()}, LinkShaper::Carrier::kInstant, clock).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a shaped peer is on another host, wherever it is") {
  const ShapedWorld world({{.peer_rank = 1, .latency_ns = kMs}});
  CHECK_FALSE(world.shaped->SameHost(1));
  CHECK(world.shaped->SameHost(2));
}

}  // namespace
}  // namespace geopipe
