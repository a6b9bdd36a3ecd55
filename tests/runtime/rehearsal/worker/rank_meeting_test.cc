#include "runtime/rehearsal/worker/rank_meeting.h"

#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "tests/support/durations.h"
#include "tests/support/fake_clock.h"

namespace geopipe {
namespace {

// The transport of one rank: what it hears is laid down before, and what it tells is kept.
class Mailbox final : public MessageTransport {
 public:
  Mailbox(Allocator& allocator, const ActionWatch& watch) : allocator_(allocator), watch_(watch) {}

  // The next arrival of `from` that the rank hears of.
  void Lay(int32_t from, int64_t arrived_ns) { arrivals_[from].push_back(arrived_ns); }

  absl::Status Send(const ChannelId& channel, const MessageTag& tag, Timed<Tensor> message) override {
    CHECK(channel.kind == MessageKind::kArrival);
    told[channel.to_rank].push_back(message.ready_ns());
    tags.insert({tag.iteration, tag.micro_batch});
    return absl::OkStatus();
  }
  absl::StatusOr<Timed<Tensor>> Receive(const ChannelId& channel, const MessageTag&, int64_t) override {
    waited_in_action |= watch_.Now().has_value();
    std::deque<int64_t>& waiting = arrivals_[channel.from_rank];
    if (waiting.empty()) {
      return absl::DeadlineExceededError("no message");
    }
    const int64_t arrived_ns = waiting.front();
    waiting.pop_front();
    auto message = Tensor::Zeros(allocator_, MemoryCategory::kTransport, DType::kInt32, {1});
    return Timed<Tensor>{.value = *std::move(message), .ready = Completion::At(arrived_ns)};
  }
  absl::StatusOr<int64_t> WaitAcknowledged(const ChannelId&, const MessageTag&, int64_t) override {
    return absl::UnimplementedError("arrivals are not waited for");
  }
  void Fail(absl::Status) override {}

  std::map<int32_t, std::vector<int64_t>> told;
  std::set<std::pair<int64_t, int32_t>> tags;
  bool waited_in_action = false;

 private:
  Allocator& allocator_;
  const ActionWatch& watch_;
  std::map<int32_t, std::deque<int64_t>> arrivals_;
};

// One of the ranks 4, 6 and 8, with what it hears.
struct OneRank {
  explicit OneRank(int32_t own) : meeting({4, 6, 8}, own, 3'000 * kMs, allocator, clock), mailbox(allocator, watch) {
    meeting.Use(mailbox, watch);
  }

  FakeClock clock;
  Allocator allocator{1 << 16};
  ActionWatch watch;
  RankMeeting meeting;
  Mailbox mailbox;
};

TEST_CASE("ranks have met when the last of them has come, whoever that is") {
  const int64_t own_ns = GENERATE(100, 300, 500);
  OneRank first(4);
  first.mailbox.Lay(6, 400);
  first.mailbox.Lay(8, 200);
  const int64_t met_ns = *first.meeting.Meet(7, 3, own_ns);
  CHECK(met_ns == std::max<int64_t>(own_ns, 400));
  CHECK(first.mailbox.told == std::map<int32_t, std::vector<int64_t>>{{6, {met_ns}}, {8, {met_ns}}});
  CHECK(first.mailbox.tags == std::set<std::pair<int64_t, int32_t>>{{7, 3}});

  OneRank other(8);
  other.mailbox.Lay(4, 400);
  CHECK(*other.meeting.Meet(7, 3, own_ns) == std::max<int64_t>(own_ns, 400));
  CHECK(other.mailbox.told == std::map<int32_t, std::vector<int64_t>>{{4, {own_ns}}});
}

TEST_CASE("every channel of a meeting has its two ends, and a slot for the next arrival") {
  std::map<ChannelId, int> ends;
  for (const int32_t own : {4, 6, 8}) {
    for (const ChannelSpec& channel : OneRank(own).meeting.Channels()) {
      CHECK((channel.id.from_rank == own || channel.id.to_rank == own));
      CHECK(channel.slots == 2);
      CHECK(channel.slot_bytes == 4);
      ++ends[channel.id];
    }
  }
  CHECK(ends.size() == 4);  // between the first and each of the others
  for (const auto& [id, count] : ends) {
    CHECK(count == 2);
    CHECK((id.from_rank == 4 || id.to_rank == 4));
  }
}

TEST_CASE("a rank that waits for others is at no action, and goes on with its own") {
  OneRank rank(6);
  rank.mailbox.Lay(4, 0);
  const Action forward{.stage = 1, .kind = ActionKind::kForward, .micro_batch = 2};
  {
    const ActionWatch::Scope scope(&rank.watch, forward, rank.clock);
    rank.clock.AdvanceNs(50);
    REQUIRE(rank.meeting.Meet(0, 2, 0).ok());
    CHECK_FALSE(rank.mailbox.waited_in_action);
    REQUIRE(rank.watch.Now().has_value());
    CHECK(rank.watch.Now()->action == forward);
    CHECK(rank.watch.Now()->since_ns == 50);
  }
  rank.mailbox.Lay(4, 0);
  REQUIRE(rank.meeting.Meet(0, 0, 0).ok());  // between two actions
  CHECK_FALSE(rank.watch.Now().has_value());
}

TEST_CASE("a rank that does not come is named") {
  OneRank rank(4);
  rank.mailbox.Lay(6, 0);
  const absl::Status late = rank.meeting.Meet(0, 0, 0).status();
  CHECK(absl::IsDeadlineExceeded(late));
  CHECK(late.message() == "rank 8 has not come to the collective that it shares with rank 4 within 3.0 s; it is stuck");
}

}  // namespace
}  // namespace geopipe
