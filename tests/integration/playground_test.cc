// The product's promise, through the installed programs: every schedule, every split over stages and sites gives the
// same losses to the last bit.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/command.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

// A changed copy of the small job of tests/golden/jobs.
class MiniJob {
 public:
  explicit MiniJob(const std::vector<std::pair<std::string, std::string>>& changes)
      : folder_(*TempFolder::Create("geopipe-test-")) {
    absl::StatusOr<std::string> text = ReadFile(SourcePath("tests/golden/jobs/mini.yaml"), 1 << 20);
    REQUIRE(text.ok());
    std::string job = *text;
    const std::string relative = "../../../LICENSE";
    job.replace(job.find(relative), relative.size(), SourcePath("LICENSE"));
    for (const auto& [from, to] : changes) {
      REQUIRE(job.find(from) != std::string::npos);
      job.replace(job.find(from), from.size(), to);
    }
    REQUIRE(WriteFileAtomically(path(), job).ok());
  }
  std::string path() const { return (folder_.path() / "mini.yaml").string(); }
  std::string output() const { return folder_.path().string(); }

 private:
  TempFolder folder_;
};

// Trains up to `iterations` over so many sites (0: those that `more` says) and returns the report.
Json Train(const MiniJob& job, int sites, const std::vector<std::string>& more, int iterations = 6) {
  std::vector<std::string> args{"playground", "--job",      job.path(), "--iterations", std::to_string(iterations),
                                "--output",   job.output(), "-o",       "json"};
  if (sites > 0) {
    args.insert(args.end(), {"--sites", std::to_string(sites), "--link", "latency=2ms,bandwidth=1Gbps"});
  }
  args.insert(args.end(), more.begin(), more.end());
  const CommandResult result = RunCommand("geopipectl", args);
  INFO(result.err);
  INFO(result.out);
  REQUIRE(result.exit_status.success());
  return Json::parse(result.out);
}

// Losses and gradient norms, as they are printed: equal text is equal bits.
std::string Numbers(const Json& report, size_t iterations = 6) {
  REQUIRE(report["iterations"].size() == iterations);
  std::string text;
  for (const Json& iteration : report["iterations"]) {
    text += fmt::format("{} {}\n", iteration["loss"].dump(), iteration["grad_norm"].dump());
  }
  return text;
}

const std::pair<std::string, std::string> kSixStages{"precision: fp32",
                                                     "precision: fp32\n  parallelism: {pipeline: 6}"};
const std::pair<std::string, std::string> kTied{"vocab_size: 258", "vocab_size: 258\n    tie_word_embeddings: true"};

// Every schedule is trained with in worker_core_test; here some are, by real processes.
TEST_CASE("losses and norms are bit-identical for schedules, stage counts and site counts") {
  const MiniJob job({});
  const MiniJob six({kSixStages});
  const Json reference = Train(job, 1, {"--schedule", "gpipe"});
  const std::string numbers = Numbers(reference);
  CHECK(reference["state"] == "COMPLETED");
  CHECK(reference["plan"]["stages"].size() == 1);
  CHECK(reference["iterations"][5]["loss"].get<double>() < reference["iterations"][0]["loss"].get<double>());

  CHECK(Numbers(Train(job, 3, {"--delta-n", "1"})) == numbers);
  const Json three_sites = Train(six, 3, {"--delta-n", "3"});
  CHECK(three_sites["plan"]["stages"].size() == 6);
  CHECK(three_sites["plan"]["delta_n"] == Json::array({3, 3}));
  CHECK(Numbers(three_sites) == numbers);
  CHECK(Numbers(Train(six, 2, {"--schedule", "1f1b", "--comm", "blocking"})) == numbers);

  const Json interleaved = Train(job, 2, {"--schedule", "interleaved"});
  CHECK(interleaved["plan"]["schedule"] == "interleaved");
  REQUIRE(interleaved["plan"]["stages"].size() == 4);
  CHECK(interleaved["plan"]["stages"][2]["pipeline_rank"] == 0);
  CHECK(Numbers(interleaved) == numbers);
  for (const char* schedule : {"zb-v", "auto"}) {
    INFO(schedule);
    CHECK(Numbers(Train(job, 3, {"--schedule", schedule})) == numbers);
  }
}

TEST_CASE("a tied head is bit-identical over sites, too, and differs from an untied one") {
  const MiniJob tied({kTied});
  const std::string numbers = Numbers(Train(tied, 1, {}));
  CHECK(Numbers(Train(tied, 3, {"--delta-n", "1"})) == numbers);
  CHECK(Numbers(Train(tied, 3, {"--schedule", "zb-v"})) == numbers);  // both uses on one rank
  CHECK(Numbers(Train(MiniJob({}), 1, {})) != numbers);
}

TEST_CASE(
    "3 sites, then 1, then 6 stages on 2, each from the last one's checkpoint: the bits of a run that never stopped") {
  const std::pair<std::string, std::string> checkpoint{
      "precision: fp32", "precision: fp32\n  checkpoint: {path: ckpt, every: 2, keep: 9}"};
  const std::pair<std::string, std::string> six_stages{"precision: fp32",
                                                       "precision: fp32\n  parallelism: {pipeline: 6}"};
  const MiniJob whole({checkpoint});
  const std::string expected = Numbers(Train(whole, 1, {}));
  const MiniJob job({checkpoint});
  std::string found = Numbers(Train(job, 3, {}, 3), 3);
  found += Numbers(Train(job, 1, {"--resume"}, 4), 1);
  const MiniJob wide(
      {six_stages, {"precision: fp32", fmt::format("precision: fp32\n  checkpoint: {{path: {}/ckpt}}", job.output())}});
  found += Numbers(Train(wide, 2, {"--resume"}), 2);
  CHECK(found == expected);
}

TEST_CASE("a modelled run of a case file takes the time that its plan predicted") {
  const MiniJob job({});
  const Json report = Train(
      job, 0,
      {"--backend", "modelled", "--case", SourcePath("tests/golden/cases/two-sites-20ms.yaml"), "--schedule", "1f1b"});
  CHECK(report["plan"]["stages"].size() == 4);
  // The prediction is the case's own (golden): the time this host takes for its messages of 20 MB is not part of it.
  CHECK(report["predicted"]["iteration_s"].get<double>() == Approx(0.922).margin(1e-6));
  // A sleep is never shorter than it should be; how much longer is the benchmarks' concern.
  CHECK(report["measured"]["iteration_s"].get<double>() >= 0.92);
}

TEST_CASE("a playground on GPUs ends with site, node and why its workers cannot run them") {
  const MiniJob job({});
  const std::vector<std::string> args{"playground", "--job", job.path(), "--output", job.output(), "--sites", "2"};
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = args;
    all.insert(all.end(), more.begin(), more.end());
    return RunCommand("geopipectl", all);
  };
  const CommandResult refused = run({"--backend", "cuda", "--gpu-library", "/no/such/library.so"});
  CHECK(refused.exit_status.exit_code == 1);
  CHECK_THAT(refused.err,
             Catch::Matches("error: site ([^ ]+) cannot run backend cuda: node \\1/[^ ]+: GPUs cannot be used: "
                            "/no/such/library.so is neither .*\n"));
  const CommandResult inert = run({"--gpu-library", "/no/such/library.so"});
  CHECK(inert.exit_status.exit_code == 2);
  CHECK(inert.err == "error: --gpu-library has no effect without --backend cuda; add that, or leave it out\n");
}

}  // namespace
}  // namespace geopipe
