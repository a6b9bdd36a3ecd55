// Which sample an iteration reads, and which rank reads it, on every grid.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/training_data.h"
#include "tests/runtime/executor/grid_run.h"
#include "tests/runtime/executor/random_grid.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr int64_t kWindowTokens = 8;
constexpr int64_t kWindows = 35;
constexpr int64_t kOrderedIterations = 3;

// What all ranks have read, by iteration and sample of it: the window, and how often.
struct Readings {
  std::mutex mutex;
  std::map<std::pair<int64_t, int64_t>, std::map<int32_t, int64_t>> windows;
  std::multiset<int64_t> replicas;  // of each rank and iteration that read anything
  std::string wrong;
};

// The job's data, whose tokens say which window they are in, as one rank reads it.
class WatchedData final : public TokenSource {
 public:
  WatchedData(std::unique_ptr<TrainingData> data, int64_t replicas, Readings& readings)
      : data_(std::move(data)), replicas_(replicas), readings_(readings) {}

  absl::Status Read(int64_t iteration, int64_t first_sample, int64_t samples, std::span<int32_t> inputs,
                    std::span<int32_t> targets) override {
    const absl::Status read = data_->Read(iteration, first_sample, samples, inputs, targets);
    const std::lock_guard lock(readings_.mutex);
    const int64_t number = first_sample / samples;  // of the micro-batch in the iteration
    const int64_t replica = number % replicas_;
    if (std::exchange(iteration_, iteration) != iteration) {
      micro_batch_ = 0;
      replica_ = replica;
      readings_.replicas.insert(replica);
    }
    if (first_sample % samples != 0 || number != micro_batch_ * replicas_ + replica_) {
      readings_.wrong += fmt::format("iteration {}: micro-batch {} of replica {} begins at sample {} of {}\n",
                                     iteration, micro_batch_, replica_, first_sample, samples);
    }
    ++micro_batch_;
    for (int64_t sample = 0; sample < samples; ++sample) {
      ++readings_.windows[{iteration, first_sample + sample}][inputs[static_cast<size_t>(sample * kWindowTokens)]];
    }
    return read;
  }

 private:
  std::unique_ptr<TrainingData> data_;
  const int64_t replicas_;
  Readings& readings_;
  int64_t iteration_ = -1;
  int64_t replica_ = 0;
  int64_t micro_batch_ = 0;
};

TEST_CASE("the order of samples is one for every micro-batch size and grid, and replicas take micro-batches in turns") {
  const TempDir dir;
  std::string tokens;
  for (int64_t i = 0; i <= kWindows * kWindowTokens; ++i) {
    tokens += static_cast<char>(std::min(i / kWindowTokens, kWindows - 1));
    tokens += '\0';
  }
  JobSpec job;
  job.model.vocab_size = 36;
  job.data.paths = {dir.Write("tokens.bin", tokens)};

  GridOptions options = SmallGrid(/*tied=*/false, 2);
  options.iterations = kOrderedIterations;
  job.training = options.training;
  const int64_t samples = options.training.tokens_per_iteration / kWindowTokens;
  std::map<std::pair<int64_t, int64_t>, int32_t> expected;
  for (const int64_t b : {1, 2, 3}) {
    for (const ProcessGrid& grid :
         {ProcessGrid{}, ProcessGrid{.pipeline = 3, .data = 1, .tensor = 1},
          ProcessGrid{.pipeline = 1, .data = 4, .tensor = 1}, ProcessGrid{.pipeline = 2, .data = 2, .tensor = 2}}) {
      Readings readings;
      options.micro_batch_size = b;
      options.grid = grid;
      options.tokens = [&]() -> std::unique_ptr<TokenSource> {
        absl::StatusOr<std::unique_ptr<TrainingData>> data = TrainingData::Open(job, kWindowTokens);
        return data.ok() ? std::make_unique<WatchedData>(*std::move(data), grid.data, readings) : nullptr;
      };
      INFO(options.name());
      const GridResult result = TrainGrid(options);
      INFO(result.status);
      REQUIRE(result.status.ok());
      CHECK(readings.wrong.empty());
      // The first and the last stage's tensor ranks, which are the same where there is one stage.
      const int64_t readers = grid.tensor * (grid.pipeline > 1 ? 2 : 1);
      for (int64_t replica = 0; replica < grid.data; ++replica) {
        CHECK(std::cmp_equal(readings.replicas.count(replica), readers * kOrderedIterations));
      }
      REQUIRE(std::ssize(readings.windows) == kOrderedIterations * samples);
      for (const auto& [place, windows] : readings.windows) {
        REQUIRE(windows.size() == 1);
        if (grid.size() == 1 && b == 1) {
          expected[place] = windows.begin()->first;
        }
      }
      std::map<std::pair<int64_t, int64_t>, int32_t> found;
      for (const auto& [place, windows] : readings.windows) {
        found[place] = windows.begin()->first;
      }
      CHECK(found == expected);
    }
  }
}

}  // namespace
}  // namespace geopipe
