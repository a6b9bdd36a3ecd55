#include "runtime/rehearsal/link/link_shaper.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/durations.h"
#include "tests/support/fake_clock.h"

namespace geopipe {
namespace {

constexpr double kBandwidth = 125e6;  // 1 Gbit/s: 8 ns a byte

// Records when frames come through, their first byte, and when they are due.
class Below final : public FrameCarrier {
 public:
  explicit Below(const Clock& clock) : clock_(clock) {}
  int64_t max_payload_bytes(PeerId /*peer*/) const override { return 64 * 1024; }
  bool SameHost(PeerId /*peer*/) const override { return same_host; }
  int64_t max_header_bytes() const override { return 4096; }
  bool Writable(PeerId /*peer*/) const override { return writable; }
  void Send(PeerId /*peer*/, const Frame& frame, std::function<void()> done) override {
    const std::optional<TimedHeader> ahead = TimedHeader::Decode(frame.header);
    done();
    if (ahead.has_value() && ahead->kind != TimedHeader::Kind::kFrame) {
      ++echoes;
      return;
    }
    const auto header = frame.header.subspan(ahead.has_value() ? TimedHeader::kBytes : 0);
    arrivals.push_back({static_cast<int>(header[0]), clock_.NowNs()});
    due_ns.push_back(ahead.has_value() ? ahead->ns : 0);
  }
  void Wake() override {}

  std::vector<std::pair<int, int64_t>> arrivals;
  std::vector<int64_t> due_ns;  // 0: not told
  int echoes = 0;
  bool writable = true;
  bool same_host = true;

 private:
  const Clock& clock_;
};

// Offers `left` frames of 1000 bytes, which are ready now, as fast as they are taken; records when those that come up
// were there.
class Above final : public FrameSink {
 public:
  explicit Above(const Clock& clock) : clock_(clock) {}
  void OnFrame(PeerId /*from*/, const Frame& frame) override { came_ns.push_back(frame.ready_ns); }
  void OnPeerUp(PeerId /*peer*/) override {}
  void OnPeerDown(PeerId /*peer*/, const absl::Status& /*why*/) override {}
  int64_t OnProgress(int64_t /*now_ns*/) override {
    while (left > 0 && carrier->Writable(1)) {
      ready_ns = ready_ns == 0 ? clock_.NowNs() : ready_ns;
      const std::array<std::byte, 1> header{static_cast<std::byte>(number++)};
      carrier->Send(1, {header, std::span(payload).first(999), ready_ns}, [this] { ++done; });
      --left;
    }
    return kNeverNs;
  }

  FrameCarrier* carrier = nullptr;
  int left = 0;
  int number = 0;
  int done = 0;
  int64_t ready_ns = 0;  // of all frames; 0: when the first is offered
  std::vector<int64_t> came_ns;
  std::vector<std::byte> payload = std::vector<std::byte>(1000);

 private:
  const Clock& clock_;
};

struct ShapedWorld {
  explicit ShapedWorld(std::vector<PeerShape> shapes, bool keeps_time = false) {
    auto made = LinkShaper::Create(below, {.shapes = std::move(shapes), .keeps_time = keeps_time}, clock);
    REQUIRE(made.ok());
    shaper = *std::move(made);
    shaper->Attach(&above);
    above.carrier = shaper.get();
    clock.AdvanceNs(1000 * kMs);
    shaper->OnPeerUp(1);
  }
  // The peer's shaper has spoken.
  void Hear() {
    const auto request = TimedHeader{TimedHeader::Kind::kRequest, 1}.Encode();
    shaper->OnFrame(1, {request, {}, clock.NowNs()});
  }
  // Lets time pass, always to the moment the shaper asked for.
  void Run() {
    for (int64_t next_ns = shaper->OnProgress(clock.NowNs()); next_ns != kNeverNs;
         next_ns = shaper->OnProgress(clock.NowNs())) {
      REQUIRE(next_ns > clock.NowNs());
      clock.SleepUntilNs(next_ns);
    }
  }
  // A frame of 1000 bytes with payload, or of `header_bytes` without.
  void Send(int64_t ready_ns, size_t header_bytes = 0) {
    const std::vector<std::byte> header(header_bytes == 0 ? 100 : header_bytes, std::byte{7});
    const std::span<const std::byte> payload = std::span(above.payload).first(header_bytes == 0 ? 900 : 0);
    shaper->Send(1, {header, payload, ready_ns}, [] {});
  }

  FakeClock clock;
  Below below{clock};
  Above above{clock};
  std::unique_ptr<LinkShaper> shaper;
};

PeerShape Shape() { return {.peer_rank = 1, .latency_ns = 20 * kMs, .bandwidth_bytes_per_s = kBandwidth}; }

constexpr int64_t kBegin = 1000 * kMs;

TEST_CASE("a frame takes its bytes over the bandwidth, and the latency") {
  ShapedWorld world({Shape()});
  world.above.left = 1;
  world.Run();
  REQUIRE(world.below.arrivals.size() == 1);
  CHECK(world.below.arrivals[0].second == kBegin + 20 * kMs + 8000);
  CHECK(world.above.done == 1);
}

TEST_CASE("many frames keep the link full, in order, and the line short") {
  ShapedWorld world({Shape()});
  world.above.left = 2000;  // 2 MB: more than the shaper takes at once
  world.shaper->OnProgress(world.clock.NowNs());
  CHECK(world.above.left > 0);
  world.Run();
  REQUIRE(world.below.arrivals.size() == 2000);
  CHECK(world.below.arrivals.back().second == kBegin + 20 * kMs + 2000 * 8000);
  for (size_t i = 0; i < 2000; ++i) {
    CHECK(world.below.arrivals[i].first == static_cast<int>(i % 256));
  }
}

TEST_CASE("a progress thread that comes late does not slow the link down") {
  ShapedWorld world({Shape()});
  world.above.left = 2000;
  int64_t next_ns = world.shaper->OnProgress(world.clock.NowNs());
  while (next_ns != kNeverNs) {
    world.clock.SleepUntilNs(next_ns + 3 * kMs);
    next_ns = world.shaper->OnProgress(world.clock.NowNs());
  }
  CHECK(world.below.arrivals.back().second <= kBegin + 20 * kMs + 2000 * 8000 + 4 * kMs);
}

TEST_CASE("a frame is due as of when it was ready, however late it is handed over") {
  ShapedWorld world({Shape()});
  world.Hear();
  world.Send(993 * kMs);
  world.Send(993 * kMs);             // waits for the first
  world.Send(1000 * kMs + kMs / 4);  // its maker rests until then
  world.Run();
  REQUIRE(world.below.arrivals.size() == 3);
  CHECK(world.below.due_ns ==
        std::vector<int64_t>{1013 * kMs + 8000, 1013 * kMs + 16'000, 1020 * kMs + kMs / 4 + 8000});
  // No message arrives sooner than the latency after it was handed over.
  CHECK(world.below.arrivals[0].second == 1020 * kMs);
  CHECK(world.below.arrivals[1].second == 1020 * kMs);
  CHECK(world.below.arrivals[2].second == 1020 * kMs + kMs / 4 + 8000);
}

TEST_CASE("acknowledgements and payload are due as they were ready, whichever a late thread brings first") {
  ShapedWorld world({Shape()});
  world.Hear();
  constexpr int64_t kTookNs = 100 * 8;
  world.Send(990 * kMs);
  world.Send(995 * kMs);
  world.Send(995 * kMs);
  world.Send(993 * kMs, 100);      // between the first and the second
  world.Send(995 * kMs - 1, 100);  // the second is under way before it could go
  world.Send(999 * kMs, 100);
  world.Send(997 * kMs);  // its maker was late, and the acknowledgement behind it in time
  world.Run();
  CHECK(world.below.due_ns == std::vector<int64_t>{1010 * kMs + 8000, 1015 * kMs + 8000, 1015 * kMs + 16'000,
                                                   1013 * kMs + kTookNs, 1015 * kMs + 16'000 + kTookNs,
                                                   1019 * kMs + kTookNs, 1017 * kMs + 8000});
}

TEST_CASE("a time far from now is no lateness of a thread") {
  ShapedWorld world({Shape()});
  world.Hear();
  world.Send(1);
  world.Send(5000 * kMs);
  world.Run();
  CHECK(world.below.due_ns == std::vector<int64_t>{920 * kMs + 8000, 1120 * kMs + 8000});
}

TEST_CASE("a peer without a shaper is sent plain frames") {
  ShapedWorld world({Shape()});
  world.Send(993 * kMs);
  world.Run();
  CHECK(world.below.due_ns == std::vector<int64_t>{0});
  CHECK(world.below.echoes > 0);
}

TEST_CASE("a frame was there when it was due, inside a host") {
  ShapedWorld world({Shape()});
  const std::vector<std::byte> bytes = [] {
    const auto ahead = TimedHeader{TimedHeader::Kind::kFrame, 995 * kMs}.Encode();
    std::vector<std::byte> frame(ahead.begin(), ahead.end());
    frame.resize(frame.size() + 10);
    return frame;
  }();
  world.shaper->OnFrame(1, {bytes, {}, 1000 * kMs});
  world.shaper->OnFrame(1, {bytes, {}, 1200 * kMs});                         // that is no lateness of a thread
  world.shaper->OnFrame(1, {std::span(bytes).subspan(13), {}, 1000 * kMs});  // plain
  world.below.same_host = false;
  world.shaper->OnPeerUp(1);
  world.shaper->OnFrame(1, {bytes, {}, 1000 * kMs});
  CHECK(world.above.came_ns == std::vector<int64_t>{995 * kMs, 1100 * kMs, 1000 * kMs, 1000 * kMs});
}

TEST_CASE("where devices' time is kept, other peers' frames are due when they were ready") {
  const bool keeps_time = GENERATE(true, false);
  ShapedWorld world({}, keeps_time);
  world.Hear();
  world.Send(993 * kMs);
  CHECK(world.below.due_ns == std::vector<int64_t>{keeps_time ? 993 * kMs : 0});
  CHECK(world.below.arrivals[0].second == kBegin);
  CHECK(world.shaper->SameHost(1));
}

TEST_CASE("what a late progress thread hands over needs the latency from then on") {
  ShapedWorld world({Shape()});
  world.above.left = 1000;
  const int64_t next_ns = world.shaper->OnProgress(world.clock.NowNs());
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
  world.above.ready_ns = 0;
  world.above.left = 10;
  world.Run();
  CHECK(world.below.arrivals.back().second == now_ns + 20 * kMs + 10 * 8000);
}

TEST_CASE("peers without a shape pass untouched") {
  ShapedWorld world({});
  world.above.left = 1;
  world.Run();
  REQUIRE(world.below.arrivals.size() == 1);
  CHECK(world.below.arrivals[0].second == kBegin);
  CHECK(world.below.echoes == 0);
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
  CHECK(LinkShaper::Create(below, {.shapes = {negative}}, clock).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(LinkShaper::Create(below, {.shapes = {Shape(), Shape()}}, clock).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a shaped peer is on another host, wherever it is") {
  const ShapedWorld world({{.peer_rank = 1, .latency_ns = kMs}});
  CHECK_FALSE(world.shaper->SameHost(1));
  CHECK(world.shaper->SameHost(2));
}

}  // namespace
}  // namespace geopipe
