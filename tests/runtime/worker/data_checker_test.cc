#include "runtime/worker/data_checker.h"

#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/token_file.h"
#include "tests/support/durations.h"
#include "tests/support/sparse_file.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

// The machine's clock, set by so much, which goes on by itself at every look. Whoever sleeps sleeps on the machine's.
class SetClock final : public Clock {
 public:
  SetClock(int64_t offset_ns, int64_t look_ns) : offset_ns_(offset_ns), look_ns_(look_ns) {}

  int64_t NowNs() const override {
    const std::lock_guard lock(mutex_);
    offset_ns_ += look_ns_;
    ++looks_;
    looked_.notify_all();
    return Clock::Real().NowNs() + offset_ns_;
  }
  int64_t UnixNowNs() const override { return 0; }
  void SleepUntilNs(int64_t) override {}

  void AwaitLooks(int looks) {
    std::unique_lock lock(mutex_);
    looked_.wait(lock, [&] { return looks_ >= looks; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable looked_;
  mutable int64_t offset_ns_;
  const int64_t look_ns_;
  mutable int looks_ = 0;
};

// Times before the machine's clock need no sleep.
constexpr int64_t kLongAgoNs = -1'000'000 * kSecond;

std::unique_ptr<Corpus> Tokens(const std::string& path, int64_t vocab_size = 10) {
  auto corpus = OpenTokenFiles({path}, TokenDtype::kUint16, vocab_size);
  REQUIRE(corpus.ok());
  return *std::move(corpus);
}

// Waits for what the checker tells.
class Listener {
 public:
  DataChecker::Tell tell() {
    return [this](absl::StatusOr<v1::DataCheckReport> report) {
      const std::lock_guard lock(mutex_);
      over_ = over_ || !report.ok() || report->checksums_size() * report->chunk_bytes() >= report->data_bytes();
      told_.push_back(std::move(report));
      changed_.notify_all();
    };
  }
  // All of it, when the check is over.
  std::vector<absl::StatusOr<v1::DataCheckReport>> Await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return over_; });
    return told_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<absl::StatusOr<v1::DataCheckReport>> told_;
  bool over_ = false;
};

TEST_CASE("what was found is told at the end, and before that every ten seconds at most") {
  const TempDir dir;
  const std::unique_ptr<Corpus> corpus = Tokens(Resize(dir, "tokens", 40 * kMiB));
  std::vector<uint32_t> all;
  for (const bool slow : {false, true}) {
    SetClock clock(kLongAgoNs, slow ? 6 * kSecond : 0);
    Listener listener;
    const DataChecker checker(*corpus, clock, listener.tell());
    const auto told = listener.Await();
    REQUIRE(told.size() == (slow ? 3 : 1));
    for (size_t i = 0; i < told.size(); ++i) {
      REQUIRE(told[i].ok());
      CHECK(told[i]->data_bytes() == 40 * kMiB);
      CHECK(told[i]->chunk_bytes() == 16 * kMiB);
      CHECK(told[i]->checksums_size() == (slow ? static_cast<int>(i) + 1 : 3));
    }
    const std::vector<uint32_t> found(told.back()->checksums().begin(), told.back()->checksums().end());
    CHECK((all.empty() || all == found));
    all = found;
  }
  CHECK(all[0] == all[1]);
  CHECK(all[0] != all[2]);  // it is shorter
}

TEST_CASE("an error is the last word") {
  const TempDir dir;
  const std::string path = Resize(dir, "tokens", 40 * kMiB);
  Poke(path, 20 * kMiB + 5000, "\x0a");
  SetClock clock(kLongAgoNs, 6 * kSecond);
  Listener listener;
  const std::unique_ptr<Corpus> corpus = Tokens(path);
  const DataChecker checker(*corpus, clock, listener.tell());
  const auto told = listener.Await();
  REQUIRE(told.size() == 2);
  CHECK(told[0]->checksums_size() == 1);
  CHECK(told[1].status().message().find(path + ": token 10 at position 10488260 is outside") == 0);
}

TEST_CASE("the check takes a tenth of the time, and not long for a pause of the process") {
  CHECK(DataChecker::RestNs(0) == 0);
  CHECK(DataChecker::RestNs(1'000'000) == 9'000'000);
  CHECK(DataChecker::RestNs(120 * kSecond) == 10 * kSecond);
}

TEST_CASE("a check that rests in the midst of 4 TB ends at once with its worker") {
  const TempDir dir;
  const std::unique_ptr<Corpus> corpus = Tokens(Resize(dir, "tokens", 4'000'000'000'000));
  SetClock clock(1'000 * kSecond, kSecond);  // it would rest for long
  int64_t begin_ns = 0;
  {
    const DataChecker checker(*corpus, clock, [](const absl::StatusOr<v1::DataCheckReport>&) {});
    clock.AwaitLooks(3);  // before, at the beginning and at the end of a piece
    begin_ns = Clock::Real().NowNs();
  }
  CHECK(Clock::Real().NowNs() - begin_ns < 10 * kSecond);
}

}  // namespace
}  // namespace geopipe
