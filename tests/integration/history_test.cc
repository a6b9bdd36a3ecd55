// Tests what commands leave of jobs and their history, over restarts of the coordinator, with real programs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/files.h"
#include "tests/support/command.h"
#include "tests/support/durations.h"
#include "tests/support/process_federation.h"
#include "tests/support/required.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kHistoryLimitNs = 60 * kSecond;

class History {
 public:
  // A job of so many iterations with checkpoints below folder()/ck.
  std::string Job(const std::string& name, int64_t iterations) const {
    const fs::path path = federation->folder() / (name + ".yaml");
    REQUIRE(WriteFileAtomically(path,
                                fmt::format("apiVersion: geopipe/v1\n"
                                            "kind: TrainingJob\n"
                                            "metadata: {{name: {}}}\n"
                                            "spec:\n"
                                            "  model: {{hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, "
                                            "num_attention_heads: 4, num_key_value_heads: 2, vocab_size: 258}}\n"
                                            "  data: {{format: text, path: [{}/LICENSE], tokenizer: byte}}\n"
                                            "  training: {{iterations: {}, tokens_per_iteration: 128}}\n"
                                            "  search: {{micro_batch_size: [1], sequence_length: [32]}}\n"
                                            "  placement: {{sites: [north, east]}}\n"
                                            "  checkpoint: {{path: {}/ck, every: 5}}\n",
                                            name, GEOPIPE_SOURCE_DIR, iterations, federation->folder().string()))
                .ok());
    return path.string();
  }
  std::string Ask(const std::vector<std::string>& arguments) const {
    return Required(federation->Geopipectl(arguments));
  }
  std::string Refusal(const std::vector<std::string>& arguments) const {
    return std::string(federation->Geopipectl(arguments).status().message());
  }
  std::vector<int64_t> CurveOf(const std::string& name) const {
    std::vector<int64_t> iterations;
    for (const v1::IterationSummary& each : Required(federation->Curve(name))) {
      iterations.push_back(each.iteration());
    }
    return iterations;
  }
  std::vector<double> LossesOf(const std::string& name, int64_t run) const {
    std::vector<double> losses;
    for (const v1::IterationSummary& each : Required(federation->Curve(name, run))) {
      losses.push_back(each.loss());
    }
    return losses;
  }
  void Restart() const {
    federation->KillCoordinator();
    REQUIRE(federation->StartCoordinator().ok());
  }

  const std::unique_ptr<ProcessFederation> federation =
      Required(ProcessFederation::Start({.sites = {"north", "east"}, .latency_ns = 2'000'000}));
};

TEST_CASE("nothing of a job is lost by a command or a restart of the coordinator that was not told to drop it") {
  History h;
  const std::string ten = h.Job("q", 10);
  h.Ask({"apply", "-f", ten});
  REQUIRE(h.federation->AwaitState("q", v1::JOB_STATE_COMPLETED, kHistoryLimitNs).ok());

  // Its name cannot be taken by mistake.
  CHECK_THAT(h.Refusal({"apply", "-f", ten}),
             Catch::Contains("job q is COMPLETED with 10 iterations done, whose name this would take: go on from its "
                             "checkpoint of iteration 10 with --resume, begin anew with --replace"));
  CHECK_THAT(h.Refusal({"apply", "-f", ten, "--replace"}), Catch::Contains("has checkpoints of job q"));
  CHECK(h.CurveOf("q").size() == 10);

  // Its trace outlives the coordinator.
  h.Restart();
  const std::string trace = (h.federation->folder() / "trace.json").string();
  CHECK_THAT(h.Ask({"trace", "q", "--export-trace", trace}), Catch::Contains("of job q written to"));
  CHECK(fs::file_size(trace) > 0);
  CHECK_THAT(h.Ask({"describe", "q"}), Catch::Contains("newest: ") && Catch::Contains("/ck/iteration-0000000010\n"));

  // A job that is resumed has the whole curve.
  h.Ask({"apply", "-f", h.Job("q", 15), "--resume"});
  REQUIRE(h.federation->AwaitState("q", v1::JOB_STATE_COMPLETED, kHistoryLimitNs).ok());
  std::vector<int64_t> all(15);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<int64_t>(i);
  }
  CHECK(h.CurveOf("q") == all);
  h.Restart();
  CHECK(h.CurveOf("q") == all);

  // Several names: each is asked, each error is told.
  const std::string errors = h.Refusal({"cancel", "q", "nope", "nor"});
  CHECK_THAT(errors, Catch::Contains("job q is already COMPLETED") && Catch::Contains("there is no job \"nope\"") &&
                         Catch::Contains("there is no job \"nor\""));
}

TEST_CASE("a job that is applied three times is there three times, after a restart of the coordinator, too") {
  History h;
  const auto train = [&](int64_t iterations, bool resume) {
    std::vector<std::string> apply{"apply", "-f", h.Job("q", iterations)};
    if (resume) {
      apply.emplace_back("--resume");
    }
    h.Ask(apply);
    REQUIRE(h.federation->AwaitState("q", v1::JOB_STATE_COMPLETED, kHistoryLimitNs).ok());
  };
  train(5, false);
  const v1::JobDetail first = Required(h.federation->control().GetJob("q"));
  train(8, true);
  const std::vector<double> losses = h.LossesOf("q", 0);
  train(10, true);
  h.Restart();

  CHECK_THAT(h.Ask({"get", "jobs", "--all"}), Catch::StartsWith("NAME  RUN  STATE      ITERATION") &&
                                                  Catch::Contains("\nq       1  COMPLETED        5/5") &&
                                                  Catch::Contains("\nq       2  COMPLETED        8/8") &&
                                                  Catch::Contains("\nq       3  COMPLETED      10/10"));
  CHECK_THAT(h.Ask({"get", "jobs"}), Catch::Contains("10/10") && !Catch::Contains("8/8"));
  CHECK_THAT(h.Ask({"get", "job", "q", "--run", "2"}), Catch::Contains("8/8") && !Catch::Contains("10/10"));

  // The first is described as it was.
  CHECK(Required(h.federation->control().GetJob("q", 1)).DebugString() == first.DebugString());
  CHECK_THAT(h.Ask({"describe", "q", "--run", "1"}),
             Catch::StartsWith("job           q\nrun           1\nstate         COMPLETED: ") &&
                 Catch::Contains("iteration     5/5\n") && Catch::Contains("actions       95 % begin within ") &&
                 Catch::Contains("    iterations: 5\n"));
  CHECK_THAT(h.Ask({"describe", "q", "--run", "1", "-o", "json"}),
             Catch::Contains("\"run\": 1,") && Catch::Contains("\"iterations_done\": 5,"));
  CHECK_THAT(h.Refusal({"describe", "q", "--run", "4"}), Catch::Contains("there is no run 4 of job \"q\""));

  // So is the curve of the second, with what it had of the first.
  CHECK(losses.size() == 8);
  CHECK(h.LossesOf("q", 2) == losses);
  CHECK_THAT(h.Ask({"watch", "q", "--run", "2"}),
             Catch::Contains("iteration 8/8") && Catch::EndsWith("COMPLETED  all 8 iterations are done\n"));
  CHECK(h.CurveOf("q").size() == 10);
}

TEST_CASE("a watch survives the coordinator, and a job is cancelled with a last checkpoint") {
  History h;
  h.Ask({"apply", "-f", h.Job("long", 1'000'000)});
  REQUIRE(h.federation->AwaitIteration("long", 3, kHistoryLimitNs).ok());
  Command watch("geopipectl", {"watch", "long", "--server", h.federation->endpoint()});
  const auto wait_for = [&](const std::string& what, const std::function<bool()>& done) {
    const absl::Status status =
        AwaitNs(what, kHistoryLimitNs, [&]() -> absl::StatusOr<bool> { return done(); }).status();
    INFO(watch.out());
    INFO(watch.err());
    INFO(status.ToString());
    REQUIRE(status.ok());
  };
  wait_for("iterations", [&] { return watch.out().find("iteration       3/1000000") != std::string::npos; });
  h.federation->KillCoordinator();
  wait_for("the loss",
           [&] { return watch.err().find("; the watch goes on when it answers again\n") != std::string::npos; });
  REQUIRE(h.federation->StartCoordinator().ok());
  wait_for("the return", [&] { return watch.err().find("the coordinator answers again\n") != std::string::npos; });
  const absl::StatusOr<v1::JobSummary> then = h.federation->Summary("long");
  REQUIRE(then.ok());
  REQUIRE(h.federation->AwaitIteration("long", then->iterations_done() + 3, kHistoryLimitNs).ok());

  CHECK(h.Ask({"resume", "long"}).starts_with("job long is already running"));
  const std::string cancelled = h.Ask({"cancel", "long", "--checkpoint", "--reason", "enough"});
  CHECK_THAT(cancelled, Catch::StartsWith("job long CANCELLED: enough; its state before iteration ") &&
                            Catch::EndsWith("is in a checkpoint\n"));
  CHECK(h.Ask({"cancel", "long"}).starts_with("job long is already cancelled: "));
  const CommandResult ended = watch.Finish(20 * kSecond);
  CHECK(ended.exit_status.exit_code == 1);
  CHECK_THAT(ended.err, Catch::EndsWith("is in a checkpoint\n"));
  // Each iteration once, and none is missing.
  int64_t next = 1;
  size_t at = 0;
  while ((at = ended.out.find("\niteration ", at)) != std::string::npos) {
    at += std::string("\niteration ").size();
    REQUIRE(std::stoll(ended.out.substr(at, 8)) == next++);
  }
  const absl::StatusOr<v1::JobDetail> detail = h.federation->control().GetJob("long");
  REQUIRE(detail.ok());
  CHECK(next == detail->summary().iterations_done() + 1);
  CHECK(detail->checkpoints().rbegin()->identity().iteration() == detail->summary().iterations_done());
}

}  // namespace
}  // namespace geopipe
