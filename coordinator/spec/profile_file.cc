#include "coordinator/spec/profile_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/config/located_error.h"
#include "runtime/base/config/schema.h"
#include "runtime/base/files.h"
#include "runtime/manifest/job_schema.h"

namespace geopipe {
namespace {

// Limits beyond any device; values computed from them stay far within 64 bits.
constexpr int64_t kMaxSequenceLength = int64_t{1} << 20;
constexpr int64_t kMaxTokensPerMicroBatch = int64_t{1} << 26;
constexpr int64_t kMaxMeasuredNs = int64_t{24} * 3600 * 1'000'000'000;
constexpr int64_t kMaxMessageBytes = int64_t{1} << 40;
constexpr int64_t kMaxTensor = 65'536;
constexpr int32_t kMaxDevice = 1023;

ValueType<int64_t> Measured() { return From<int64_t>(0, kMaxMeasuredNs, DurationValue()); }
ValueType<int32_t> DeviceIndex() { return From<int32_t>(0, kMaxDevice, Integer32Value()); }

// Keys of a model that do not change what one of its layers takes.
constexpr std::array<std::string_view, 11> kNotMeasured{"num_hidden_layers",
                                                        "max_position_embeddings",
                                                        "rope_theta",
                                                        "rope_scaling.rope_type",
                                                        "rope_scaling.factor",
                                                        "rope_scaling.low_freq_factor",
                                                        "rope_scaling.high_freq_factor",
                                                        "rope_scaling.original_max_position_embeddings",
                                                        "sliding_window",
                                                        "padded_vocab_size",
                                                        "rms_norm_eps"};

struct FileKeys {
  std::string api_version;
  std::string kind;
  ProfiledModel model;
  int64_t tensor = 0;
  std::vector<ProfileEntry> entries;
  std::vector<MessageCost> messages;
};

Schema<PartCosts> PartSchema() {
  return Schema<PartCosts>()
      .Key("forward", Measured(), &PartCosts::forward_ns, "F.", Need::kRequired)
      .Key("input_grad", Measured(), &PartCosts::input_grad_ns, "I.", Need::kRequired)
      .Key("weight_grad", Measured(), &PartCosts::weight_grad_ns, "W.", Need::kRequired);
}

Schema<ProfileEntry> EntrySchema() {
  using E = ProfileEntry;
  return Schema<E>()
      .Key("site", StringValue(), &E::site, "Site of the device.", Need::kRequired)
      .Key("node", StringValue(), &E::node, "Node of the device.", Need::kRequired)
      .Key("device", DeviceIndex(), &E::device, "Device of the node, from 0.", Need::kRequired)
      .Key("micro_batch_size", From<int64_t>(1, kMaxTokensPerMicroBatch, IntegerValue()), &E::micro_batch_size, "b.",
           Need::kRequired)
      .Key("sequence_length", From<int64_t>(1, kMaxSequenceLength, IntegerValue()), &E::sequence_length, "s.",
           Need::kRequired)
      .Map("embedding", PartSchema(), &E::embedding, "Token embedding.", Need::kRequired)
      .Map("block", PartSchema(), &E::block, "One decoder layer.", Need::kRequired)
      .Map("head", PartSchema(), &E::head, "Final norm, LM head and loss.", Need::kRequired)
      .Key("adamw_per_million_parameters", Measured(), &E::adamw_ns_per_million_parameters, "Weight update.",
           Need::kRequired);
}

Schema<MessageCost> MessageSchema() {
  using M = MessageCost;
  return Schema<M>()
      .Key("site", StringValue(), &M::site, "Site of the device.", Need::kRequired)
      .Key("node", StringValue(), &M::node, "Node of the device.", Need::kRequired)
      .Key("device", DeviceIndex(), &M::device, "Device of the node, from 0.", Need::kRequired)
      .Key("bytes", From<int64_t>(1, kMaxMessageBytes, IntegerValue()), &M::bytes, "Of the large message.",
           Need::kRequired)
      .Key("whole", Measured(), &M::whole_ns,
           "From sender to receiver over no link: of two that cross each other the later.", Need::kRequired)
      .Key("fixed", Measured(), &M::fixed_ns, "The same of a message of 4 bytes.", Need::kRequired);
}

Schema<ProfiledModel> ModelKeys() {
  using P = ProfiledModel;
  return Schema<P>()
      .Embed(ModelSchema(), &P::model)
      .Key("precision", ChoiceValue<Precision>({{"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}}), &P::precision,
           "Of activations and messages.")
      .Key("device", StringValue(), &P::device, "Kind of the devices, as a topology says it.")
      .Key("attention", ChoiceValue<Attention>({{"dense", Attention::kDense}, {"blocked", Attention::kBlocked}}),
           &P::attention, "How they compute attention.");
}

Schema<FileKeys> ProfileSchema() {
  using P = FileKeys;
  return Schema<P>()
      .Key("apiVersion", ChoiceValue<std::string>({{"geopipe/v1", "geopipe/v1"}}), &P::api_version, "geopipe/v1.",
           Need::kRequired)
      .Key("kind", ChoiceValue<std::string>({{"Profile", "Profile"}}), &P::kind, "Profile.", Need::kRequired)
      .Map("model", ModelKeys(), &P::model,
           "What the entries are measurements of; num_hidden_layers may be another than the job's.")
      .Key("tensor", WordOr<int64_t>("job", 0, From<int64_t>(1, kMaxTensor, IntegerValue())), &P::tensor,
           "Tensor-parallel degree that the entries are of; job: its own, and 1 where that is auto.")
      .List("entries", EntrySchema(), &P::entries, "One for each device, b and s that was measured.", Need::kRequired)
      .List("messages", MessageSchema(), &P::messages, "One for each device: what its transport takes for a message.");
}

absl::Status CheckSite(const YamlDocument& document, const std::string& path, const std::string& site,
                       const ProfileUse* use) {
  if (use == nullptr || use->cluster.FindSite(site) != nullptr) {
    return absl::OkStatus();
  }
  return document.Error(
      path + ".site",
      fmt::format("'{}' is not a site of the topology; name one of its sites or leave the entry out", site));
}

// `wanted`: what the job would have measured at the site.
absl::Status CheckModel(const YamlDocument& document, const ProfiledModel& given, const ProfiledModel& wanted,
                        const std::string& job, const std::string& site) {
  static const auto& schema = *new Schema<ProfiledModel>(ModelKeys());
  for (const std::string& key : schema.KeyPaths()) {
    const std::string has = schema.Show(key, given);
    const std::string wants = schema.Show(key, wanted);
    if (has == wants || std::ranges::find(kNotMeasured, key) != kNotMeasured.end()) {
      continue;
    }
    const bool of_site = key == "device" || key == "attention";
    return document.Error(
        "model." + key,
        fmt::format("{}, and {} has {}; measure again: run the job there, then geopipectl profile {}", "is " + has,
                    of_site ? fmt::format("site {} of the topology", site) : "job " + job, wants, job));
  }
  return absl::OkStatus();
}

absl::Status CheckUse(const YamlDocument& document, const FileKeys& given, const ProfileUse& use) {
  std::set<std::string_view> sites;
  for (const ProfileEntry& entry : given.entries) {
    const SiteSpec* site = use.cluster.FindSite(entry.site);
    if (site == nullptr || !sites.insert(entry.site).second) {
      continue;
    }
    const ProfiledModel wanted{.model = use.job.model,
                               .precision = use.job.precision,
                               .device = site->device.kind,
                               .attention = site->device.attention.value_or(Attention::kBlocked)};
    GP_RETURN_IF_ERROR(CheckModel(document, given.model, wanted, use.job.name, entry.site));
  }
  return absl::OkStatus();
}

}  // namespace

ProfiledModel ProfiledModelOf(const JobSpec& job) {
  return {
      .model = job.model, .precision = job.precision, .device = std::string(kHostDevice), .attention = job.attention};
}

absl::StatusOr<ProfileFile> ParseProfileFile(std::string_view text, std::string_view file, const ProfileUse* use) {
  GP_ASSIGN_OR_RETURN(const YamlDocument document, ParseYaml(text, file));
  GP_ASSIGN_OR_RETURN(FileKeys given, ProfileSchema().Read(document));
  if (!given.entries.empty() && document.root.Find("model") == nullptr) {
    return document.Error("model",
                          "missing: of which model the entries are is not said, as older versions wrote them; measure "
                          "again (geopipectl profile JOB), or add it (geopipectl explain profile)");
  }
  std::set<std::tuple<std::string_view, std::string_view, int32_t, int64_t, int64_t>> seen;
  for (size_t i = 0; i < given.entries.size(); ++i) {
    const ProfileEntry& entry = given.entries[i];
    const std::string path = fmt::format("entries[{}]", i);
    GP_RETURN_IF_ERROR(CheckSite(document, path, entry.site, use));
    if (entry.micro_batch_size > kMaxTokensPerMicroBatch / entry.sequence_length) {
      return document.Error(path,
                            fmt::format("micro_batch_size {}, sequence_length {}; a micro-batch has at most {} tokens",
                                        entry.micro_batch_size, entry.sequence_length, kMaxTokensPerMicroBatch));
    }
    if (!seen.insert({entry.site, entry.node, entry.device, entry.micro_batch_size, entry.sequence_length}).second) {
      return document.Error(path, fmt::format("{}/{}/{} at b {} and s {} is given twice; keep one", entry.site,
                                              entry.node, entry.device, entry.micro_batch_size, entry.sequence_length));
    }
  }
  std::set<std::tuple<std::string_view, std::string_view, int32_t>> devices;
  for (size_t i = 0; i < given.messages.size(); ++i) {
    const MessageCost& cost = given.messages[i];
    const std::string path = fmt::format("messages[{}]", i);
    GP_RETURN_IF_ERROR(CheckSite(document, path, cost.site, use));
    if (!devices.insert({cost.site, cost.node, cost.device}).second) {
      return document.Error(path, fmt::format("{}/{}/{} is given twice; keep one", cost.site, cost.node, cost.device));
    }
  }
  if (use != nullptr && given.entries.empty() && given.messages.empty()) {
    return document.Error("entries", "holds no measurement, nor does messages; measure first (geopipectl profile JOB)");
  }
  if (use != nullptr) {
    GP_RETURN_IF_ERROR(CheckUse(document, given, *use));
  }
  return ProfileFile{
      .model = std::move(given.model),
      .profile = {.entries = std::move(given.entries), .messages = std::move(given.messages), .tensor = given.tensor}};
}

absl::StatusOr<ProfileFile> ReadProfileFile(const std::filesystem::path& path, const ProfileUse* use) {
  GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxYamlBytes));
  return ParseProfileFile(text, path.string(), use);
}

std::string FormatProfile(const ProfileFile& file) {
  const Profile& profile = file.profile;
  return ProfileSchema().Write(
      {"geopipe/v1", "Profile", file.model, profile.tensor, profile.entries, profile.messages});
}

absl::Status WriteProfileFile(const std::filesystem::path& path, const ProfileFile& file) {
  return WriteFileAtomically(path, FormatProfile(file));
}

FileReference ExplainProfile() {
  return {
      "A profile file: measured costs, from which the planner also estimates costs at other b and s, and the model "
      "that "
      "they were measured of. Durations carry units.",
      ProfileSchema().Rows()};
}

}  // namespace geopipe
