// Every key of a job has an effect: another value changes the plan, or the worker's numbers, or is rejected in a run. A
// new key needs a row here, and fails until it has an effect.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <string_view>

#include "optimizer/plan/planner.h"
#include "runtime/base/files.h"
#include "runtime/manifest/job_manifest.h"
#include "runtime/manifest/job_schema.h"
#include "tests/runtime/worker/fake_cluster.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

// Another value for each key. `{}` is a folder with the files of the test.
const std::map<std::string, std::string, std::less<>>& OtherValues() {
  static const std::map<std::string, std::string, std::less<>> values = {
      {"metadata.name", "other"},
      {"spec.model.init_from", "{}"},
      {"spec.model.model_type", "qwen3"},
      {"spec.model.hidden_size", "32"},
      {"spec.model.intermediate_size", "48"},
      {"spec.model.num_hidden_layers", "4"},
      {"spec.model.num_attention_heads", "2"},
      {"spec.model.num_key_value_heads", "4"},
      {"spec.model.head_dim", "8"},
      {"spec.model.vocab_size", "300"},
      {"spec.model.padded_vocab_size", "320"},
      {"spec.model.max_position_embeddings", "8"},
      {"spec.model.rope_theta", "500"},
      {"spec.model.rope_scaling.rope_type", "linear"},
      {"spec.model.rope_scaling.factor", "8"},
      {"spec.model.rope_scaling.low_freq_factor", "2"},
      {"spec.model.rope_scaling.high_freq_factor", "3"},
      {"spec.model.rope_scaling.original_max_position_embeddings", "32"},
      {"spec.model.sliding_window", "8"},
      {"spec.model.attention_bias", "true"},
      {"spec.model.rms_norm_eps", "0.1"},
      {"spec.model.tie_word_embeddings", "true"},
      {"spec.data.format", "text"},
      {"spec.data.path", "{}/other"},
      {"spec.data.weights", "[0.7, 0.3]"},
      {"spec.data.dtype", "uint32"},
      {"spec.data.shuffle", "false"},
      {"spec.data.documents", "reset"},
      {"spec.data.end_of_text", "3"},
      {"spec.training.iterations", "3"},
      {"spec.training.tokens_per_iteration", "512"},
      {"spec.training.seed", "2"},
      {"spec.training.learning_rate", "0.02"},
      {"spec.training.warmup_iterations", "2"},
      {"spec.training.min_learning_rate", "0.005"},
      {"spec.training.betas", "[0.5, 0.95]"},
      {"spec.training.eps", "0.1"},
      {"spec.training.weight_decay", "0.5"},
      {"spec.training.grad_clip", "0.001"},
      {"spec.precision", "bf16"},
      {"spec.parallelism.tensor", "2"},
      {"spec.parallelism.pipeline", "2"},
      {"spec.parallelism.data", "2"},
      {"spec.parallelism.stages_per_rank", "2"},
      {"spec.parallelism.sequence_parallel", "true"},
      {"spec.parallelism.zero_stage", "2"},
      {"spec.parallelism.recompute", "full"},
      {"spec.parallelism.offload", "optimizer"},
      {"spec.parallelism.layers", "even"},
      {"spec.search.micro_batch_size", "[1]"},
      {"spec.search.sequence_length", "[32]"},
      {"spec.search.max_delta_n", "0"},
      {"spec.search.schedule", "gpipe"},
      {"spec.search.prefer", "memory"},
      {"spec.search.seed", "2"},
      {"spec.search.time_budget", "1s"},
      {"spec.search.max_evaluations", "1"},
      {"spec.placement.sites", "[site1, site0]"},
      {"spec.checkpoint.path", "/checkpoints"},
      {"spec.checkpoint.every", "5"},
      {"spec.checkpoint.keep", "4"},
      {"spec.checkpoint.replicate", "1"},
      {"spec.recovery", "memory"},
      {"spec.on_site_loss", "wait"},
      {"spec.grace", "10s"},
      {"spec.replan.drift", "5%"},
      {"spec.replan.min_gain", "5%"},
      {"spec.replan.cooldown", "5"},
      {"spec.replan.allow_numeric_change", "true"},
  };
  return values;
}

// The same of the keys of spec.evaluation.
const std::map<std::string, std::string, std::less<>>& OtherEvaluationValues() {
  static const std::map<std::string, std::string, std::less<>> values = {
      {"spec.evaluation.every", "3"},
      {"spec.evaluation.data.format", "text"},
      {"spec.evaluation.data.path", "{}/other"},
      {"spec.evaluation.data.weights", "[0.7, 0.3]"},
      {"spec.evaluation.data.documents", "reset"},
      {"spec.evaluation.data.end_of_text", "3"},
      {"spec.evaluation.data.dtype", "uint32"},
      {"spec.evaluation.data.shuffle", "false"},
      {"spec.evaluation.iterations", "2"},
  };
  return values;
}

// Keys whose effect is neither a plan nor a number: where they are read.
const std::map<std::string, std::pair<std::string, std::string>, std::less<>>& Readers() {
  static const std::map<std::string, std::pair<std::string, std::string>, std::less<>> readers = {
      {"metadata.name", {"coordinator/core/job.cc", "set_name(spec.name)"}},
      {"spec.search.prefer", {"optimizer/plan/planner.cc", "job.search.prefer"}},
      {"spec.search.time_budget", {"coordinator/planner.cc", "search.time_budget_ns"}},
      {"spec.checkpoint.path", {"runtime/worker/checkpoint_writer.cc", "checkpoint.path"}},
      {"spec.checkpoint.every", {"runtime/worker/trainer.cc", "checkpoint.every"}},
      {"spec.checkpoint.keep", {"runtime/worker/checkpoint_writer.cc", "spec.keep"}},
      {"spec.checkpoint.replicate", {"coordinator/core/life/job_run.cc", "checkpoint.replicate"}},
      {"spec.recovery", {"runtime/worker/rank_job.cc", "job.recovery"}},
      {"spec.on_site_loss", {"coordinator/core/departures.cc", "spec.on_site_loss"}},
      {"spec.grace", {"coordinator/core/departures.cc", "spec.grace_ns"}},
  };
  return readers;
}

ClusterSpec TwoSites() {
  ClusterSpec cluster;
  for (const char* name : {"site0", "site1"}) {
    SiteSpec site;
    site.name = name;
    site.devices_per_node = 2;
    site.device = {.kind = "x",
                   .memory_bytes = int64_t{1} << 30,
                   .peak_flops = 1e10,
                   .memory_bandwidth_bytes_per_s = 1e10,
                   .intra_node_bandwidth_bytes_per_s = 1e10,
                   .host_bandwidth_bytes_per_s = 1e10,
                   .efficiency = 0.5};
    cluster.sites.push_back(site);
  }
  cluster.links.push_back(
      {.site_a = "site0", .site_b = "site1", .latency_ns = 3'000'000, .bandwidth_bytes_per_s = 1e9});
  return cluster;
}

std::string Planned(const JobSpec& job) {
  PlanRequest request;
  request.job = job;
  request.cluster = TwoSites();
  const absl::StatusOr<PlanResult> result = MakePlan(request);
  if (!result.ok()) {
    return result.status().ToString();
  }
  std::string text = fmt::format("{} {} b {} s {} m {} {} evaluations, seed {}, {} ns, {} WAN bytes",
                                 ScheduleKindName(result->plan.schedule), fmt::join(result->plan.delta_n, ","),
                                 result->plan.micro_batch_size, result->plan.sequence_length,
                                 result->plan.micro_batches, result->search.evaluations, result->search.seed,
                                 result->prediction.iteration_ns, result->prediction.wan_bytes_per_iteration);
  for (const StagePlan& stage : result->plan.stages) {
    const PipelineRankPlan& rank = result->plan.pipeline_ranks[stage.pipeline_rank];
    text += fmt::format("; {} layers {} to {}, {} bytes", rank.site, stage.layers.first, stage.layers.last,
                        rank.peak_bytes);
  }
  return text;
}

// Trains the job on one worker: its losses and norms to the bit, or why it cannot.
std::string Trained(const JobSpec& job) {
  FakeCluster cluster(1);
  cluster.Command(0, PrepareCommandFor(job, {}, 1, 0));
  const v1::WorkerReport prepared =
      cluster.Await(0, [](const v1::WorkerReport& report) { return report.has_prepared() || report.has_failure(); });
  if (prepared.has_failure()) {
    return prepared.failure().message();
  }
  cluster.Command(0, CommitCommandFor(1, job.training.iterations));
  cluster.Await(0, [](const v1::WorkerReport& report) { return report.has_finished() || report.has_failure(); });
  std::string text;
  for (const v1::WorkerReport& report : cluster.reports(0)) {
    text += report.has_iteration() ? fmt::format("{} {};", report.iteration().loss(), report.iteration().grad_norm())
            : report.has_evaluation()
                ? fmt::format("{} of {};", report.evaluation().loss(), report.evaluation().iteration())
                : report.failure().message();
  }
  return text;
}

bool Has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_CASE("Every key changes a plan, a number or a refusal") {
  const TempDir dir;
  for (const std::string_view file : {"tokens", "other"}) {
    std::string tokens;
    for (int i = 0; i < 4000; ++i) {
      tokens += static_cast<char>((i * (file == "tokens" ? 7 : 11)) % 251);
      tokens += '\0';
    }
    dir.Write(std::string(file), tokens);
  }
  JobSpec job = SmallJob(dir.path() + "/tokens");
  job.data.format = DataFormat::kTokens;
  job.model.tie_word_embeddings = false;
  job.model.rope_scaling = {.type = RopeScaling::Type::kLlama3, .factor = 4, .original_max_position_embeddings = 16};
  job.training.min_learning_rate = 0.001;
  job.placement.sites = {"site0", "site1"};
  job.evaluation.every = 2;
  job.evaluation.data = job.data;
  const std::string manifest = WriteManifest(job);
  REQUIRE(ParseManifest(manifest).value() == job);
  const Schema<JobSpec> schema = JobSchema("");
  const std::string planned = Planned(job);
  const std::string trained = Trained(job);
  REQUIRE(Has(trained, ";"));
  for (const std::string& path : schema.KeyPaths()) {
    if (path == "apiVersion" || path == "kind" || path == "spec.data.tokenizer" ||
        path == "spec.evaluation.data.tokenizer" || path == "spec.model.preset") {
      continue;  // one word, or what other keys say
    }
    CAPTURE(path);
    const auto& values = path.starts_with("spec.evaluation.") ? OtherEvaluationValues() : OtherValues();
    const auto other = values.find(path);
    REQUIRE(other != values.end());
    JobSpec changed = job;
    std::string text = other->second;
    if (const size_t at = text.find("{}"); at != std::string::npos) {
      text.replace(at, 2, dir.path());
    }
    REQUIRE(schema.OverlayText(path, text, "test", &changed).ok());
    REQUIRE_FALSE(changed == job);
    CHECK(WriteManifest(changed) != manifest);
    const auto reader = Readers().find(path);
    if (reader != Readers().end()) {
      const auto source = ReadFile(std::string(GEOPIPE_SOURCE_DIR "/") + reader->second.first, 1 << 20);
      CHECK((source.ok() && Has(*source, reader->second.second)));
      continue;
    }
    const absl::Status refused = ParseJobFile(WriteManifest(changed), "job.yaml", "/", BackendKind::kCpu).status();
    const bool by_name = Has(std::string(refused.message()), path + ": is ");
    CHECK((by_name || Planned(changed) != planned || Trained(changed) != trained));
  }
}

}  // namespace
}  // namespace geopipe
