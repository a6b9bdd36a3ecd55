// Tests what `apply --resume` makes of the checkpoints that nodes have, each with a disk of its own, with real
// programs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/files.h"
#include "tests/support/durations.h"
#include "tests/support/process_federation.h"
#include "tests/support/required.h"
#include "tests/support/skip.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kEndLimitNs = 90 * kSecond;

class Resuming {
 public:
  // Applies a job of so many iterations with a checkpoint after every second, and returns how it ended.
  v1::JobDetail Run(const std::string& name, int64_t iterations, bool resume = true, int64_t intermediate_size = 64) {
    const fs::path path = federation_->folder() / (name + ".yaml");
    const std::string text = fmt::format(
        "apiVersion: geopipe/v1\n"
        "kind: TrainingJob\n"
        "metadata: {{name: {}}}\n"
        "spec:\n"
        "  model: {{hidden_size: 32, intermediate_size: {}, num_hidden_layers: 6, num_attention_heads: 4,\n"
        "    num_key_value_heads: 2, vocab_size: 258, max_position_embeddings: 32}}\n"
        "  data: {{format: text, path: [{}/LICENSE], tokenizer: byte}}\n"
        "  training: {{iterations: 20, tokens_per_iteration: 128, learning_rate: 5.0e-3, warmup_iterations: 4,\n"
        "    grad_clip: 1.0}}\n"
        "  precision: fp32\n"
        "  search: {{micro_batch_size: [1], sequence_length: [32]}}\n"
        "  placement: {{sites: [{}]}}\n"
        "  checkpoint: {{path: {}, every: 2, keep: 2}}\n",
        name, intermediate_size, GEOPIPE_SOURCE_DIR, fmt::join(federation_->site_names(), ", "),
        (federation_->disk() / "checkpoints").string());
    REQUIRE(WriteFileAtomically(path, text).ok());
    std::vector<std::string> arguments{"apply", "-f", path.string(), "--iterations", fmt::format("{}", iterations)};
    if (resume) {
      arguments.emplace_back("--resume");
    }
    Required(federation_->Geopipectl(arguments));
    Required(AwaitNs("the job's end", kEndLimitNs, [&]() -> absl::StatusOr<bool> {
      const absl::StatusOr<v1::JobSummary> summary = federation_->Summary(name);
      return summary.ok() && (summary->state() == v1::JOB_STATE_COMPLETED || summary->state() == v1::JOB_STATE_FAILED);
    }));
    return Required(federation_->control().GetJob(name));
  }

  // Its summaries, from the first that it was done with.
  std::vector<v1::IterationSummary> Curve(const std::string& name) { return Required(federation_->Curve(name)); }

  // The folder of the site's checkpoints, as this process sees it.
  fs::path Folder(size_t site) const { return federation_->DisksOf(site).at(1) / "checkpoints"; }
  size_t sites() const { return federation_->sites(); }
  fs::path Aside() const { return federation_->folder() / "aside"; }

  // Removes the weights of the first layer at all sites.
  void LoseFirstLayer(int64_t iteration) {
    int lost = 0;
    for (size_t site = 0; site < sites(); ++site) {
      for (const fs::directory_entry& file :
           fs::directory_iterator(Folder(site) / fmt::format("iteration-{:010}", iteration))) {
        if (file.path().filename().string().starts_with("layer-00000.weights")) {
          fs::remove(file.path());
          ++lost;
        }
      }
    }
    REQUIRE(lost == 1);
  }

 private:
  const std::unique_ptr<ProcessFederation> federation_ = Required(ProcessFederation::Start({.own_disks = true}));
};

TEST_CASE(
    "a job goes on from the newest checkpoint that can be read, and says in one sentence why it cannot from any") {
  if (!CanHaveOwnDisks()) {
    Skip("it needs mount namespaces");
    return;
  }
  Resuming jobs;
  const v1::JobDetail first = jobs.Run("first", 4, false);
  INFO(first.summary().cause());
  REQUIRE(first.summary().state() == v1::JOB_STATE_COMPLETED);
  fs::copy(jobs.Folder(1), jobs.Aside(), fs::copy_options::recursive);

  const v1::JobDetail wider = jobs.Run("wider", 6, true, 96);
  CHECK(wider.summary().state() == v1::JOB_STATE_FAILED);
  CHECK_THAT(
      wider.summary().cause(),
      Catch::Contains("is of a model with intermediate_size 64, the job's has 96 (the first tensor that differs is "
                      "model.layers.0.mlp.gate_proj.weight: [64, 32], not [96, 32]); check spec.model or choose "
                      "another checkpoint"));

  // The newest lacks a shard, and the one before is whole.
  jobs.LoseFirstLayer(4);
  const v1::JobDetail again = jobs.Run("again", 6);
  INFO(again.DebugString());
  REQUIRE(again.summary().state() == v1::JOB_STATE_COMPLETED);
  CHECK(again.epochs().rbegin()->first_iteration() == 2);
  REQUIRE(again.recoveries_size() == 1);
  CHECK_THAT(again.recoveries(0).cause(), Catch::Contains("of the checkpoint before iteration 4 cannot be fetched"));
  const std::vector<v1::IterationSummary> told = jobs.Curve("first");
  const std::vector<v1::IterationSummary> repeated = jobs.Curve("again");
  REQUIRE(repeated.size() == 4);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(repeated[i].iteration() == told[i + 2].iteration());
    CHECK(repeated[i].loss() == told[i + 2].loss());
    CHECK(repeated[i].grad_norm() == told[i + 2].grad_norm());
  }

  // No checkpoint is whole.
  jobs.LoseFirstLayer(4);
  jobs.LoseFirstLayer(6);
  const v1::JobDetail none = jobs.Run("none", 8);
  CHECK(none.summary().state() == v1::JOB_STATE_FAILED);
  CHECK_THAT(none.summary().cause(),
             Catch::Contains("of the checkpoint before iteration 4 cannot be fetched") &&
                 Catch::EndsWith("; copy the file from a node that has it or choose another checkpoint"));

  // The same path is another job's folder on one of the nodes.
  for (size_t site = 0; site < jobs.sites(); ++site) {
    fs::remove_all(jobs.Folder(site));
  }
  REQUIRE(jobs.Run("other", 4, false).summary().state() == v1::JOB_STATE_COMPLETED);
  fs::remove_all(jobs.Folder(1));
  fs::copy(jobs.Aside(), jobs.Folder(1), fs::copy_options::recursive);
  const v1::JobDetail mixed = jobs.Run("mixed", 6);
  CHECK(mixed.summary().state() == v1::JOB_STATE_FAILED);
  CHECK_THAT(mixed.summary().cause(),
             Catch::EndsWith("checkpoints: iteration 2 is of another run on node north/0 than on node east/0; give the "
                             "job a folder that is the same on all nodes, or remove there what is not this job's"));
  for (const v1::JobDetail& each : {wider, none, mixed}) {
    std::printf("%s\n", each.summary().cause().c_str());
  }
}

}  // namespace
}  // namespace geopipe
