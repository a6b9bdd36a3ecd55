#include "optimizer/model/job_spec.h"

#include <catch2/catch.hpp>
#include <functional>
#include <span>
#include <string>

namespace geopipe {
namespace {

JobSpec ValidJob() {
  JobSpec job;
  job.parallelism.tensor = 1;
  job.parallelism.data = 1;
  job.name = "job";
  job.model = *ModelPreset("llama-2-7b");
  job.training.iterations = 10;
  job.training.tokens_per_iteration = 1 << 20;
  job.search.sequence_length = {2048};
  return job;
}

TEST_CASE("a plain job is valid") { CHECK(ValidateJob(ValidJob()).ok()); }

TEST_CASE("tokens_per_iteration that no choice divides is answered with a value that would work") {
  JobSpec job = ValidJob();
  job.training.tokens_per_iteration = 1'000'000;
  job.search.micro_batch_size = {2, 4};
  job.search.sequence_length = {2048, 4096};
  const absl::Status status = ValidateJob(job);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(status.message()) ==
        "training.tokens_per_iteration 1000000 is not a multiple of micro_batch_size x sequence_length x data for any "
        "choice of search.micro_batch_size [2, 4], search.sequence_length [2048, 4096] and parallelism.data 1; 999424 "
        "would work");
  job.training.tokens_per_iteration = 999'424;
  CHECK(ValidateJob(job).ok());
  job.training.tokens_per_iteration = 7;
  CHECK_THAT(std::string(ValidateJob(job).message()), Catch::EndsWith("4096 would work"));
}

TEST_CASE("tensor ranks may share key-value heads: more ranks than heads are fine where heads divide them") {
  JobSpec job = ValidJob();
  job.model.num_key_value_heads = 8;
  job.parallelism.tensor = 16;
  CHECK(ValidateJob(job).ok());
}

// A change that makes the job break a rule, and what is said of it.
struct Case {
  std::function<void(JobSpec&)> change;
  std::string_view message;
};

void CheckRefused(std::span<const Case> cases) {
  for (const Case& c : cases) {
    JobSpec job = ValidJob();
    c.change(job);
    const absl::Status status = ValidateJob(job);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(status.message()) == std::string(c.message));
  }
}

TEST_CASE("degrees that do not divide the model, its tokens or its sequences are refused") {
  const Case cases[] = {
      {[](JobSpec& j) {
         j.model.hidden_size = 3072;
         j.model.num_attention_heads = 24;
         j.model.num_key_value_heads = 8;
         j.parallelism.tensor = 3;
       },
       "parallelism.tensor is 3; it must be a divisor or a multiple of model.num_key_value_heads 8"},
      {[](JobSpec& j) {
         j.model.vocab_size = 32'001;
         j.parallelism.tensor = 32;
       },
       "parallelism.tensor is 32; it must be a divisor of model.vocab_size 32001; or pad the vocabulary, "
       "model.padded_vocab_size: 32032"},
      {[](JobSpec& j) {
         j.model.intermediate_size = 11'009;
         j.parallelism.tensor = 2;
       },
       "parallelism.tensor is 2; it must be a divisor of model.intermediate_size 11009"},
      {[](JobSpec& j) {
         j.search.sequence_length = {2048, 2046};
         j.parallelism.tensor = 4;
         j.parallelism.sequence_parallel = true;
       },
       "search.sequence_length is 2046; it must be a multiple of parallelism.tensor 4 when sequence_parallel is on"},
      {[](JobSpec& j) { j.parallelism.data = 3; },
       "training.tokens_per_iteration 1048576 is not a multiple of micro_batch_size x sequence_length x data for any "
       "choice of search.micro_batch_size [1, 2, 4, 8], search.sequence_length [2048] and parallelism.data 3; 1050624 "
       "would "
       "work"},
  };
  CheckRefused(cases);
}

TEST_CASE("rules that span keys name the key, the value and the rule") {
  const Case cases[] = {
      {[](JobSpec& j) { j.training.warmup_iterations = 11; },
       "training.warmup_iterations is 11; it must be from 0 to training.iterations 10"},
      {[](JobSpec& j) { j.training.min_learning_rate = 1; },
       "training.min_learning_rate is 1; it must be from 0 to training.learning_rate 0.0003"},
      {[](JobSpec& j) { j.parallelism.tensor = 3; },
       "parallelism.tensor is 3; it must be a divisor of model.num_attention_heads 32"},
      {[](JobSpec& j) { j.parallelism.stages_per_rank = 33; },
       "parallelism.stages_per_rank is 33; it must be at most model.num_hidden_layers 32, because every stage needs a "
       "layer"},
      {[](JobSpec& j) {
         j.parallelism.stages_per_rank = 4;
         j.parallelism.pipeline = 9;
       },
       "parallelism.pipeline is 9; it must be at most 1 / 4 of model.num_hidden_layers 32, because every stage needs a "
       "layer"},
      {[](JobSpec& j) {
         j.parallelism.stages_per_rank = 2;
         j.search.schedule = ScheduleKind::kOneFOneB;
       },
       "parallelism.stages_per_rank is 2; it must be auto or 1, because search.schedule is 1f1b"},
      {[](JobSpec& j) {
         j.parallelism.stages_per_rank = 1;
         j.search.schedule = ScheduleKind::kInterleaved;
       },
       "parallelism.stages_per_rank is 1; it must be auto or 2 or more, because search.schedule is interleaved"},
      {[](JobSpec& j) { j.parallelism.pipeline = 33; },
       "parallelism.pipeline is 33; it must be at most model.num_hidden_layers 32, because every stage needs a layer"},
      {[](JobSpec& j) { j.search.sequence_length = {8192}; },
       "search.sequence_length is 8192; it must be from 1 to model.max_position_embeddings 4096"},
      {[](JobSpec& j) {
         j.search.schedule = ScheduleKind::kZbV;
         j.parallelism.pipeline = 17;
       },
       "parallelism.pipeline is 17; it must be at most half of model.num_hidden_layers 32, because every stage needs a "
       "layer"},
      {[](JobSpec& j) {
         j.data.paths = {"/a", "/b"};
         j.data.weights = {0.7, 0.2, 0.1};
       },
       "data.weights is [0.7, 0.2, 0.1]; it must be one number for each of the 2 files of data.path"},
      {[](JobSpec& j) {
         j.data.format = DataFormat::kText;
         j.data.paths = {"/a", "/b"};
         j.data.weights = {0.7, 0.3};
       },
       "data.weights is [0.7, 0.3]; it must be none, because data.format is text; tokenize the text first"},
      {[](JobSpec& j) { j.data.paths.resize(kMaxTokenFiles + 1); },
       "data.path is a list of 1025 files; it must be at most 1024 when data.format is tokens; join some"},
      {[](JobSpec& j) { j.data.documents = Documents::kReset; },
       "data.end_of_text is absent; it must be the id of the token that ends a document, because data.documents is "
       "reset"},
      {[](JobSpec& j) { j.data.end_of_text = 3; },
       "data.end_of_text is 3; it must be absent, because it matters with data.documents reset and data.format tokens "
       "alone"},
      {[](JobSpec& j) {
         j.data.documents = Documents::kReset;
         j.data.end_of_text = 3;
         j.evaluation.data.paths = {"/validation.bin"};
       },
       "evaluation.data.documents is packed; it must be reset after token 3, as in data"},
      {[](JobSpec& j) { j.checkpoint.every = 5; },
       "checkpoint.path is empty; it must be given when checkpoint.every is"},
      {[](JobSpec& j) {
         j.training.tokens_per_iteration = int64_t{1} << 30;
         j.search.micro_batch_size = {1};
         j.search.sequence_length = {1024};
       },
       "training.tokens_per_iteration 1073741824 makes more than 65536 micro-batches for every choice of "
       "search.micro_batch_size [1] and search.sequence_length [1024]; use larger ones"},
  };
  CheckRefused(cases);
}

}  // namespace
}  // namespace geopipe
