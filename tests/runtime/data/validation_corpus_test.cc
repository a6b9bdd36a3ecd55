#include "runtime/data/validation_corpus.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

JobSpec EvaluatedJob(const std::string& path) {
  JobSpec job;
  job.model.vocab_size = 300;
  job.training.tokens_per_iteration = 40;
  job.evaluation.data.format = DataFormat::kText;
  job.evaluation.data.paths = {path};
  job.evaluation.iterations = 2;
  return job;
}

TEST_CASE("validation data holds all samples of an evaluation, each once") {
  const TempDir dir;
  const std::string enough = dir.Write("enough", std::string(79, 'x'));  // 79 bytes, begin and end of text
  const auto corpus = OpenValidationCorpus(EvaluatedJob(enough));
  REQUIRE(corpus.ok());
  CHECK((*corpus)->tokens() == 81);
  const std::string short_path = dir.Write("short", std::string(78, 'x'));
  CHECK(OpenValidationCorpus(EvaluatedJob(short_path)).status() ==
        absl::InvalidArgumentError(fmt::format("{}: evaluation.data.path holds 80 tokens, fewer than the 80 of 2 "
                                               "iterations and one more; name more data, or fewer "
                                               "evaluation.iterations",
                                               short_path)));
}

TEST_CASE("errors of validation data name the keys of evaluation") {
  const TempDir dir;
  JobSpec job = EvaluatedJob(dir.Write("odd", "abc"));
  job.evaluation.data.format = DataFormat::kTokens;
  const std::string error(OpenValidationCorpus(job).status().message());
  INFO(error);
  CHECK(error.find(" data.") == std::string::npos);
  job.evaluation.data.paths = {"/nowhere/at all"};
  CHECK(absl::IsNotFound(OpenValidationCorpus(job).status()));
}

}  // namespace
}  // namespace geopipe
