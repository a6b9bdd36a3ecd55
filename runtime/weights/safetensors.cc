#include "runtime/weights/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/weights/float_formats.h"
#include "runtime/weights/json_text.h"

namespace geopipe {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;

absl::Status Malformed(const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}; copy or download the file again", path, what));
}

std::optional<FloatFormat> ParseDtype(std::string_view name) {
  const auto* const found = std::ranges::find(kFloatFormats, name, &FloatFormatRow::safetensors);
  return found == kFloatFormats.end() ? std::nullopt : std::optional(found->format);
}

absl::StatusOr<json> ParseHeader(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() < kLengthBytes) {
    return Malformed(file.path(), fmt::format("{} bytes are too few for a safetensors file", bytes.size()));
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > static_cast<uint64_t>(SafetensorsFile::kMaxHeaderBytes)) {
    return Malformed(file.path(), fmt::format("the header says it is {} bytes long, more than the {} a safetensors "
                                              "header may have",
                                              length, SafetensorsFile::kMaxHeaderBytes));
  }
  if (length > bytes.size() - kLengthBytes) {
    return Malformed(file.path(), fmt::format("the header says it is {} bytes long, but only {} bytes follow: the file "
                                              "is truncated",
                                              length, bytes.size() - kLengthBytes));
  }
  json header = ParseJson({reinterpret_cast<const char*>(bytes.data() + kLengthBytes), length});
  if (!header.is_object()) {
    return Malformed(file.path(), "the header is not a JSON object");
  }
  return header;
}

bool IsSize(const json& value) {
  return value.is_number_unsigned() &&
         value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

bool AreSizes(const json& value) { return value.is_array() && std::all_of(value.begin(), value.end(), IsSize); }

// Bytes of a tensor, or nullopt when that is no int64_t.
std::optional<int64_t> TensorBytes(const std::vector<int64_t>& shape, FloatFormat format) {
  int64_t bytes = RowOf(format).bytes;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

absl::StatusOr<StoredTensor> ParseTensor(const std::string& path, const std::string& name, const json& entry,
                                         std::span<const std::byte> data) {
  const auto dtype = entry.is_object() ? entry.find("dtype") : entry.end();
  const auto shape = entry.is_object() ? entry.find("shape") : entry.end();
  const auto offsets = entry.is_object() ? entry.find("data_offsets") : entry.end();
  if (dtype == entry.end() || !dtype->is_string() || shape == entry.end() || !AreSizes(*shape) ||
      offsets == entry.end() || !AreSizes(*offsets) || offsets->size() != 2) {
    return Malformed(path,
                     fmt::format("the header's entry of tensor {} has no valid dtype, shape and data_offsets", name));
  }
  StoredTensor tensor{.dtype = dtype->get<std::string>(), .shape = shape->get<std::vector<int64_t>>(), .bytes = {}};
  const auto begin = (*offsets)[0].get<uint64_t>();
  const auto end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > data.size()) {
    return Malformed(path, fmt::format("tensor {} lies at bytes {} to {} of the data, which has {}: the file is "
                                       "truncated or damaged",
                                       name, begin, end, data.size()));
  }
  if (const std::optional<FloatFormat> known = ParseDtype(tensor.dtype); known.has_value()) {
    const std::optional<int64_t> expected = TensorBytes(tensor.shape, *known);
    if (!expected.has_value() || static_cast<uint64_t>(*expected) != end - begin) {
      return Malformed(path, fmt::format("tensor {} of dtype {} and shape [{}] cannot have {} bytes", name,
                                         tensor.dtype, fmt::join(tensor.shape, ", "), end - begin));
    }
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  GP_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  SafetensorsFile file(std::move(mapped));
  GP_ASSIGN_OR_RETURN(const json header, ParseHeader(file.file_));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.file_.bytes().data(), kLengthBytes);
  const std::span<const std::byte> data = file.file_.bytes().subspan(kLengthBytes + header_bytes);
  std::map<const std::byte*, std::string> by_place;  // of those that have bytes
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      continue;
    }
    GP_ASSIGN_OR_RETURN(StoredTensor tensor, ParseTensor(path, name, entry, data));
    if (!tensor.bytes.empty() && !by_place.emplace(tensor.bytes.data(), name).second) {
      return Malformed(path, fmt::format("tensors {} and {} overlap", by_place.at(tensor.bytes.data()), name));
    }
    file.tensors_.emplace(name, std::move(tensor));
  }
  for (auto next = by_place.begin(); next != by_place.end();) {
    const auto tensor = next++;
    const std::span<const std::byte> bytes = file.tensors_.find(tensor->second)->second.bytes;
    if (next != by_place.end() && next->first < bytes.data() + bytes.size()) {
      return Malformed(path, fmt::format("tensors {} and {} overlap", tensor->second, next->second));
    }
  }
  return file;
}

absl::Status SafetensorsFile::Read(std::string_view name, const std::vector<int64_t>& shape,
                                   std::span<float> values) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::NotFoundError(fmt::format("{}: tensor {} is missing; the model needs it", path(), name));
  }
  const StoredTensor& tensor = found->second;
  if (tensor.shape != shape) {
    return absl::InvalidArgumentError(
        fmt::format("{}: tensor {} has shape [{}], the model needs [{}]; check spec.model against the directory's "
                    "config.json",
                    path(), name, fmt::join(tensor.shape, ", "), fmt::join(shape, ", ")));
  }
  const std::optional<FloatFormat> format = ParseDtype(tensor.dtype);
  if (!format.has_value()) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: tensor {} has dtype {}; F32, BF16 and F16 can be read, convert the file", path(), name, tensor.dtype));
  }
  DecodeFloats(*format, tensor.bytes, values);
  return absl::OkStatus();
}

}  // namespace geopipe
