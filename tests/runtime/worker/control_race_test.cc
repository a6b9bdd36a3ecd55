// Tests a worker's control of checkpoints where what training and the writer tell it comes late.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "tests/runtime/worker/control_harness.h"

namespace geopipe {
namespace {

// Training up to iteration 10 with a turn before every third, and a writer: what they tell lies in a queue while the
// control is given orders.
class RandomTraining {
 public:
  explicit RandomTraining(SplitMix64& random) : random_(random) {}

  void Run() {
    for (int i = 0; i < 80; ++i) {
      Do(random_.Next() % 8);
    }
    for (int i = 0; i < 40; ++i) {  // to the end of all
      for (const uint64_t what : {0, 0, 0, 1, 2, 3}) {
        Do(what);
      }
      worker_.Pass(1, [&] { worker_.Beat(); });
    }
    const Told told = ToldBy(worker_);
    std::map<int64_t, int64_t> owed;  // limits on reports, by iteration
    for (int64_t turn = 3; turn <= next_; turn += turn < 9 ? 3 : 1) {
      ++owed[turn];
    }
    for (const auto& [iteration, told_before] : asked_) {
      ++owed[iteration];
      INFO("iteration " << iteration);
      CHECK(std::any_of(told.begin() + told_before, told.end(),
                        [&](const auto& report) { return report.first == iteration; }));
    }
    for (const auto& [iteration, error] : told) {
      INFO("iteration " << iteration << ": " << error);
      CHECK(--owed[iteration] >= 0);
    }
  }

 private:
  void Do(uint64_t what) {
    if (what == 0 && !told_.empty()) {
      WorkerEvent event = std::move(told_.front());
      told_.pop_front();
      if (auto* returned = std::get_if<TrainingReturned>(&event)) {
        returned->unmet_requests.assign(requested_.begin(), requested_.end());
      }
      worker_.Step(std::move(event));
    } else if (what == 1 && trains_) {
      Train();
    } else if (what == 2 && writing_.has_value()) {
      told_.emplace_back(WrittenOf(*std::exchange(writing_, std::nullopt)));
    } else if (what == 3 && saves_) {
      saves_ = false;
      Save(next_);
    } else if (what <= 5 && what > 3 && asked_.size() < 12) {
      const auto iteration = static_cast<int64_t>(what == 4 ? 10 : next_ + random_.Next() % 4);
      asked_.emplace_back(iteration, ToldBy(worker_).size());
      worker_.Command(CheckpointOf(3, iteration));
    } else if (what == 6 && random_.Next() % 8 == 0) {
      worker_.Command(EndOf(3));
    }
    for (; seen_ < worker_.effects.size(); ++seen_) {
      if (const auto* request = std::get_if<RequestCheckpoint>(&worker_.effects[seen_])) {
        requested_.insert(request->iteration);
      }
      if (std::holds_alternative<RunCheckpoint>(worker_.effects[seen_])) {
        CHECK_FALSE(std::exchange(saves_, true));
      }
      ends_ |= std::holds_alternative<EndTraining>(worker_.effects[seen_]);
    }
  }
  void Train() {
    if (next_ == 10 || ends_) {
      trains_ = false;
      const bool is_parked = random_.Next() % 4 == 0;
      told_.emplace_back(ReturnedOf(3, next_, is_parked ? absl::UnavailableError("gone") : absl::OkStatus()));
      return;
    }
    ++next_;
    if (next_ % 3 == 0 || next_ == 10) {
      requested_.insert(next_);
    }
    while (!requested_.empty() && *requested_.begin() <= next_) {
      Save(requested_.extract(requested_.begin()).value());
    }
  }
  void Save(int64_t iteration) {
    const bool is_busy = writing_.value_or(iteration) != iteration;
    const absl::Status passed = absl::FailedPreconditionError("passed");
    told_.emplace_back(TakenOf(iteration, iteration < next_ ? passed : is_busy ? kBusy : absl::OkStatus()));
    if (iteration == next_ && !is_busy) {
      writing_ = iteration;
    }
  }

  SplitMix64& random_;
  Training worker_;
  std::deque<WorkerEvent> told_;
  std::set<int64_t> requested_;
  std::optional<int64_t> writing_;
  int64_t next_ = 0;
  bool trains_ = true;
  bool ends_ = false;
  bool saves_ = false;
  std::vector<std::pair<int64_t, int64_t>> asked_;  // iterations, and how many reports there were then
  size_t seen_ = 0;
};

TEST_CASE("whatever training and the writer are at, each checkpoint is told to who asks, and none without cause") {
  constexpr uint64_t kSeed = 40;
  INFO("seed " << kSeed);
  SplitMix64 random(kSeed);
  for (int round = 0; round < 300; ++round) {
    RandomTraining(random).Run();
  }
}

}  // namespace
}  // namespace geopipe
