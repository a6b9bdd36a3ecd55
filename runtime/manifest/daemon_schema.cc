#include "runtime/manifest/daemon_schema.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// Above every device that is sold; with the devices of a cluster, sums stay within int64_t.
constexpr int64_t kMaxMemoryBytes = int64_t{16} << 40;
constexpr double kMinFlops = 1e9;
constexpr double kMaxFlops = 1e18;
constexpr int64_t kMaxNetworkLatencyNs = 60'000'000'000;  // one way; as a topology's links

// A share is usually written without unit (0.5); "50%" says the same.
ValueType<double> ShareValue() {
  ValueType<double> type;
  type.name = "number";
  type.read = [](const YamlNode& node) -> absl::StatusOr<double> {
    GP_ASSIGN_OR_RETURN(const std::string text, ScalarText(node, "number"));
    return text.ends_with('%') ? ParseRatio(text) : ParseNumber(text);
  };
  type.show = [](const double& value) { return fmt::format("{}", value); };
  return Restricted<double>(std::move(type), "above 0 and at most 1",
                            [](const double& share) { return share > 0 && share <= 1; });
}

}  // namespace

const Schema<DeviceSpec>& DeviceSchema() {
  using D = DeviceSpec;
  static const auto& schema = *new Schema<D>(
      Schema<D>()
          .Key("kind", StringValue(), &D::kind, "Free text; cpu: the host's processors, cuda: GPUs that an agent has.")
          .Key("memory", From<int64_t>(1, kMaxMemoryBytes, BytesValue()), &D::memory_bytes,
               "Capacity for the job, like 64GiB.", Need::kRequired)
          .Key("peak_flops",
               Restricted<double>(
                   NumberValue(), "0 (not known) or from 1e9 to 1e18, like 312e12 for 312 TFLOP/s",
                   [](const double& flops) { return flops == 0 || (flops >= kMinFlops && flops <= kMaxFlops); }),
               &D::peak_flops, "Per second, at the job's precision.")
          .Key("memory_bandwidth", BandwidthValue(), &D::memory_bandwidth_bytes_per_s,
               "Of the device's memory, like 1.6TB/s.")
          .Key("intra_node_bandwidth", BandwidthValue(), &D::intra_node_bandwidth_bytes_per_s,
               "Between devices of a node, per direction.")
          .Key("host_bandwidth", BandwidthValue(), &D::host_bandwidth_bytes_per_s,
               "To and from the host's memory, per direction; for parallelism.offload.")
          .Key("efficiency", ShareValue(), &D::efficiency, "Share of peak_flops that large products reach.")
          .Key("attention_efficiency", OptionalValue("auto", ShareValue()), &D::attention_efficiency,
               "The same of attention's products, over long sequences. auto: 0.35 of efficiency.")
          .Key("attention",
               OptionalValue("auto",
                             ChoiceValue<Attention>({{"dense", Attention::kDense}, {"blocked", Attention::kBlocked}})),
               &D::attention,
               "blocked keeps no scores and does the causal half, as all backends do; dense keeps those of all pairs, "
               "as frameworks did before FlashAttention. auto: blocked.")
          .Key("roofline",
               OptionalValue("auto",
                             ChoiceValue<Roofline>({{"block", Roofline::kBlock}, {"operation", Roofline::kOperation}})),
               &D::roofline,
               "What a layer takes: the greater of its arithmetic and traffic (block), or its operations one by one. "
               "auto: block, or operation in a topology unless kind is cpu.")
          .Key("reserve", OptionalValue("auto", From<int64_t>(0, kMaxMemoryBytes, BytesValue())), &D::reserve_bytes,
               "Memory for driver and libraries. auto: none, or 2GiB and 1/32 of memory in a topology unless kind is "
               "cpu."));
  return schema;
}

const Schema<NetworkSpec>& NetworkSchema() {
  using N = NetworkSpec;
  static const auto& schema = *new Schema<N>(
      Schema<N>()
          .Key("bandwidth", BandwidthValue(), &N::bandwidth_bytes_per_s, "Per direction, like 400Gbps.",
               Need::kRequired)
          .Key("latency", From<int64_t>(0, kMaxNetworkLatencyNs, DurationValue()), &N::latency_ns, "One way.")
          .Key("per", ChoiceValue<N::Per>({{"device", N::Per::kDevice}, {"node", N::Per::kNode}}), &N::per,
               "Whose the bandwidth is: each device's, or a node's, which its devices share."));
  return schema;
}

}  // namespace geopipe
