#include "runtime/data/samples/training_data.h"

#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/sparse_file.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

// 42 tokens 0..41 in a file: for s = 4, ten windows and one token too many.
JobSpec CountingJob(const TempDir& dir) {
  std::vector<uint16_t> tokens(42);
  std::iota(tokens.begin(), tokens.end(), uint16_t{0});
  JobSpec job;
  job.model.vocab_size = 64;
  job.data.paths = {
      dir.Write("tokens.bin", std::string(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()))};
  job.data.shuffle = false;
  job.training.tokens_per_iteration = 12;
  return job;
}

struct Batch {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
};

Batch Read(TrainingData& data, int64_t iteration, int64_t first_sample, int64_t samples, int64_t s) {
  Batch batch{std::vector<int32_t>(samples * s), std::vector<int32_t>(samples * s)};
  REQUIRE(data.Read(iteration, first_sample, samples, batch.inputs, batch.targets).ok());
  return batch;
}

TEST_CASE("a sample is a window of s + 1 tokens, and window j begins at token j * s") {
  const TempDir dir;
  const auto data = TrainingData::Open(CountingJob(dir), 4);
  REQUIRE(data.ok());
  const Batch batch = Read(**data, 1, 1, 2, 4);  // samples 4 and 5 of the endless order
  CHECK(batch.inputs == std::vector<int32_t>{16, 17, 18, 19, 20, 21, 22, 23});
  CHECK(batch.targets == std::vector<int32_t>{17, 18, 19, 20, 21, 22, 23, 24});
  CHECK(Read(**data, 3, 1, 1, 4).inputs == std::vector<int32_t>{0, 1, 2, 3});  // sample 10 begins the second epoch
}

TEST_CASE("shuffled, three epochs hold every sample three times, and the micro-batch size changes nothing") {
  const TempDir dir;
  JobSpec job = CountingJob(dir);
  job.data.shuffle = true;
  const auto data = TrainingData::Open(job, 4);
  REQUIRE(data.ok());
  std::map<int32_t, int> first_tokens;
  for (int64_t iteration = 0; iteration < 10; ++iteration) {
    const Batch whole = Read(**data, iteration, 0, 3, 4);
    for (int64_t sample = 0; sample < 3; ++sample) {
      const Batch one = Read(**data, iteration, sample, 1, 4);
      CHECK(one.inputs ==
            std::vector<int32_t>(whole.inputs.begin() + 4 * sample, whole.inputs.begin() + 4 * sample + 4));
      ++first_tokens[one.inputs.front()];
    }
  }
  CHECK(first_tokens.size() == 10);
  for (const auto& [token, times] : first_tokens) {
    CHECK(times == 3);
  }
}

TEST_CASE("a resumed job reads on where the first one stopped") {
  const TempDir dir;
  JobSpec job = CountingJob(dir);
  job.data.shuffle = true;
  const auto first = TrainingData::Open(job, 4);
  REQUIRE(first.ok());
  std::vector<Batch> batches;
  for (int64_t iteration = 0; iteration < 12; ++iteration) {
    batches.push_back(Read(**first, iteration, 0, 3, 4));
  }
  const auto resumed = TrainingData::Open(job, 4);
  REQUIRE(resumed.ok());
  for (int64_t iteration = 7; iteration < 12; ++iteration) {
    CHECK(Read(**resumed, iteration, 0, 3, 4).inputs == batches[iteration].inputs);
  }
}

TEST_CASE("what cannot be trained on is an error of the read that meets it") {
  const TempDir dir;
  JobSpec job = CountingJob(dir);
  constexpr int64_t kBytes = int64_t{40} << 20;
  const std::string path = Resize(dir, "tokens.bin", kBytes);
  constexpr int64_t kPlace = kBytes / 2 + 5000;  // between the blocks that opening reads
  Poke(path, kPlace, "\x40");                    // the vocabulary's size
  const auto data = TrainingData::Open(job, 4);
  REQUIRE(data.ok());
  std::vector<int32_t> inputs(4);
  std::vector<int32_t> targets(4);
  const int64_t sample = kPlace / 2 / 4;
  CHECK((*data)->Read(sample / 3, sample % 3, 1, inputs, targets).message() ==
        path +
            ": token 64 at position 10488260 is outside model.vocab_size 64; was the file made with another tokenizer, "
            "or with another data.dtype than 16-bit?");
  CHECK((*data)->Read(sample / 3 + 1, 0, 1, inputs, targets).ok());
  Resize(dir, "tokens.bin", kPlace);
  CHECK((*data)->Read(sample / 3 + 1, 0, 1, inputs, targets).code() == absl::StatusCode::kDataLoss);
}

TEST_CASE("data shorter than one sample is refused") {
  const TempDir dir;
  JobSpec job = CountingJob(dir);
  job.training.tokens_per_iteration = 42;
  CHECK(TrainingData::Open(job, 42).status().message() ==
        job.data.paths.front() +
            ": data.path holds 42 tokens, fewer than one sample of 43; name more data, or a shorter "
            "search.sequence_length");
  job.training.tokens_per_iteration = 41;
  CHECK(TrainingData::Open(job, 41).ok());
  job.training.tokens_per_iteration = 60;
  CHECK(TrainingData::Open(job, 20).status().message() ==
        job.data.paths.front() +
            ": data.path holds 2 samples of 20 tokens, fewer than the 3 of one iteration, which would train on some of "
            "them twice; name more data, or fewer training.tokens_per_iteration");
}

// Three files of tokens that tell the file: 0 to 99, 100 to 199, 200 to 299.
JobSpec MixedJob(const TempDir& dir, std::vector<double> weights) {
  JobSpec job = CountingJob(dir);
  job.model.vocab_size = 300;
  job.data.paths.clear();
  for (int file = 0; file < 3; ++file) {
    std::vector<uint16_t> tokens(file == 1 ? 41 : 97);
    std::iota(tokens.begin(), tokens.end(), static_cast<uint16_t>(100 * file));
    job.data.paths.push_back(dir.Write(std::string(1, static_cast<char>('c' - file)),
                                       std::string(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size())));
  }
  job.data.weights = std::move(weights);
  job.data.shuffle = true;
  job.training.tokens_per_iteration = 40;  // 10 samples of 4
  return job;
}

TEST_CASE("weights mix files exactly, and each file's samples come once before one comes again") {
  const TempDir dir;
  const auto data = TrainingData::Open(MixedJob(dir, {0.5, 0.2, 0.3}), 4);
  REQUIRE(data.ok());
  std::map<int32_t, std::vector<int32_t>> drawn;  // of each file, the first tokens in order
  for (int64_t iteration = 0; iteration < 48; ++iteration) {
    const Batch batch = Read(**data, iteration, 0, 10, 4);
    std::map<int32_t, int> counts;
    for (size_t sample = 0; sample < 10; ++sample) {
      const int32_t first = batch.inputs[4 * sample];
      CHECK(batch.targets[4 * sample + 3] / 100 == first / 100);  // no window is of two files
      CHECK(first % 4 == 0);
      ++counts[first / 100];
      drawn[first / 100].push_back(first);
    }
    CHECK(counts == std::map<int32_t, int>{{0, 5}, {1, 2}, {2, 3}});
  }
  for (const auto& [file, firsts] : drawn) {
    const size_t windows = file == 1 ? 10 : 24;
    CHECK(firsts.size() == (file == 0 ? 240 : file == 1 ? 96 : 144));
    std::vector<std::vector<int32_t>> epochs;
    for (size_t begin = 0; begin + windows <= firsts.size(); begin += windows) {
      epochs.emplace_back(firsts.begin() + begin, firsts.begin() + begin + windows);
      std::vector<int32_t> sorted = epochs.back();
      std::ranges::sort(sorted);
      CHECK(std::ranges::adjacent_find(sorted) == sorted.end());
    }
    CHECK(epochs[0] != epochs[1]);  // shuffled anew
  }
  std::vector<int32_t> other = drawn[2];
  for (int32_t& token : other) {
    token -= 200;
  }
  CHECK(other != std::vector<int32_t>(drawn[0].begin(), drawn[0].begin() + std::ssize(other)));  // and unlike another's
}

TEST_CASE("the order of a mix depends neither on the micro-batch, nor on the replica, nor on a restart") {
  const TempDir dir;
  const JobSpec job = MixedJob(dir, {0.5, 0.2, 0.3});
  const auto data = TrainingData::Open(job, 4);
  const auto resumed = TrainingData::Open(job, 4);
  for (const int64_t iteration : {7, 3, 31}) {
    const Batch whole = Read(**data, iteration, 0, 10, 4);
    for (const int64_t b : {1, 2, 5}) {
      for (int64_t sample = 10 - b; sample >= 0; sample -= b) {
        CHECK(Read(**resumed, iteration, sample, b, 4).inputs ==
              std::vector<int32_t>(whole.inputs.begin() + 4 * sample, whole.inputs.begin() + 4 * (sample + b)));
      }
    }
  }
}

TEST_CASE("several files without weights are one, in the order in which they are named") {
  const TempDir dir;
  JobSpec job = MixedJob(dir, {});
  job.data.shuffle = false;
  const auto data = TrainingData::Open(job, 4);
  REQUIRE(data.ok());
  CHECK((*data)->corpus().tokens() == 97 + 41 + 97);
  const Batch batch = Read(**data, 2, 3, 2, 4);  // samples 23 and 24
  CHECK(batch.inputs == std::vector<int32_t>{92, 93, 94, 95, 96, 100, 101, 102});
  CHECK(batch.targets == std::vector<int32_t>{93, 94, 95, 96, 100, 101, 102, 103});
}

TEST_CASE("a file of a mix that has too few samples is named") {
  const TempDir dir;
  const JobSpec job = MixedJob(dir, {0.5, 2, 0.5});
  CHECK(TrainingData::Open(job, 4).ok());
  JobSpec more = job;
  more.training.tokens_per_iteration = 80;
  CHECK(TrainingData::Open(more, 4).status().message() ==
        job.data.paths[1] +
            ": data.path holds 10 samples of 4 tokens, fewer than the 13 of one iteration, which would train on some "
            "of them twice; name more data, or fewer training.tokens_per_iteration");
  JobSpec joined = MixedJob(dir, {});
  joined.training.tokens_per_iteration = 480;
  CHECK_THAT(std::string(TrainingData::Open(joined, 40).status().message()), Catch::Contains(" and 2 more: "));
}

TEST_CASE("text is trained on as bytes") {
  const TempDir dir;
  JobSpec job;
  job.model.vocab_size = 258;
  job.data.format = DataFormat::kText;
  job.data.paths = {dir.Write("a.txt", "abc")};
  job.data.shuffle = false;
  job.training.tokens_per_iteration = 4;
  const auto data = TrainingData::Open(job, 4);
  REQUIRE(data.ok());
  const Batch batch = Read(**data, 0, 0, 1, 4);
  CHECK(batch.inputs == std::vector<int32_t>{256, 'a', 'b', 'c'});
  CHECK(batch.targets == std::vector<int32_t>{'a', 'b', 'c', 257});
}

}  // namespace
}  // namespace geopipe
