#include "coordinator/spec/profile_file.h"

#include <fmt/format.h>

#include <set>
#include <tuple>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/config/located_error.h"
#include "runtime/base/config/schema.h"
#include "runtime/base/files.h"

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

struct ProfileFile {
  std::string api_version;
  std::string kind;
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

Schema<ProfileFile> ProfileSchema() {
  using P = ProfileFile;
  return Schema<P>()
      .Key("apiVersion", ChoiceValue<std::string>({{"geopipe/v1", "geopipe/v1"}}), &P::api_version, "geopipe/v1.",
           Need::kRequired)
      .Key("kind", ChoiceValue<std::string>({{"Profile", "Profile"}}), &P::kind, "Profile.", Need::kRequired)
      .Key("tensor", WordOr<int64_t>("job", 0, From<int64_t>(1, kMaxTensor, IntegerValue())), &P::tensor,
           "Tensor-parallel degree that the entries are of; job: its own, and 1 where that is auto.")
      .List("entries", EntrySchema(), &P::entries, "One for each device, b and s that was measured.", Need::kRequired)
      .List("messages", MessageSchema(), &P::messages, "One for each device: what its transport takes for a message.");
}

absl::Status CheckSite(const YamlDocument& document, const std::string& path, const std::string& site,
                       const ClusterSpec* cluster) {
  if (cluster == nullptr || cluster->FindSite(site) != nullptr) {
    return absl::OkStatus();
  }
  return document.Error(
      path + ".site",
      fmt::format("'{}' is not a site of the topology; name one of its sites or leave the entry out", site));
}

}  // namespace

absl::StatusOr<Profile> ParseProfileFile(std::string_view text, std::string_view file, const ClusterSpec* cluster) {
  GP_ASSIGN_OR_RETURN(const YamlDocument document, ParseYaml(text, file));
  GP_ASSIGN_OR_RETURN(ProfileFile given, ProfileSchema().Read(document));
  std::set<std::tuple<std::string_view, std::string_view, int32_t, int64_t, int64_t>> seen;
  for (size_t i = 0; i < given.entries.size(); ++i) {
    const ProfileEntry& entry = given.entries[i];
    const std::string path = fmt::format("entries[{}]", i);
    GP_RETURN_IF_ERROR(CheckSite(document, path, entry.site, cluster));
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
    GP_RETURN_IF_ERROR(CheckSite(document, path, cost.site, cluster));
    if (!devices.insert({cost.site, cost.node, cost.device}).second) {
      return document.Error(path, fmt::format("{}/{}/{} is given twice; keep one", cost.site, cost.node, cost.device));
    }
  }
  return Profile{.entries = std::move(given.entries), .messages = std::move(given.messages), .tensor = given.tensor};
}

absl::StatusOr<Profile> ReadProfileFile(const std::filesystem::path& path, const ClusterSpec* cluster) {
  GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxYamlBytes));
  return ParseProfileFile(text, path.string(), cluster);
}

std::string FormatProfile(const Profile& profile) {
  return ProfileSchema().Write({"geopipe/v1", "Profile", profile.tensor, profile.entries, profile.messages});
}

absl::Status WriteProfileFile(const std::filesystem::path& path, const Profile& profile) {
  return WriteFileAtomically(path, FormatProfile(profile));
}

FileReference ExplainProfile() {
  return {
      "A profile file: measured costs, from which the planner also estimates costs at other b and s. Durations carry "
      "units.",
      ProfileSchema().Rows()};
}

}  // namespace geopipe
