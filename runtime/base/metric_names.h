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

struct MetricSpec {
  std::string_view name;
  MetricKind kind = MetricKind::kGauge;
  std::string_view help;
  std::array<std::string_view, 3> labels{};  // empty ones last
  std::span<const double> bounds{};          // upper, of a histogram's buckets
};

namespace metrics {

// From a tiny model's iteration on one host to a large one's over slow links.
inline constexpr double kIterationBounds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,   2.5,
                                              5,     10,   25,    50,   100, 250,  500, 1000};
inline constexpr double kActionBounds[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                           0.05,   0.1,     0.25,   0.5,   1,      2.5,   5,    10};
inline constexpr double kRpcBounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5};

// --- Every process ---
inline constexpr MetricSpec kBuildInfo{"geopipe_build_info",
                                       MetricKind::kGauge,
                                       "Always 1; which program of which version this is.",
                                       {"program", "version"}};

// --- Coordinator ---
inline constexpr MetricSpec kJobs{
    "geopipe_jobs", MetricKind::kGauge, "Jobs the coordinator keeps, by state.", {"state"}};
inline constexpr MetricSpec kIterations{"geopipe_iterations_total",
                                        MetricKind::kCounter,
                                        "Iterations of the job that all ranks have finished.",
                                        {"training_job"}};
inline constexpr MetricSpec kIterationSeconds{"geopipe_iteration_seconds",
                                              MetricKind::kHistogram,
                                              "Time of an iteration, from rank 0's first forward to its next.",
                                              {"training_job"},
                                              kIterationBounds};
inline constexpr MetricSpec kBubbleRatio{"geopipe_bubble_ratio",
                                         MetricKind::kGauge,
                                         "Share of the devices' time in the last iteration that was not computation.",
                                         {"training_job"}};
inline constexpr MetricSpec kTokens{
    "geopipe_tokens_total", MetricKind::kCounter, "Tokens the job has trained on.", {"training_job"}};
inline constexpr MetricSpec kLoss{"geopipe_loss",
                                  MetricKind::kGauge,
                                  "Mean cross-entropy over the tokens of the last iteration, in nats.",
                                  {"training_job"}};
inline constexpr MetricSpec kGradientNorm{"geopipe_gradient_norm",
                                          MetricKind::kGauge,
                                          "Global gradient norm of the last iteration, before clipping.",
                                          {"training_job"}};
inline constexpr MetricSpec kPredictedIterationSeconds{"geopipe_predicted_iteration_seconds",
                                                       MetricKind::kGauge,
                                                       "Time of an iteration as the plan predicted it.",
                                                       {"training_job"}};
inline constexpr MetricSpec kPredictedBubbleRatio{
    "geopipe_predicted_bubble_ratio", MetricKind::kGauge, "Bubble ratio as the plan predicted it.", {"training_job"}};
inline constexpr MetricSpec kAgentsConnected{"geopipe_agents_connected", MetricKind::kGauge,
                                             "Agents that have an open stream to the coordinator."};
inline constexpr MetricSpec kAgentHeartbeats{
    "geopipe_agent_heartbeats_total", MetricKind::kCounter, "Heartbeats received from the agent.", {"site", "node"}};
inline constexpr MetricSpec kLinkMeasuredLatency{"geopipe_link_measured_latency_seconds",
                                                 MetricKind::kGauge,
                                                 "One-way latency of the link as measured, by probes or traffic.",
                                                 {"from_site", "to_site"}};
inline constexpr MetricSpec kLinkMeasuredBandwidth{"geopipe_link_measured_bandwidth_bytes_per_second",
                                                   MetricKind::kGauge,
                                                   "Bandwidth of the link's direction as measured, likewise.",
                                                   {"from_site", "to_site"}};
inline constexpr MetricSpec kRpcSeconds{"geopipe_rpc_seconds",
                                        MetricKind::kHistogram,
                                        "Time from a call's arrival to its answer, calls with one answer alone.",
                                        {"method", "code"},
                                        kRpcBounds};
inline constexpr MetricSpec kRpcStreams{
    "geopipe_rpc_streams_total", MetricKind::kCounter, "Streams that have ended.", {"method", "code"}};

// --- Agent ---
inline constexpr MetricSpec kWorkers{"geopipe_workers", MetricKind::kGauge, "Worker processes that run on the node."};
inline constexpr MetricSpec kWorkerExits{"geopipe_worker_exits_total",
                                         MetricKind::kCounter,
                                         "Worker processes that have ended: ok, error (exit code) or signal.",
                                         {"outcome"}};
inline constexpr MetricSpec kWorkerHeartbeats{"geopipe_worker_heartbeats_total",
                                              MetricKind::kCounter,
                                              "Heartbeats received from the worker of the device.",
                                              {"device"}};
inline constexpr MetricSpec kCoordinatorConnected{"geopipe_coordinator_connected", MetricKind::kGauge,
                                                  "1 while the coordinator has welcomed this agent, else 0."};
inline constexpr MetricSpec kCoordinatorConnections{"geopipe_coordinator_connections_total", MetricKind::kCounter,
                                                    "Times the coordinator has welcomed this agent."};
inline constexpr MetricSpec kLinkLatency{"geopipe_link_latency_seconds",
                                         MetricKind::kGauge,
                                         "One-way latency of the link as configured.",
                                         {"from_site", "to_site"}};
inline constexpr MetricSpec kLinkBandwidth{"geopipe_link_bandwidth_bytes_per_second",
                                           MetricKind::kGauge,
                                           "Bandwidth of the link's direction as configured.",
                                           {"from_site", "to_site"}};

// --- Worker ---
inline constexpr MetricSpec kRankIterations{
    "geopipe_rank_iterations_total", MetricKind::kCounter, "Iterations that this rank has finished.", {"rank"}};
inline constexpr MetricSpec kRankIterationSeconds{
    "geopipe_rank_iteration_seconds",
    MetricKind::kHistogram,
    "Time of an iteration of this rank, from its first action to its next iteration's first action.",
    {"rank"},
    kIterationBounds};
inline constexpr MetricSpec kRankBusySeconds{"geopipe_rank_busy_seconds_total",
                                             MetricKind::kCounter,
                                             "Time this rank has spent in forward and backward passes.",
                                             {"rank"}};
inline constexpr MetricSpec kRankBubbleRatio{"geopipe_rank_bubble_ratio",
                                             MetricKind::kGauge,
                                             "Share of the last iteration in which this rank did not compute.",
                                             {"rank"}};
inline constexpr MetricSpec kRankLoss{
    "geopipe_rank_loss", MetricKind::kGauge, "Loss of the last iteration, where the last stage runs.", {"rank"}};
inline constexpr MetricSpec kStageActionSeconds{
    "geopipe_stage_action_seconds",
    MetricKind::kHistogram,
    "Time of one micro-batch's forward, backward, input_gradient or weight_gradient.",
    {"stage", "action"},
    kActionBounds};
inline constexpr MetricSpec kMemory{"geopipe_memory_bytes",
                                    MetricKind::kGauge,
                                    "Memory in use; category activations is what is in flight.",
                                    {"category"}};
inline constexpr MetricSpec kMemoryPeak{
    "geopipe_memory_peak_bytes", MetricKind::kGauge, "Most memory that was in use at once.", {"category"}};
inline constexpr MetricSpec kMemoryLimit{"geopipe_memory_limit_bytes", MetricKind::kGauge,
                                         "Most memory this worker may use; absent when there is no limit."};
inline constexpr MetricSpec kLinkSentBytes{"geopipe_link_sent_bytes_total",
                                           MetricKind::kCounter,
                                           "Bytes sent to the rank: headers, payloads and what was sent again.",
                                           {"from_site", "to_site", "to_rank"}};
inline constexpr MetricSpec kLinkReceivedBytes{"geopipe_link_received_bytes_total",
                                               MetricKind::kCounter,
                                               "Bytes received from the rank, likewise.",
                                               {"from_site", "to_site", "from_rank"}};
inline constexpr MetricSpec kLinkRoundTrip{"geopipe_link_round_trip_seconds",
                                           MetricKind::kGauge,
                                           "Smoothed time from a frame to its acknowledgement, queueing included.",
                                           {"from_site", "to_site", "to_rank"}};
inline constexpr MetricSpec kFramesSent{"geopipe_transport_frames_sent_total", MetricKind::kCounter,
                                        "Frames sent, those sent again included."};
inline constexpr MetricSpec kFramesResent{"geopipe_transport_frames_resent_total", MetricKind::kCounter,
                                          "Frames sent again because they were lost."};
inline constexpr MetricSpec kFramesReceived{"geopipe_transport_frames_received_total", MetricKind::kCounter,
                                            "Frames received."};
inline constexpr MetricSpec kFramesDuplicate{"geopipe_transport_frames_duplicate_total", MetricKind::kCounter,
                                             "Frames received that had been received before."};
inline constexpr MetricSpec kFramesRefused{"geopipe_transport_frames_refused_total", MetricKind::kCounter,
                                           "Frames refused: corrupt, or of another job, epoch or session."};
inline constexpr MetricSpec kReconnects{"geopipe_transport_reconnects_total", MetricKind::kCounter,
                                        "Times a broken connection to a peer was made again."};
inline constexpr MetricSpec kTransportCpu{"geopipe_transport_cpu_seconds_total", MetricKind::kCounter,
                                          "Processor time of the transport's progress thread."};

inline constexpr const MetricSpec* kAll[] = {&kBuildInfo,
                                             &kJobs,
                                             &kIterations,
                                             &kIterationSeconds,
                                             &kBubbleRatio,
                                             &kTokens,
                                             &kLoss,
                                             &kGradientNorm,
                                             &kPredictedIterationSeconds,
                                             &kPredictedBubbleRatio,
                                             &kAgentsConnected,
                                             &kAgentHeartbeats,
                                             &kLinkMeasuredLatency,
                                             &kLinkMeasuredBandwidth,
                                             &kRpcSeconds,
                                             &kRpcStreams,
                                             &kWorkers,
                                             &kWorkerExits,
                                             &kWorkerHeartbeats,
                                             &kCoordinatorConnected,
                                             &kCoordinatorConnections,
                                             &kLinkLatency,
                                             &kLinkBandwidth,
                                             &kRankIterations,
                                             &kRankIterationSeconds,
                                             &kRankBusySeconds,
                                             &kRankBubbleRatio,
                                             &kRankLoss,
                                             &kStageActionSeconds,
                                             &kMemory,
                                             &kMemoryPeak,
                                             &kMemoryLimit,
                                             &kLinkSentBytes,
                                             &kLinkReceivedBytes,
                                             &kLinkRoundTrip,
                                             &kFramesSent,
                                             &kFramesResent,
                                             &kFramesReceived,
                                             &kFramesDuplicate,
                                             &kFramesRefused,
                                             &kReconnects,
                                             &kTransportCpu};

}  // namespace metrics
}  // namespace geopipe
