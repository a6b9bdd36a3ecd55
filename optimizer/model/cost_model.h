// Durations of the model's parts on a device: an analytic roofline, replaced by measurements wherever they exist.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "optimizer/model/cluster.h"
#include "optimizer/model/execution_config.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/profile.h"
#include "optimizer/model/transformer.h"

namespace geopipe {

// The job's choices together with a micro-batch size, a sequence length and a recompute mode. `auto` (0) for tensor and
// data is 1, which is what the training engine runs.
ExecutionConfig MakeExecutionConfig(const JobSpec& job, int64_t micro_batch_size, int64_t sequence_length,
                                    Recompute recompute);

// Share of peak_flops that products over `tokens` rows reach: device.efficiency * tokens / (tokens + 256), because
// small products cannot fill the device.
double Efficiency(const DeviceSpec& device, int64_t tokens);

// Roofline (Williams et al., 2009): max(FLOPs / (peak * efficiency(b*s)), bytes / memory bandwidth).
// REQUIRES: peak_flops and memory_bandwidth positive.
double RooflineSeconds(const Work& work, const DeviceSpec& device, int64_t tokens);

// One ring all-reduce of `bytes` over `ranks`, or one all-gather plus one reduce-scatter: every rank sends and receives
// 2 * (ranks - 1) / ranks * bytes. Zero for one rank. REQUIRES: bandwidth positive when ranks > 1.
double AllReduceSeconds(int64_t bytes, int64_t ranks, double bandwidth_bytes_per_s);

// Durations of the model's parts on one device for one micro-batch: roofline plus tensor-parallel collectives
// (Megatron: two all-reduces of b*s*h per layer in F and two in I, or as many all-gather/reduce-scatter pairs with
// sequence parallelism; full recomputation repeats F's; one all-reduce in the embedding's F and one in the head's I).
// The fields of a PartCosts are the analytic counterpart of a ProfileEntry's. InvalidArgument names the site and the
// device figure that is missing.
struct ModelCosts {
  PartCosts embedding;
  PartCosts block;
  PartCosts head;
  double adamw_ns_per_parameter = 0;  // 28 bytes moved per parameter: gradient, master weight, two moments; weight
};
absl::StatusOr<ModelCosts> AnalyticCosts(const ModelSpec& model, const ExecutionConfig& config, const SiteSpec& site);

// The profile's measurement of device `device` of `site` at (b, s) where there is one: of that device when the site's
// entries are all of one node, else the slowest of the site for each part. The analytic costs otherwise.
absl::StatusOr<ModelCosts> CostsAt(const ModelSpec& model, const ExecutionConfig& config, const SiteSpec& site,
                                   int32_t device, const Profile* profile);

}  // namespace geopipe
