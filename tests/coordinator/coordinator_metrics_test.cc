#include "coordinator/coordinator_metrics.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/scrape.h"

namespace geopipe {
namespace {

StoredJob Job(const std::string& name, JobState state) {
  StoredJob job;
  job.detail.mutable_summary()->set_name(name);
  job.detail.mutable_summary()->set_state(state);
  return job;
}

PersistTransition To(const std::string& job, JobState state) {
  PersistTransition effect;
  effect.job = job;
  effect.transition.set_state(state);
  return effect;
}

IterationsFinished Finished(const std::string& job, int64_t iteration, double loss) {
  IterationsFinished effect{.job = job, .tokens_per_iteration = 100, .iterations = {}};
  v1::IterationSummary& summary = effect.iterations.emplace_back();
  summary.set_iteration(iteration);
  summary.set_loss(loss);
  summary.set_duration_ns(500'000'000);
  summary.set_bubble_ratio(0.25);
  return effect;
}

AgentMessage Hello(SessionId session, const std::string& site) {
  AgentMessage event{session, {}};
  event.message.mutable_hello()->mutable_node()->set_site(site);
  event.message.mutable_hello()->mutable_node()->set_node("n0");
  return event;
}

AgentMessage Heartbeat(SessionId session) {
  AgentMessage event{session, {}};
  event.message.mutable_heartbeat();
  return event;
}

TEST_CASE("jobs are counted by state, those of an earlier life too") {
  MetricRegistry registry(MetricLabels{});
  CoordinatorMetrics metrics(registry, {Job("a", v1::JOB_STATE_COMPLETED), Job("b", v1::JOB_STATE_RUNNING)});
  const auto jobs = [&](const std::string& state) {
    return SeriesValue(registry.Text(), "geopipe_jobs", {{"state", state}});
  };
  CHECK(jobs("COMPLETED") == 1);
  CHECK(jobs("RUNNING") == 1);
  CHECK(jobs("PAUSED") == 0);
  metrics.OnEffect(To("b", v1::JOB_STATE_FAILED));
  metrics.OnEffect(PersistNewJob{Job("c", v1::JOB_STATE_PENDING).detail, {}, 1, "a"});  // forgets a
  CHECK(jobs("COMPLETED") == 0);
  CHECK(jobs("FAILED") == 1);
  CHECK(jobs("PENDING") == 1);
}

TEST_CASE("earlier runs of a name do not count, and leave no series") {
  MetricRegistry registry(MetricLabels{});
  CoordinatorMetrics metrics(registry, {Job("a@1", v1::JOB_STATE_COMPLETED), Job("a@2", v1::JOB_STATE_COMPLETED),
                                        Job("a", v1::JOB_STATE_COMPLETED)});
  const auto jobs = [&](const std::string& state) {
    return SeriesValue(registry.Text(), "geopipe_jobs", {{"state", state}});
  };
  CHECK(jobs("COMPLETED") == 1);
  metrics.OnEffect(Finished("a", 0, 5.0));
  metrics.OnEffect(PersistNewJob{Job("a", v1::JOB_STATE_PENDING).detail, {}, 1, "a@1", 0, "a@3"});
  CHECK(jobs("COMPLETED") == 0);
  CHECK(jobs("PENDING") == 1);
  CHECK_FALSE(SeriesValue(registry.Text(), "geopipe_loss", {{"training_job", "a"}}).has_value());
  CHECK(registry.Text().find("a@") == std::string::npos);
}

TEST_CASE("a job's figures follow its iterations and go when it is replaced") {
  MetricRegistry registry(MetricLabels{});
  CoordinatorMetrics metrics(registry, {});
  metrics.OnEffect(PersistNewJob{Job("a", v1::JOB_STATE_PENDING).detail, {}, 1, ""});
  PersistTransition deploying = To("a", v1::JOB_STATE_DEPLOYING);
  deploying.outcome.emplace().mutable_prediction()->set_iteration_ns(2'000'000'000);
  metrics.OnEffect(deploying);
  CHECK(SeriesValue(registry.Text(), "geopipe_predicted_iteration_seconds") == 2);
  CHECK_FALSE(SeriesValue(registry.Text(), "geopipe_loss").has_value());
  metrics.OnEffect(Finished("a", 0, 5));
  metrics.OnEffect(Finished("a", 1, 4));
  metrics.OnEffect(To("a", v1::JOB_STATE_COMPLETED));
  const std::string text = registry.Text();
  CHECK(SeriesValue(text, "geopipe_iterations_total", {{"training_job", "a"}}) == 2);
  CHECK(SeriesValue(text, "geopipe_tokens_total") == 200);
  CHECK(SeriesValue(text, "geopipe_iteration_seconds_sum") == 1);
  CHECK(SeriesValue(text, "geopipe_loss") == 4);
  CHECK(SeriesValue(text, "geopipe_bubble_ratio") == 0.25);
  CHECK_FALSE(SeriesValue(text, "geopipe_gradient_norm").has_value());  // gradients were not clipped

  PersistRecord record{"a", {}, Job("a", v1::JOB_STATE_RUNNING).detail};
  for (const int64_t iteration : {2, 4}) {
    v1::EvaluationSummary& evaluation = *record.outcome->add_evaluations();
    evaluation.set_iteration(iteration);
    evaluation.set_loss(static_cast<double>(10 - iteration));
    evaluation.set_duration_ns(500'000'000);
  }
  CHECK_FALSE(SeriesValue(registry.Text(), "geopipe_validation_loss").has_value());
  metrics.OnEffect(record);
  CHECK(SeriesValue(registry.Text(), "geopipe_validation_loss", {{"training_job", "a"}}) == 6);
  CHECK(SeriesValue(registry.Text(), "geopipe_evaluated_iterations") == 4);
  CHECK(SeriesValue(registry.Text(), "geopipe_evaluation_seconds") == 0.5);

  metrics.OnEffect(PersistNewJob{Job("a", v1::JOB_STATE_PENDING).detail, {}, 2, ""});
  CHECK(registry.Text().find("training_job") == std::string::npos);
  metrics.OnEffect(Finished("a", 0, 6));
  CHECK(SeriesValue(registry.Text(), "geopipe_iterations_total") == 1);
}

TEST_CASE("losses are counted by cause, with what they cost of the time that counts") {
  MetricRegistry registry(MetricLabels{});
  CoordinatorMetrics metrics(registry, {});
  metrics.OnEffect(PersistNewJob{Job("a", v1::JOB_STATE_PENDING).detail, {}, 1, ""});
  metrics.OnEffect(Finished("a", 0, 5));  // half a second
  CHECK(SeriesValue(registry.Text(), "geopipe_effective_training_time_ratio") == 1);
  PersistTransition lost = To("a", GENERATE(v1::JOB_STATE_RECOVERING, v1::JOB_STATE_PENDING));
  v1::RecoverySummary& recovery = *lost.outcome.emplace().add_recoveries();
  recovery.set_kind("killed");
  metrics.OnEffect(lost);
  PersistTransition runs = To("a", v1::JOB_STATE_RUNNING);
  runs.transition.set_unix_time_ns(7);
  recovery.set_ended_unix_time_ns(7);
  recovery.set_lost_ns(1'500'000'000);
  runs.outcome = lost.outcome;
  metrics.OnEffect(runs);
  PersistTransition paused = runs;  // the loss is an old one
  paused.transition.set_state(v1::JOB_STATE_PAUSED);
  paused.transition.set_unix_time_ns(8);
  metrics.OnEffect(paused);
  PersistTransition leaves = paused;  // for other devices
  leaves.transition.set_state(v1::JOB_STATE_PENDING);
  leaves.transition.set_unix_time_ns(9);
  metrics.OnEffect(leaves);
  const std::string text = registry.Text();
  CHECK(SeriesValue(text, "geopipe_replans_total", {{"training_job", "a"}, {"cause", "lost"}}) == 1);
  CHECK(SeriesValue(text, "geopipe_recoveries_total", {{"training_job", "a"}, {"cause", "killed"}}) == 1);
  CHECK(SeriesValue(text, "geopipe_recovery_lost_seconds_total", {{"training_job", "a"}}) == 1.5);
  CHECK(SeriesValue(text, "geopipe_effective_training_time_ratio", {{"training_job", "a"}}) == 0.25);
}

TEST_CASE("the newest checkpoint shows its time, size and duration") {
  MetricRegistry registry(MetricLabels{});
  CoordinatorMetrics metrics(registry, {});
  PersistRecord record{.job = "a", .record = {}, .outcome = v1::JobDetail()};
  record.outcome->add_checkpoints()->set_bytes(5);
  v1::CheckpointSummary& newest = *record.outcome->add_checkpoints();
  newest.set_bytes(300);
  newest.set_unix_time_ns(2'000'000'000);
  newest.set_duration_ns(500'000'000);
  metrics.OnEffect(record);
  const std::string text = registry.Text();
  CHECK(SeriesValue(text, "geopipe_checkpoint_bytes", {{"training_job", "a"}}) == 300);
  CHECK(SeriesValue(text, "geopipe_checkpoint_completed_time_seconds") == 2);
  CHECK(SeriesValue(text, "geopipe_checkpoint_duration_seconds") == 0.5);
}

TEST_CASE("figures of the latest finished jobs alone are kept") {
  MetricRegistry registry(MetricLabels{});
  CoordinatorMetrics metrics(registry, {});
  for (int i = 0; i < 70; ++i) {
    const std::string name = "job-" + std::to_string(i);
    metrics.OnEffect(PersistNewJob{Job(name, v1::JOB_STATE_PENDING).detail, {}, 1, ""});
    metrics.OnEffect(Finished(name, 0, i));
    metrics.OnEffect(To(name, v1::JOB_STATE_COMPLETED));
  }
  const std::string text = registry.Text();
  CHECK_FALSE(SeriesValue(text, "geopipe_loss", {{"training_job", "job-5"}}).has_value());
  CHECK(SeriesValue(text, "geopipe_loss", {{"training_job", "job-6"}}) == 6);
  CHECK(SeriesValue(text, "geopipe_jobs", {{"state", "COMPLETED"}}) == 70);
}

TEST_CASE("heartbeats are counted by agent, streams as long as they last") {
  MetricRegistry registry(MetricLabels{});
  CoordinatorMetrics metrics(registry, {});
  metrics.OnEvent(Heartbeat(1));  // has not said hello
  metrics.OnEvent(Hello(2, "north"));
  metrics.OnEvent(Hello(3, "east"));
  metrics.OnEvent(Heartbeat(2));
  metrics.OnEvent(Heartbeat(2));
  metrics.OnEvent(Heartbeat(3));
  metrics.OnEvent(AgentClosed{3, "gone"});
  metrics.OnEvent(Heartbeat(3));
  const std::string text = registry.Text();
  CHECK(SeriesValue(text, "geopipe_agents_connected") == 1);
  CHECK(SeriesValue(text, "geopipe_agent_heartbeats_total", {{"site", "north"}, {"node", "n0"}}) == 2);
  CHECK(SeriesValue(text, "geopipe_agent_heartbeats_total", {{"site", "east"}}) == 1);
}

TEST_CASE("links show what is known of them, bandwidth once it was measured") {
  MetricRegistry registry(MetricLabels{});
  CoordinatorMetrics metrics(registry, {});
  LinkMeasured measured{.from_site = "east", .to_site = "west", .value = {}};
  measured.value.set_latency_ns(20'000'000);
  metrics.OnEffect(measured);
  const std::vector<std::pair<std::string, std::string>> link = {{"from_site", "east"}, {"to_site", "west"}};
  CHECK(SeriesValue(registry.Text(), "geopipe_link_measured_latency_seconds", link) == 0.02);
  CHECK(registry.Text().find("geopipe_link_measured_bandwidth_bytes_per_second{") == std::string::npos);
  measured.value.set_bandwidth_bytes_per_s(1e8);
  metrics.OnEffect(measured);
  CHECK(SeriesValue(registry.Text(), "geopipe_link_measured_bandwidth_bytes_per_second", link) == 1e8);
}

}  // namespace
}  // namespace geopipe
