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
