// Checks that the samples of each iteration, and their places in it, are the same for every grid and micro-batch size.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <compare>
#include <map>
#include <mutex>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/data/samples/sample_mix.h"
#include "runtime/data/samples/sample_order.h"
#include "runtime/data/samples/training_data.h"
#include "tests/runtime/executor/grid_run.h"
#include "tests/runtime/executor/random_grid.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr int64_t kWindows = 41;  // three iterations of 24 samples go through them almost twice
constexpr int64_t kSamples = 24;
constexpr int64_t kIterations = 3;
constexpr int32_t kSampledGrids = kSanitized ? 8 : 60;

struct Sample {
  int64_t iteration = 0;
  int64_t number = 0;  // in the iteration
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;

  friend auto operator<=>(const Sample&, const Sample&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Sample& sample) {
    return out << fmt::format("{} of iteration {}: {}", sample.number, sample.iteration, fmt::join(sample.inputs, " "));
  }
};

// A micro-batch as a rank has read it.
using Batch = std::vector<Sample>;

class RecordedTokens final : public TokenSource {
 public:
  RecordedTokens(std::unique_ptr<TrainingData> data, int64_t sequence_length, std::vector<Batch>& read)
      : data_(std::move(data)), sequence_length_(sequence_length), read_(read) {}

  absl::Status Read(int64_t iteration, int64_t first_sample, int64_t samples, std::span<int32_t> inputs,
                    std::span<int32_t> targets) override {
    const absl::Status status = data_->Read(iteration, first_sample, samples, inputs, targets);
    Batch& batch = read_.emplace_back();
    for (int64_t i = 0; i < samples; ++i) {
      const auto of_sample = [&](std::span<int32_t> tokens) {
        const std::span<int32_t> part = tokens.subspan(i * sequence_length_, sequence_length_);
        return std::vector<int32_t>(part.begin(), part.end());
      };
      batch.push_back({iteration, first_sample + i, of_sample(inputs), of_sample(targets)});
    }
    return status;
  }

 private:
  const std::unique_ptr<TrainingData> data_;
  const int64_t sequence_length_;
  std::vector<Batch>& read_;
};

// Trains on files of random tokens, and keeps what each rank reads of them.
class Recorded {
 public:
  // `windows` of each file; `weights` as a job's.
  Recorded(uint64_t seed, const GridOptions& options, const std::vector<int64_t>& windows,
           std::vector<double> weights = {}) {
    std::mt19937_64 random(seed);
    job_.model = options.model;
    job_.training = options.training;
    job_.data.weights = std::move(weights);
    for (const int64_t count : windows) {
      std::vector<uint16_t>& tokens = tokens_.emplace_back((count * options.sequence_length) + 1);
      for (uint16_t& token : tokens) {
        token = static_cast<uint16_t>(Draw(random, 0, options.model.vocab_size - 1));
      }
      job_.data.paths.push_back(
          folder_.Write(fmt::format("tokens{}.bin", tokens_.size()),
                        std::string(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size())));
    }
  }

  const std::vector<uint16_t>& tokens(size_t file) const { return tokens_[file]; }
  const JobSpec& job() const { return job_; }

  GridResult Train(GridOptions options) {
    read_.clear();
    options.tokens = [&](const Rank& rank) {
      const std::scoped_lock lock(mutex_);
      return std::make_unique<RecordedTokens>(*TrainingData::Open(job_, options.sequence_length),
                                              options.sequence_length, read_[Key(rank)]);
    };
    return TrainGrid(options);
  }
  // Batches of the latest run, in the order of reading.
  const std::vector<Batch>& ReadBy(const Rank& rank) { return read_[Key(rank)]; }

 private:
  using RankKey = std::tuple<int32_t, int32_t, int32_t>;
  static RankKey Key(const Rank& rank) { return {rank.pipeline, rank.data, rank.tensor}; }

  const TempDir folder_;
  std::vector<std::vector<uint16_t>> tokens_;  // of each file
  JobSpec job_;
  std::mutex mutex_;
  std::map<RankKey, std::vector<Batch>> read_;
};

std::vector<Sample> Flat(const std::vector<Batch>& batches) {
  std::vector<Sample> samples;
  for (const Batch& batch : batches) {
    samples.insert(samples.end(), batch.begin(), batch.end());
  }
  return samples;
}

GridOptions RandomGrid(std::mt19937_64& random) {
  GridOptions options = SmallGrid(/*tied=*/false, /*kv_heads=*/2);
  options.iterations = kIterations;
  do {
    Randomise(random, options);
    if (Draw(random, 0, 3) == 0) {
      options.grid = {.pipeline = 2, .data = 3, .tensor = 1};
      options.recompute.resize(2, Recompute::kNone);
    }
    options.micro_batch_size = Draw(random, 1, 6);
  } while (kSamples % (options.micro_batch_size * options.grid.data * options.grid.pipeline) != 0);
  return options;
}

// Micro-batch q of replica d has number q * replicas + d, and its samples are the next b of the sequence.
std::vector<Batch> ExpectedOf(const std::vector<Sample>& sequence, int64_t replica, const GridOptions& options) {
  const int64_t b = options.micro_batch_size;
  std::vector<Batch> batches;
  for (int64_t i = 0; i < kIterations; ++i) {
    for (int64_t first = replica * b; first < kSamples; first += options.grid.data * b) {
      const auto begin = sequence.begin() + i * kSamples + first;
      batches.emplace_back(begin, begin + b);
    }
  }
  return batches;
}

// Checks what ranks of the pipeline's first and last stage have read, and that the others read nothing.
void CheckReads(Recorded& recorded, const std::vector<Sample>& sequence, const GridOptions& options) {
  const ProcessGrid& grid = options.grid;
  std::map<std::pair<int32_t, int32_t>, std::vector<Sample>> together;  // over replicas, by pipeline and tensor rank
  for (int32_t number = 0; number < grid.size(); ++number) {
    const Rank rank = grid.At(number);
    INFO("pipeline rank " << rank.pipeline << ", replica " << rank.data << ", tensor rank " << rank.tensor);
    std::vector<Batch> read = recorded.ReadBy(rank);
    if (rank.pipeline > 0 && rank.pipeline < grid.pipeline - 1) {
      CHECK(read.empty());
      continue;
    }
    std::vector<Batch> expected = ExpectedOf(sequence, rank.data, options);
    if (grid.pipeline == 1 && options.stages_per_rank > 1) {
      // Its first stage reads inputs and its last one targets, in turns: each micro-batch twice.
      const std::vector<Batch> again = expected;
      expected.insert(expected.end(), again.begin(), again.end());
      std::ranges::sort(expected);
      std::ranges::sort(read);
    }
    CHECK(read == expected);
    const std::vector<Sample> flat = Flat(read);
    std::vector<Sample>& all = together[{rank.pipeline, rank.tensor}];
    all.insert(all.end(), flat.begin(), flat.end());
  }
  for (auto& [place, samples] : together) {
    INFO("pipeline rank " << place.first << ", tensor rank " << place.second << ", all replicas");
    std::ranges::sort(samples);
    const auto copies = static_cast<int64_t>(samples.size() / sequence.size());
    std::vector<Sample> expected;
    for (const Sample& sample : sequence) {
      expected.insert(expected.end(), copies, sample);
    }
    CHECK(samples == expected);
  }
}

TEST_CASE("every micro-batch size and grid trains on the same samples at the same places") {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  GridOptions single = SmallGrid(/*tied=*/false, /*kv_heads=*/2);
  single.micro_batch_size = 1;
  single.iterations = kIterations;
  const int64_t s = single.sequence_length;
  REQUIRE(single.training.tokens_per_iteration == kSamples * s);
  Recorded recorded(seed, single, {kWindows});
  const GridResult alone = recorded.Train(single);
  REQUIRE(alone.status.ok());
  const std::vector<Sample> sequence = Flat(recorded.ReadBy({}));
  REQUIRE(sequence.size() == kIterations * kSamples);
  const SampleOrder order(recorded.job().training.seed, recorded.job().data.shuffle, kWindows, kSamples);
  for (int64_t i = 0; i < std::ssize(sequence); ++i) {
    const Sample& sample = sequence[i];
    CHECK(sample.iteration == i / kSamples);
    CHECK(sample.number == i % kSamples);
    const auto window = recorded.tokens(0).begin() + order.Window(sample.iteration, sample.number) * s;
    CHECK(std::equal(window, window + s, sample.inputs.begin(), sample.inputs.end()));
    CHECK(std::equal(window + 1, window + s + 1, sample.targets.begin(), sample.targets.end()));
  }

  std::set<std::tuple<int64_t, int32_t, int32_t>> kinds;  // b, replicas, pipeline ranks
  for (int32_t i = 0; i < kSampledGrids; ++i) {
    const GridOptions options = RandomGrid(random);
    INFO("GEOPIPE_TEST_SEED=" << seed << ", number " << i << ": " << options.name());
    const GridResult result = recorded.Train(options);
    INFO(result.status);
    REQUIRE(result.status.ok());
    CheckReads(recorded, sequence, options);
    // They are not only read: it trains like one process.
    CHECK(Farthest(result.losses, alone.losses) <= 2e-5);
    kinds.emplace(options.micro_batch_size, options.grid.data, options.grid.pipeline);
  }
  fmt::print("seed {}: {} grids, {} kinds of (b, replicas, pipeline ranks), {} samples each\n", seed, kSampledGrids,
             kinds.size(), sequence.size());
}

TEST_CASE("every micro-batch size and grid trains on the same mix of files") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  GridOptions single = SmallGrid(/*tied=*/false, /*kv_heads=*/2);
  single.micro_batch_size = 1;
  single.iterations = kIterations;
  const int64_t s = single.sequence_length;
  const std::vector<int64_t> windows{30, 7, 20};  // the second is read three times
  const std::vector<double> weights{0.5, 0.3, 0.2};
  Recorded recorded(seed, single, windows, weights);
  REQUIRE(recorded.Train(single).status.ok());
  const std::vector<Sample> sequence = Flat(recorded.ReadBy({}));
  REQUIRE(sequence.size() == kIterations * kSamples);
  const SampleMix mix(weights);
  for (int64_t i = 0; i < std::ssize(sequence); ++i) {
    const SampleMix::Place place = mix.At(i);
    const SampleOrder order(recorded.job().training.seed, true, windows[place.file], kSamples, place.file);
    const auto window = recorded.tokens(place.file).begin() + order.At(place.index) * s;
    CHECK(std::equal(window, window + s, sequence[i].inputs.begin(), sequence[i].inputs.end()));
    CHECK(std::equal(window + 1, window + s + 1, sequence[i].targets.begin(), sequence[i].targets.end()));
  }
  for (int32_t i = 0; i < kSampledGrids / 4; ++i) {
    const GridOptions options = RandomGrid(random);
    INFO("number " << i << ": " << options.name());
    REQUIRE(recorded.Train(options).status.ok());
    CheckReads(recorded, sequence, options);
  }
}

}  // namespace
}  // namespace geopipe
