#include "coordinator/spec/case_file.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/config/located_error.h"
#include "runtime/base/config/schema.h"
#include "runtime/base/files.h"

namespace geopipe {
namespace {

constexpr double kMinActionS = 1e-9;  // F and B (or I) take time
constexpr double kMaxDurationS = 1e9;
constexpr double kMaxBytes = 1e18;
constexpr double kMaxBandwidthBytesPerS = 1e18;

// One number for all, or a list with one for each.
struct Numbers {
  bool is_list = false;
  std::vector<double> values;
};

struct CaseLink {
  int64_t from_chunk = 0;
  double latency_s = 0;
  double bandwidth_bytes_per_s = 0;
  std::string link;
};

struct CaseMemory {
  Numbers capacity_bytes;
  Numbers static_bytes{false, {0}};
  Numbers activation_bytes{false, {0}};
  Numbers wgrad_bytes{false, {0}};
};

struct CaseFile {
  int64_t devices = 0;
  int64_t chunks = 0;              // 0: as many as devices
  std::vector<int64_t> placement;  // empty: chunk mod devices
  int64_t micro_batches = 0;
  Numbers forward_s;
  Numbers backward_s;
  Numbers weight_grad_s;  // no values: the backward cannot be split
  Numbers message_bytes{false, {0}};
  std::vector<CaseLink> links;
  CommMode comm = CommMode::kNonBlocking;
  std::optional<CaseMemory> memory;
  double epilogue_s = 0;
};

ValueType<Numbers> NumbersValue(double min, double max) {
  ValueType<std::vector<double>> list = ListValue(From(min, max, NumberValue()));
  ValueType<Numbers> type;
  type.name = "number or list";
  type.range = std::move(list.range);
  type.read = [read = std::move(list.read)](const YamlNode& node) -> absl::StatusOr<Numbers> {
    Numbers numbers{.is_list = node.is_list(), .values = {}};
    GP_ASSIGN_OR_RETURN(numbers.values, read(node));
    return numbers;
  };
  type.show = [](const Numbers& numbers) {
    return numbers.values.empty() ? std::string() : fmt::format("{}", numbers.values.front());
  };
  return type;
}

ValueType<double> Bandwidth() {
  return Restricted<double>(NumberValue(), fmt::format("above 0 and at most {}", kMaxBandwidthBytesPerS),
                            [](const double& value) { return value > 0 && value <= kMaxBandwidthBytesPerS; });
}

Schema<CaseMemory> MemorySchema() {
  using M = CaseMemory;
  return Schema<M>()
      .Key("capacity_bytes", NumbersValue(1, kMaxBytes), &M::capacity_bytes, "Per device.", Need::kRequired)
      .Key("static_bytes", NumbersValue(0, kMaxBytes), &M::static_bytes,
           "Per device: weights, gradients, optimizer state, workspace.")
      .Key("activation_bytes", NumbersValue(0, kMaxBytes), &M::activation_bytes, "Per chunk and in-flight micro-batch.")
      .Key("wgrad_bytes", NumbersValue(0, kMaxBytes), &M::wgrad_bytes, "Per chunk: the part kept between I and W.");
}

Schema<CaseFile> CaseSchema() {
  using C = CaseFile;
  using L = CaseLink;
  return Schema<C>()
      .Key("devices", From<int64_t>(1, kMaxDevices, IntegerValue()), &C::devices, "Devices in the pipeline.",
           Need::kRequired)
      .Key("chunks", Showing("devices", IntegerValue()), &C::chunks, "Virtual stages.")
      .Key("placement", Showing("chunk mod devices", ListValue(IntegerValue())), &C::placement, "Device of each chunk.")
      .Key("micro_batches", IntegerValue(), &C::micro_batches, "Micro-batches of an iteration.", Need::kRequired)
      .Key("forward_s", NumbersValue(kMinActionS, kMaxDurationS), &C::forward_s,
           "Seconds of F, for all chunks or one for each.", Need::kRequired)
      .Key("backward_s", NumbersValue(kMinActionS, kMaxDurationS), &C::backward_s,
           "Seconds of B; of I when weight_grad_s is given.", Need::kRequired)
      .Key("weight_grad_s", NumbersValue(0, kMaxDurationS), &C::weight_grad_s,
           "Seconds of W; given: schedules may split the backward.")
      .Key("message_bytes", NumbersValue(0, kMaxBytes), &C::message_bytes, "For all boundaries or one for each.")
      .List("links",
            Schema<L>()
                .Key("from_chunk", IntegerValue(), &L::from_chunk, "The boundary after this chunk.", Need::kRequired)
                .Key("latency_s", From(0.0, kMaxDurationS, NumberValue()), &L::latency_s, "One way, seconds.",
                     Need::kRequired)
                .Key("bandwidth_Bps", Bandwidth(), &L::bandwidth_bytes_per_s, "Bytes per second and direction.",
                     Need::kRequired)
                .Key("link", StringValue(), &L::link, "Boundaries with the same name share one link."),
            &C::links, "Boundaries that cross sites; the others cost nothing.")
      .Key("comm",
           ChoiceValue<CommMode>({{"nonblocking", CommMode::kNonBlocking},
                                  {"blocking", CommMode::kBlocking},
                                  {"rendezvous", CommMode::kRendezvous}}),
           &C::comm, "How messages cross a boundary.")
      .Map("memory", MemorySchema(), &C::memory, "Absent: memory is not counted.")
      .Key("epilogue_s", From(0.0, kMaxDurationS, NumberValue()), &C::epilogue_s, "Seconds after the last action.");
}

// Turns what the file gives into costs. Each error names the key and its place.
class CaseReader {
 public:
  CaseReader(const YamlDocument& document, const CaseFile& file) : document_(document), file_(file) {}

  absl::StatusOr<PipelineCosts> Read() {
    GP_RETURN_IF_ERROR(ReadShape());
    const int32_t chunks = costs_.shape.stages;
    GP_ASSIGN_OR_RETURN(costs_.forward_ns, Durations("forward_s", file_.forward_s, chunks));
    GP_ASSIGN_OR_RETURN(costs_.input_grad_ns, Durations("backward_s", file_.backward_s, chunks));
    if (file_.weight_grad_s.is_list || !file_.weight_grad_s.values.empty()) {
      GP_ASSIGN_OR_RETURN(costs_.weight_grad_ns, Durations("weight_grad_s", file_.weight_grad_s, chunks));
    }
    GP_RETURN_IF_ERROR(ReadBoundaries());
    costs_.comm = file_.comm;
    if (file_.memory.has_value()) {
      GP_RETURN_IF_ERROR(ReadMemory(*file_.memory));
    }
    costs_.epilogue_ns = SecondsToNs(file_.epilogue_s);
    GP_RETURN_IF_ERROR(AttributeTo(document_, "", ValidateCosts(costs_)));
    return std::move(costs_);
  }

 private:
  absl::Status Fail(std::string_view path, const std::string& message) const {
    return AttributeTo(document_, path, absl::InvalidArgumentError(message));
  }

  absl::Status CheckRange(std::string_view path, int64_t value, int64_t min, int64_t max) const {
    return value >= min && value <= max ? absl::OkStatus()
                                        : Fail(path, fmt::format("is {}; it must be from {} to {}", value, min, max));
  }

  absl::Status ReadShape() {
    const bool chunks_given = document_.root.Find("chunks") != nullptr;
    const int64_t chunks = chunks_given ? file_.chunks : file_.devices;
    GP_RETURN_IF_ERROR(CheckRange("chunks", chunks, file_.devices, kMaxDevices));
    GP_RETURN_IF_ERROR(CheckRange("micro_batches", file_.micro_batches, 1, kMaxStageMicroBatches / chunks));
    costs_.shape = {.devices = static_cast<int32_t>(file_.devices),
                    .stages = static_cast<int32_t>(chunks),
                    .micro_batches = static_cast<int32_t>(file_.micro_batches),
                    .placement = {}};
    return ReadPlacement();
  }

  absl::Status ReadPlacement() {
    PipelineShape& shape = costs_.shape;
    if (document_.root.Find("placement") == nullptr) {
      for (int32_t chunk = 0; chunk < shape.stages; ++chunk) {
        shape.placement.push_back(chunk % shape.devices);
      }
      return absl::OkStatus();
    }
    if (std::ssize(file_.placement) != shape.stages) {
      return Fail("placement", fmt::format("has {} entries; give the device of each of the {} chunks",
                                           file_.placement.size(), shape.stages));
    }
    std::vector<bool> used(static_cast<size_t>(shape.devices), false);
    for (size_t chunk = 0; chunk < file_.placement.size(); ++chunk) {
      const int64_t device = file_.placement[chunk];
      GP_RETURN_IF_ERROR(CheckRange(fmt::format("placement[{}]", chunk), device, 0, shape.devices - 1));
      used[static_cast<size_t>(device)] = true;
      shape.placement.push_back(static_cast<int32_t>(device));
    }
    for (size_t device = 0; device < used.size(); ++device) {
      if (!used[device]) {
        return Fail("placement", fmt::format("gives device {} nothing to do; place a chunk on every device", device));
      }
    }
    return absl::OkStatus();
  }

  // `count` values: the one given for all, or the list.
  absl::StatusOr<std::vector<double>> Spread(std::string_view path, const Numbers& numbers, int64_t count) const {
    if (numbers.is_list && std::ssize(numbers.values) != count) {
      return Fail(path, fmt::format("has {} entries; give one number, or a list of {}", numbers.values.size(), count));
    }
    return numbers.is_list ? numbers.values : std::vector<double>(static_cast<size_t>(count), numbers.values.front());
  }

  absl::StatusOr<std::vector<int64_t>> Durations(std::string_view path, const Numbers& numbers, int64_t count) const {
    GP_ASSIGN_OR_RETURN(const std::vector<double> seconds, Spread(path, numbers, count));
    std::vector<int64_t> durations_ns;
    durations_ns.reserve(seconds.size());
    for (const double s : seconds) {
      durations_ns.push_back(SecondsToNs(s));
    }
    return durations_ns;
  }

  absl::StatusOr<std::vector<int64_t>> Bytes(std::string_view path, const Numbers& numbers, int64_t count) const {
    GP_ASSIGN_OR_RETURN(const std::vector<double> given, Spread(path, numbers, count));
    std::vector<int64_t> bytes;
    bytes.reserve(given.size());
    for (const double value : given) {
      bytes.push_back(std::llround(value));
    }
    return bytes;
  }

  absl::Status ReadBoundaries() {
    const int64_t boundaries = costs_.shape.stages - 1;
    if (!file_.links.empty() && document_.root.Find("message_bytes") == nullptr) {
      return Fail("message_bytes", "missing; links need to know what a message carries");
    }
    GP_ASSIGN_OR_RETURN(const std::vector<int64_t> bytes, Bytes("message_bytes", file_.message_bytes, boundaries));
    costs_.boundaries.resize(static_cast<size_t>(boundaries));
    for (size_t i = 0; i < bytes.size(); ++i) {
      costs_.boundaries[i].message_bytes = bytes[i];
    }
    for (size_t i = 0; i < file_.links.size(); ++i) {
      GP_RETURN_IF_ERROR(ReadLink(file_.links[i], fmt::format("links[{}]", i)));
    }
    return absl::OkStatus();
  }

  absl::Status ReadLink(const CaseLink& link, const std::string& path) {
    const int64_t boundaries = std::ssize(costs_.boundaries);
    if (link.from_chunk < 0 || link.from_chunk >= boundaries) {
      return Fail(path + ".from_chunk",
                  boundaries == 0 ? fmt::format("is {}; one chunk has no boundary, leave links out", link.from_chunk)
                                  : fmt::format("is {}; no boundary follows that chunk, it must be from 0 to {}",
                                                link.from_chunk, boundaries - 1));
    }
    BoundaryCost& boundary = costs_.boundaries[static_cast<size_t>(link.from_chunk)];
    if (boundary.crosses) {
      return Fail(path + ".from_chunk",
                  fmt::format("is {} a second time; give each boundary one link", link.from_chunk));
    }
    const double serialization_s = static_cast<double>(boundary.message_bytes) / link.bandwidth_bytes_per_s;
    if (!(serialization_s <= kMaxDurationS)) {
      return Fail(path + ".bandwidth_Bps",
                  fmt::format("is {}; a message of {} bytes would take {:.3g} s, at most {:.3g} s "
                              "can be counted",
                              link.bandwidth_bytes_per_s, boundary.message_bytes, serialization_s, kMaxDurationS));
    }
    if (!link.link.empty()) {
      const auto [first, inserted] = shared_.try_emplace(link.link, &link);
      if (!inserted && (first->second->latency_s != link.latency_s ||
                        first->second->bandwidth_bytes_per_s != link.bandwidth_bytes_per_s)) {
        return Fail(path,
                    fmt::format("link {} has latency_s {} and bandwidth_Bps {} here, {} and {} above; a shared link "
                                "has one latency and one bandwidth",
                                link.link, link.latency_s, link.bandwidth_bytes_per_s, first->second->latency_s,
                                first->second->bandwidth_bytes_per_s));
      }
    }
    boundary.crosses = true;
    boundary.link = link.link;
    boundary.latency_ns = SecondsToNs(link.latency_s);
    boundary.serialization_ns = SecondsToNs(serialization_s);
    return absl::OkStatus();
  }

  absl::Status ReadMemory(const CaseMemory& memory) {
    const PipelineShape& shape = costs_.shape;
    MemoryCosts& costs = costs_.memory.emplace();
    GP_ASSIGN_OR_RETURN(costs.capacity_bytes, Bytes("memory.capacity_bytes", memory.capacity_bytes, shape.devices));
    GP_ASSIGN_OR_RETURN(costs.static_bytes, Bytes("memory.static_bytes", memory.static_bytes, shape.devices));
    GP_ASSIGN_OR_RETURN(costs.activation_bytes,
                        Bytes("memory.activation_bytes", memory.activation_bytes, shape.stages));
    GP_ASSIGN_OR_RETURN(costs.wgrad_bytes, Bytes("memory.wgrad_bytes", memory.wgrad_bytes, shape.stages));
    return absl::OkStatus();
  }

  const YamlDocument& document_;
  const CaseFile& file_;
  PipelineCosts costs_;
  std::map<std::string, const CaseLink*> shared_;  // first use of each link name
};

}  // namespace

absl::StatusOr<PipelineCosts> ParseCaseFile(std::string_view text, std::string_view file) {
  GP_ASSIGN_OR_RETURN(const YamlDocument document, ParseYaml(text, file));
  GP_ASSIGN_OR_RETURN(const CaseFile given, CaseSchema().Read(document));
  return CaseReader(document, given).Read();
}

absl::StatusOr<PipelineCosts> ReadCaseFile(const std::filesystem::path& path) {
  GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxYamlBytes));
  return ParseCaseFile(text, path.string());
}

absl::Status AttributeToCaseFile(const std::filesystem::path& path, const PipelineShape& shape,
                                 const absl::Status& status) {
  const std::string message(status.message());
  const bool is_shape =
      message.find(fmt::format("{} stages on {} devices", shape.stages, shape.devices)) != std::string::npos;
  const absl::StatusOr<YamlDocument> document =
      is_shape && path != "-" ? ReadYaml(path) : absl::StatusOr<YamlDocument>(status);
  if (!document.ok()) {
    return status;
  }
  const bool gives_chunks = document->root.Find("chunks") != nullptr;
  return AttributeTo(*document, gives_chunks ? "chunks" : "devices", status);
}

FileReference ExplainCase() {
  return {"A case file: explicit costs of one pipeline iteration. Seconds, bytes and bytes per second, without units.",
          CaseSchema().Rows()};
}

}  // namespace geopipe
