// Every metric that some process of GeoPipe exposes: name, kind, labels, meaning. docs/metrics.md is for people; a test
// holds the two together. Base units, counters end in _total. All series of an agent also bear site and node, those of
// a worker training_job, site, node and device. ("job" is Prometheus's own label.)
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace geopipe {

enum class MetricKind : uint8_t { kCounter, kGauge, kHistogram };

using MetricLabelNames = std::array<std::string_view, 4>;  // empty ones last

struct MetricSpec {
  std::string_view name;
  MetricKind kind;
  std::string_view help;
  MetricLabelNames labels;
  std::span<const double> bounds;  // upper, of a histogram's buckets
};

struct CounterSpec : MetricSpec {
  constexpr CounterSpec(std::string_view name, std::string_view help, MetricLabelNames labels = {})
      : MetricSpec{name, MetricKind::kCounter, help, labels, {}} {}
};

struct GaugeSpec : MetricSpec {
  constexpr GaugeSpec(std::string_view name, std::string_view help, MetricLabelNames labels = {})
      : MetricSpec{name, MetricKind::kGauge, help, labels, {}} {}
};

struct HistogramSpec : MetricSpec {
  constexpr HistogramSpec(std::string_view name, std::string_view help, MetricLabelNames labels,
                          std::span<const double> bounds)
      : MetricSpec{name, MetricKind::kHistogram, help, labels, bounds} {}
};

namespace metrics {

// Bounds that range from a tiny model's iteration on one host to a large one's over slow links.
inline constexpr double kIterationBounds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,   2.5,
                                              5,     10,   25,    50,   100, 250,  500, 1000};
inline constexpr double kActionBounds[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                           0.05,   0.1,     0.25,   0.5,   1,      2.5,   5,    10};
inline constexpr double kRpcBounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5};

// --- Every process ---
inline constexpr GaugeSpec kBuildInfo("geopipe_build_info", "Always 1; which program of which version this is.",
                                      {"program", "version"});

// --- Coordinator ---
inline constexpr GaugeSpec kJobs("geopipe_jobs", "Jobs the coordinator keeps, by state.", {"state"});
inline constexpr CounterSpec kIterations("geopipe_iterations_total",
                                         "Iterations of the job that all ranks have finished.", {"training_job"});
inline constexpr HistogramSpec kIterationSeconds("geopipe_iteration_seconds",
                                                 "Time of an iteration, from rank 0's first forward to its next.",
                                                 {"training_job"}, kIterationBounds);
inline constexpr GaugeSpec kBubbleRatio("geopipe_bubble_ratio",
                                        "Share of the devices' time in the last iteration that was not computation.",
                                        {"training_job"});
inline constexpr CounterSpec kTokens("geopipe_tokens_total", "Tokens the job has trained on.", {"training_job"});
inline constexpr GaugeSpec kLoss("geopipe_loss", "Mean cross-entropy over the tokens of the last iteration, in nats.",
                                 {"training_job"});
inline constexpr GaugeSpec kGradientNorm("geopipe_gradient_norm",
                                         "Global gradient norm of the last iteration, before clipping.",
                                         {"training_job"});
inline constexpr GaugeSpec kValidationLoss("geopipe_validation_loss",
                                           "Mean cross-entropy over the validation tokens of the last evaluation, in "
                                           "nats.",
                                           {"training_job"});
inline constexpr GaugeSpec kEvaluatedIterations("geopipe_evaluated_iterations",
                                                "Iterations that the job had done when it was last evaluated.",
                                                {"training_job"});
inline constexpr GaugeSpec kEvaluationSeconds("geopipe_evaluation_seconds", "Time of the last evaluation.",
                                              {"training_job"});
inline constexpr CounterSpec kRecoveries("geopipe_recoveries_total",
                                         "Times that the job lost something and went on, by what it lost.",
                                         {"training_job", "cause"});
inline constexpr CounterSpec kRecoveryLostSeconds("geopipe_recovery_lost_seconds_total",
                                                  "Time from losses until the job ran again, and of the iterations "
                                                  "that it repeated.",
                                                  {"training_job"});
inline constexpr GaugeSpec kEffectiveTimeRatio("geopipe_effective_training_time_ratio",
                                               "Time of the iterations that count, of that and what losses cost.",
                                               {"training_job"});
inline constexpr GaugeSpec kCheckpointTime("geopipe_checkpoint_completed_time_seconds",
                                           "When the newest checkpoint was complete on all nodes, in Unix time.",
                                           {"training_job"});
inline constexpr GaugeSpec kCheckpointCopiedTime(
    "geopipe_checkpoint_copied_time_seconds",
    "When the newest checkpoint that other sites have copies of was complete, "
    "since the Unix epoch.",
    {"training_job"});
inline constexpr CounterSpec kReplans("geopipe_replans_total",
                                      "Times that the job went on with other devices, by what made it.",
                                      {"training_job", "cause"});
inline constexpr GaugeSpec kCheckpointSeconds("geopipe_checkpoint_duration_seconds",
                                              "From the first copy of a rank's state to the last manifest, of the "
                                              "newest checkpoint.",
                                              {"training_job"});
inline constexpr GaugeSpec kCheckpointBytes("geopipe_checkpoint_bytes", "Size of the newest checkpoint.",
                                            {"training_job"});
inline constexpr GaugeSpec kPredictedIterationSeconds("geopipe_predicted_iteration_seconds",
                                                      "Time of an iteration as the plan predicted it.",
                                                      {"training_job"});
inline constexpr GaugeSpec kPredictedBubbleRatio("geopipe_predicted_bubble_ratio",
                                                 "Bubble ratio as the plan predicted it.", {"training_job"});
inline constexpr GaugeSpec kAgentsConnected("geopipe_agents_connected",
                                            "Agents that have an open stream to the coordinator.");
inline constexpr CounterSpec kAgentHeartbeats("geopipe_agent_heartbeats_total", "Heartbeats received from the agent.",
                                              {"site", "node"});
inline constexpr GaugeSpec kLinkMeasuredLatency("geopipe_link_measured_latency_seconds",
                                                "One-way latency of the link as measured, by probes or traffic.",
                                                {"from_site", "to_site"});
inline constexpr GaugeSpec kLinkMeasuredBandwidth("geopipe_link_measured_bandwidth_bytes_per_second",
                                                  "Bandwidth of the link's direction as measured, likewise.",
                                                  {"from_site", "to_site"});
inline constexpr HistogramSpec kRpcSeconds("geopipe_rpc_seconds",
                                           "Time from a call's arrival to its answer, calls with one answer alone.",
                                           {"method", "code"}, kRpcBounds);
inline constexpr CounterSpec kRpcStreams("geopipe_rpc_streams_total", "Streams that have ended.", {"method", "code"});

// --- Agent ---
inline constexpr GaugeSpec kWorkers("geopipe_workers", "Worker processes that run on the node.");
inline constexpr CounterSpec kWorkerExits("geopipe_worker_exits_total",
                                          "Worker processes that have ended: ok, error (exit code) or signal.",
                                          {"outcome"});
inline constexpr CounterSpec kWorkerHeartbeats("geopipe_worker_heartbeats_total",
                                               "Heartbeats received from the worker of the device.", {"device"});
inline constexpr GaugeSpec kCoordinatorConnected("geopipe_coordinator_connected",
                                                 "1 while the coordinator has welcomed this agent, else 0.");
inline constexpr CounterSpec kCoordinatorConnections("geopipe_coordinator_connections_total",
                                                     "Times the coordinator has welcomed this agent.");
inline constexpr GaugeSpec kLinkLatency("geopipe_link_latency_seconds", "One-way latency of the link as configured.",
                                        {"from_site", "to_site"});
inline constexpr GaugeSpec kLinkBandwidth("geopipe_link_bandwidth_bytes_per_second",
                                          "Bandwidth of the link's direction as configured.", {"from_site", "to_site"});

// --- Worker ---
inline constexpr CounterSpec kRankIterations("geopipe_rank_iterations_total", "Iterations that this rank has finished.",
                                             {"rank"});
inline constexpr HistogramSpec kRankIterationSeconds(
    "geopipe_rank_iteration_seconds",
    "Time of an iteration of this rank, from its first action to its next iteration's first action.", {"rank"},
    kIterationBounds);
inline constexpr CounterSpec kRankBusySeconds("geopipe_rank_busy_seconds_total",
                                              "Time this rank has spent in forward and backward passes.", {"rank"});
inline constexpr GaugeSpec kRankBubbleRatio("geopipe_rank_bubble_ratio",
                                            "Share of the last iteration in which this rank did not compute.",
                                            {"rank"});
inline constexpr GaugeSpec kRankLoss("geopipe_rank_loss", "Loss of the last iteration, where the last stage runs.",
                                     {"rank"});
inline constexpr HistogramSpec kStageActionSeconds(
    "geopipe_stage_action_seconds", "Time of one micro-batch's forward, backward, input_gradient or weight_gradient.",
    {"stage", "action"}, kActionBounds);
inline constexpr GaugeSpec kMemory("geopipe_memory_bytes", "Memory in use; category activations is what is in flight.",
                                   {"category"});
inline constexpr GaugeSpec kMemoryPeak("geopipe_memory_peak_bytes", "Most memory that was in use at once.",
                                       {"category"});
inline constexpr GaugeSpec kMemoryLimit("geopipe_memory_limit_bytes",
                                        "Most memory this worker may use; absent when there is no limit.");
inline constexpr CounterSpec kLinkSentBytes("geopipe_link_sent_bytes_total",
                                            "Bytes sent to the rank: headers, payloads and what was sent again.",
                                            {"from_site", "to_site", "to_rank"});
inline constexpr CounterSpec kLinkReceivedBytes("geopipe_link_received_bytes_total",
                                                "Bytes received from the rank, likewise.",
                                                {"from_site", "to_site", "from_rank"});
inline constexpr CounterSpec kLinkCorruptFrames("geopipe_link_corrupt_frames_total",
                                                "Frames from the rank that came with other bytes than were sent.",
                                                {"from_site", "to_site", "from_rank"});
inline constexpr CounterSpec kBoundaryMessages("geopipe_boundary_messages_total",
                                               "Activations, or gradients of them, sent to the rank.",
                                               {"from_site", "to_site", "to_rank", "message"});
inline constexpr CounterSpec kBoundaryBytes("geopipe_boundary_bytes_total",
                                            "Their payloads, each once: no headers and nothing sent again.",
                                            {"from_site", "to_site", "to_rank", "message"});
inline constexpr GaugeSpec kLinkRoundTrip("geopipe_link_round_trip_seconds",
                                          "Smoothed time from a frame to its acknowledgement, queueing included.",
                                          {"from_site", "to_site", "to_rank"});
inline constexpr CounterSpec kFramesSent("geopipe_transport_frames_sent_total",
                                         "Frames sent, those sent again included.");
inline constexpr CounterSpec kFramesResent("geopipe_transport_frames_resent_total",
                                           "Frames sent again because they were lost.");
inline constexpr CounterSpec kFramesReceived("geopipe_transport_frames_received_total", "Frames received.");
inline constexpr CounterSpec kFramesDuplicate("geopipe_transport_frames_duplicate_total",
                                              "Frames received that had been received before.");
inline constexpr CounterSpec kFramesRefused("geopipe_transport_frames_refused_total",
                                            "Frames refused: of another job, epoch or session.");
inline constexpr CounterSpec kReconnects("geopipe_transport_reconnects_total",
                                         "Times a broken connection to a peer was made again.");
inline constexpr CounterSpec kTransportCpu("geopipe_transport_cpu_seconds_total",
                                           "Processor time of the transport's progress thread.");

template <class... Specs>
constexpr std::array<const MetricSpec*, sizeof...(Specs)> PointersTo(const Specs&... specs) {
  return {&specs...};
}

inline constexpr auto kAll = PointersTo(
    kBuildInfo, kJobs, kIterations, kIterationSeconds, kBubbleRatio, kTokens, kLoss, kGradientNorm, kValidationLoss,
    kEvaluatedIterations, kEvaluationSeconds, kRecoveries, kRecoveryLostSeconds, kEffectiveTimeRatio, kCheckpointTime,
    kCheckpointCopiedTime, kCheckpointSeconds, kCheckpointBytes, kReplans, kPredictedIterationSeconds,
    kPredictedBubbleRatio, kAgentsConnected, kAgentHeartbeats, kLinkMeasuredLatency, kLinkMeasuredBandwidth,
    kRpcSeconds, kRpcStreams, kWorkers, kWorkerExits, kWorkerHeartbeats, kCoordinatorConnected, kCoordinatorConnections,
    kLinkLatency, kLinkBandwidth, kRankIterations, kRankIterationSeconds, kRankBusySeconds, kRankBubbleRatio, kRankLoss,
    kStageActionSeconds, kMemory, kMemoryPeak, kMemoryLimit, kLinkSentBytes, kLinkReceivedBytes, kLinkCorruptFrames,
    kBoundaryMessages, kBoundaryBytes, kLinkRoundTrip, kFramesSent, kFramesResent, kFramesReceived, kFramesDuplicate,
    kFramesRefused, kReconnects, kTransportCpu);

}  // namespace metrics
}  // namespace geopipe
