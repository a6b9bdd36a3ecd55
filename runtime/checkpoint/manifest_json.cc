// The text of a manifest, written and read.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/utf8.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/weights/json_text.h"

namespace geopipe {
namespace {

using Limits = CheckpointLimits;

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kFormat = "geopipe-checkpoint";
constexpr std::string_view kDtype = "F32";
constexpr std::string_view kSealBegin = "{\"crc32c\":\"";
constexpr std::string_view kSealEnd = "\",";
constexpr size_t kCrcDigits = 8;
constexpr size_t kSealBytes = kSealBegin.size() + kCrcDigits + kSealEnd.size();
constexpr std::string_view kRemedy = "copy the file from another node of the run or choose another checkpoint";

std::string CrcText(uint32_t crc) { return fmt::format("{:08x}", crc); }

std::string Seal(std::string_view body) {
  return fmt::format("{}{}{}", kSealBegin, CrcText(Crc32c(std::as_bytes(std::span(body)))), kSealEnd);
}

ordered_json ToJson(const FileEntry& file) {
  ordered_json tensors = ordered_json::array();
  for (const TensorEntry& tensor : file.tensors) {
    ordered_json& each = tensors.emplace_back();
    each["name"] = tensor.range.name;
    each["dtype"] = kDtype;
    each["shape"] = tensor.range.shape;
    if (tensor.range.column_parts > 1) {
      each["column_parts"] = tensor.range.column_parts;
    }
    each["offset"] = tensor.range.offset;
    each["elements"] = tensor.range.elements;
    each["crc32c"] = CrcText(tensor.crc32c);
  }
  ordered_json result;
  result["name"] = file.name;
  result["bytes"] = file.bytes;
  result["header_bytes"] = file.header_bytes;
  result["header_crc32c"] = CrcText(file.header_crc32c);
  result["tensors"] = std::move(tensors);
  return result;
}

template <class Enum>
std::optional<Enum> Named(std::string_view word);
template <>
std::optional<ModelFamily> Named(std::string_view word) {
  return ModelFamilyOf(word);
}
template <>
std::optional<RopeScaling::Type> Named(std::string_view word) {
  return RopeTypeOf(word);
}

std::string_view WordOf(ModelFamily family) { return ModelFamilyName(family); }
std::string_view WordOf(RopeScaling::Type type) { return RopeTypeName(type); }

// Returns the keys of config.json that only some families of models have and in which the model differs from a plain
// Llama.
ordered_json FamilyFields(const ModelSpec& model) {
  const auto all_of = [](const ModelSpec& of) {
    ordered_json all;
    ForEachFamilyField(of, [&](const char* path, const auto& value) {
      ordered_json& at = all[ordered_json::json_pointer(path)];
      if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(value)>>) {
        at = WordOf(value);
      } else {
        at = value;
      }
    });
    return all;
  };
  ordered_json fields = all_of(model);
  const ordered_json plain = all_of(ModelSpec());
  ordered_json differing = ordered_json::object();
  for (const auto& [key, value] : fields.items()) {
    if (value != plain.at(key)) {
      differing[key] = value;
    }
  }
  return differing;
}

// The fields of one JSON object. The first that is missing or of another kind is the error; from then on all reads are
// empty.
class Fields {
 public:
  Fields(const json& object, std::string where, absl::Status& error)
      : object_(object), where_(std::move(where)), error_(error) {}

  template <class T>
  void Read(const char* key, T& value) {
    const json* field = Find(key);
    if (field == nullptr || !Take(*field, value)) {
      Fail(key);
    }
  }

  void ReadCrc(const char* key, uint32_t& crc) {
    std::string text;
    Read(key, text);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
    if (error != std::errc() || text != CrcText(crc)) {
      Fail(key);
    }
  }

  // Reads a value; one that is missing leaves `value` as it is.
  template <class T>
  void ReadOptional(const char* key, T& value) {
    if (Find(key) != nullptr) {
      Read(key, value);
    }
  }

  // An array of at most `max` elements; empty when the field is none.
  const json& Array(const char* key, size_t max) {
    static const json empty = json::array();
    const json* field = Find(key);
    if (field == nullptr || !field->is_array() || field->size() > max) {
      Fail(key);
      return empty;
    }
    return *field;
  }

  void Fail(std::string_view key) {
    if (error_.ok()) {
      error_ = absl::InvalidArgumentError(fmt::format("{} has no valid \"{}\"", where_, key));
    }
  }

 private:
  // `key`: of the object, or a JSON pointer into it ("/rope_scaling/factor").
  const json* Find(const char* key) const {
    if (!object_.is_object()) {
      return nullptr;
    }
    if (*key == '/') {
      const json::json_pointer pointer(key);
      return object_.contains(pointer) ? &object_.at(pointer) : nullptr;
    }
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  template <class T>
  static bool Take(const json& field, T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = field.is_boolean() && field.get<bool>();
      return field.is_boolean();
    } else if constexpr (std::is_same_v<T, double>) {
      value = field.is_number() ? field.get<double>() : 0;
      return field.is_number();
    } else if constexpr (std::is_enum_v<T>) {
      const std::optional<T> named = field.is_string() ? Named<T>(field.get<std::string>()) : std::nullopt;
      value = named.value_or(T());
      return named.has_value();
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = field.is_string() ? field.get<std::string>() : "";
      return field.is_string();
    } else {
      const bool valid = field.is_number_unsigned() && std::in_range<T>(field.get<uint64_t>());
      value = valid ? static_cast<T>(field.get<uint64_t>()) : 0;
      return valid;
    }
  }

  const json& object_;
  const std::string where_;
  absl::Status& error_;
};

TensorEntry ReadTensor(const json& object, const std::string& file, absl::Status& error) {
  TensorEntry tensor;
  Fields(object, fmt::format("a tensor of file {}", file), error).Read("name", tensor.range.name);
  Fields fields(object, fmt::format("tensor {} of file {}", tensor.range.name, file), error);
  std::string dtype;
  fields.Read("dtype", dtype);
  if (dtype != kDtype && error.ok()) {
    error = absl::UnimplementedError(
        fmt::format("tensor {} of file {} has dtype {}; this version reads {}; use the GeoPipe that "
                    "wrote the checkpoint",
                    tensor.range.name, file, dtype, kDtype));
  }
  for (const json& extent : fields.Array("shape", Limits::kMaxDimensions)) {
    if (!extent.is_number_unsigned() || !std::in_range<int64_t>(extent.get<uint64_t>())) {
      fields.Fail("shape");
      break;
    }
    tensor.range.shape.push_back(extent.get<int64_t>());
  }
  fields.ReadOptional("column_parts", tensor.range.column_parts);
  fields.Read("offset", tensor.range.offset);
  fields.Read("elements", tensor.range.elements);
  fields.ReadCrc("crc32c", tensor.crc32c);
  return tensor;
}

FileEntry ReadFileEntry(const json& object, absl::Status& error) {
  FileEntry file;
  Fields(object, "a file", error).Read("name", file.name);
  Fields fields(object, fmt::format("file {}", file.name), error);
  fields.Read("bytes", file.bytes);
  fields.Read("header_bytes", file.header_bytes);
  fields.ReadCrc("header_crc32c", file.header_crc32c);
  for (const json& tensor : fields.Array("tensors", Limits::kMaxFileTensors)) {
    if (!error.ok()) {
      break;
    }
    file.tensors.push_back(ReadTensor(tensor, file.name, error));
  }
  return file;
}

CheckpointManifest ReadFields(const json& root, absl::Status& error) {
  CheckpointManifest manifest;
  Fields fields(root, "the manifest", error);
  std::string format;
  fields.Read("format", format);
  if (format != kFormat) {
    fields.Fail("format");
  }
  int64_t version = 0;
  fields.Read("version", version);
  if ((version < kManifestVersion || version > kFamiliesVersion) && error.ok()) {
    error =
        absl::UnimplementedError(fmt::format("version {} of the format is not known, only {} to {}; use the GeoPipe "
                                             "that wrote the checkpoint",
                                             version, kManifestVersion, kFamiliesVersion));
    return manifest;
  }
  fields.Read("job", manifest.job);
  fields.Read("incarnation", manifest.incarnation);
  fields.Read("epoch", manifest.epoch);
  fields.Read("next_iteration", manifest.next_iteration);
  fields.Read("seed", manifest.seed);
  fields.Read("tokens_per_iteration", manifest.tokens_per_iteration);
  fields.Read("sequence_length", manifest.sequence_length);
  fields.Read("plan", manifest.plan);
  fields.ReadOptional("init_from", manifest.init_from);
  if (const auto model = root.find("model"); model != root.end()) {
    Fields model_fields(*model, "the model", error);
    ForEachModelField([&](const char* name, auto member) { model_fields.Read(name, manifest.model.*member); });
    ForEachFamilyField(manifest.model, [&](const char* path, auto& value) { model_fields.ReadOptional(path, value); });
  } else {
    fields.Fail("model");
  }
  for (const json& file : fields.Array("files", Limits::kMaxFiles)) {
    if (!error.ok()) {
      break;
    }
    manifest.files.push_back(ReadFileEntry(file, error));
  }
  return manifest;
}

// Adds the path; cuts the message, because names in hostile text may be of any length.
absl::Status At(const std::string& path, const absl::Status& status) {
  constexpr size_t kMaxMessage = 600;
  std::string message(status.message());
  if (message.size() > kMaxMessage) {
    message = ToUtf8(message.substr(0, kMaxMessage)) + "…";
  }
  const bool has_remedy = absl::IsUnimplemented(status);
  return {status.code(), fmt::format("{}: {}{}{}", path, message, has_remedy ? "" : "; ", has_remedy ? "" : kRemedy)};
}

// The lowest version that describes the manifest, so that earlier readers read whatever they can.
int64_t VersionOf(const CheckpointManifest& manifest) {
  const bool has_column_parts = std::ranges::any_of(manifest.files, [](const FileEntry& file) {
    return std::ranges::any_of(file.tensors, [](const TensorEntry& each) { return each.range.column_parts > 1; });
  });
  return !FamilyFields(manifest.model).empty() ? kFamiliesVersion
         : has_column_parts                    ? kColumnPartsVersion
                                               : kManifestVersion;
}

}  // namespace

std::string CheckpointManifestText(const CheckpointManifest& manifest) {
  GP_CHECK(ValidateCheckpointManifest(manifest).ok(), "{}",
           std::string(ValidateCheckpointManifest(manifest).message()));
  ordered_json root;
  root["format"] = kFormat;
  root["version"] = VersionOf(manifest);
  root["job"] = manifest.job;
  root["incarnation"] = manifest.incarnation;
  root["epoch"] = manifest.epoch;
  root["next_iteration"] = manifest.next_iteration;
  root["seed"] = manifest.seed;
  root["tokens_per_iteration"] = manifest.tokens_per_iteration;
  root["sequence_length"] = manifest.sequence_length;
  ordered_json& model = root["model"];
  ForEachModelField([&](const char* name, auto member) { model[name] = manifest.model.*member; });
  model.update(FamilyFields(manifest.model));
  root["plan"] = manifest.plan;
  if (!manifest.init_from.empty()) {
    root["init_from"] = manifest.init_from;
  }
  ordered_json& files = root["files"] = ordered_json::array();
  for (const FileEntry& file : manifest.files) {
    files.push_back(ToJson(file));
  }
  const std::string body = root.dump(1).substr(1) + '\n';  // without its brace, which is the seal's
  return Seal(body) + body;
}

absl::StatusOr<CheckpointManifest> ParseCheckpointManifest(std::string_view text, const std::string& path) {
  if (text.size() <= kSealBytes || !text.starts_with(kSealBegin)) {
    return At(path, absl::DataLossError(fmt::format("its {} bytes do not begin as a manifest does", text.size())));
  }
  const std::string_view body = text.substr(kSealBytes);
  if (text.substr(0, kSealBytes) != Seal(body)) {
    return At(path, absl::DataLossError("its checksum does not fit its content: it was damaged or edited"));
  }
  const json root = ParseJson(text);
  if (!root.is_object()) {
    return At(path, absl::DataLossError("it is not a JSON object"));
  }
  absl::Status error;
  CheckpointManifest manifest = ReadFields(root, error);
  if (error.ok()) {
    error = ValidateCheckpointManifest(manifest);
  }
  if (!error.ok()) {
    return At(path, error);
  }
  return manifest;
}

}  // namespace geopipe
