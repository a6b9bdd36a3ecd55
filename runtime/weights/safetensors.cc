#include "runtime/weights/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/config/json_reader.h"
#include "runtime/base/file_format.h"
#include "runtime/base/utf8.h"
#include "runtime/weights/float_formats.h"

namespace geopipe {
namespace {

constexpr uint64_t kLengthBytes = 8;

absl::Status Malformed(const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}; copy or download the file again", path, what));
}

std::optional<FloatFormat> ParseDtype(std::string_view name) {
  const auto* const found = std::ranges::find(kFloatFormats, name, &FloatFormatRow::safetensors);
  return found == kFloatFormats.end() ? std::nullopt : std::optional(found->format);
}

// Every dtype that the format has (safetensors, src/tensor.rs), with the bits of an element.
struct DtypeRow {
  std::string_view name;
  int64_t bits;
};
constexpr std::array<DtypeRow, 22> kDtypes{
    {{"F32", 32},        {"BF16", 16},   {"F16", 16},    {"F64", 64},    {"C64", 64},    {"I64", 64},
     {"U64", 64},        {"I32", 32},    {"U32", 32},    {"I16", 16},    {"U16", 16},    {"I8", 8},
     {"U8", 8},          {"BOOL", 8},    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
     {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}}};

// A name as an error shows it.
std::string Shown(std::string_view name) { return Printable(name.substr(0, 200)); }

// The header's text. Its first byte is '{', as the format says, so that no other file passes for one.
absl::StatusOr<std::string_view> HeaderText(const MappedFile& file) {
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
  const std::string_view text(reinterpret_cast<const char*>(bytes.data() + kLengthBytes), length);
  if (!text.starts_with('{')) {
    return Malformed(file.path(), "the header is not a JSON object");
  }
  return text;
}

absl::StatusOr<YamlDocument> ParseHeader(const std::string& path, std::string_view text) {
  absl::StatusOr<YamlDocument> header =
      ParseJsonDocument(text, "the header", {.max_bytes = SafetensorsFile::kMaxHeaderBytes});
  if (!header.ok()) {
    return Malformed(path, std::string(header.status().message()));
  }
  // JSON may end with any blanks; the header of this format with spaces alone.
  if (text.find_last_not_of(' ') != text.rfind('}')) {
    return Malformed(path, "the header is padded with something other than spaces");
  }
  return header;
}

// Parses a plain number without sign, point and exponent.
std::optional<int64_t> ParseSize(const YamlNode& node) {
  int64_t size = 0;
  const char* end = node.scalar.data() + node.scalar.size();
  const bool digits = node.is_scalar() && !node.quoted && !node.scalar.empty() && node.scalar.front() != '-';
  const auto [parsed, error] = std::from_chars(node.scalar.data(), end, size);
  return digits && error == std::errc() && parsed == end ? std::optional(size) : std::nullopt;
}

std::optional<std::vector<int64_t>> ParseSizes(const YamlEntry* entry) {
  if (entry == nullptr || !entry->value.is_list()) {
    return std::nullopt;
  }
  std::vector<int64_t> sizes;
  for (const YamlNode& item : entry->value.items) {
    const std::optional<int64_t> size = ParseSize(item);
    if (!size.has_value()) {
      return std::nullopt;
    }
    sizes.push_back(*size);
  }
  return sizes;
}

// Bytes of a tensor, or nullopt when the number exceeds int64_t or is not whole.
std::optional<int64_t> TensorBytes(const std::vector<int64_t>& shape, int64_t bits) {
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bits, extent, &bits)) {
      return std::nullopt;
    }
  }
  return bits % 8 == 0 ? std::optional(bits / 8) : std::nullopt;
}

// A tensor as the header has it; `bytes` are those of the data that its offsets name.
absl::StatusOr<StoredTensor> ParseTensor(const std::string& path, const std::string& name, const YamlNode& entry,
                                         std::span<const std::byte> data) {
  const YamlEntry* dtype = entry.Find("dtype");
  const std::optional<std::vector<int64_t>> shape = ParseSizes(entry.Find("shape"));
  const std::optional<std::vector<int64_t>> offsets = ParseSizes(entry.Find("data_offsets"));
  if (dtype == nullptr || !dtype->value.quoted || !shape.has_value() || !offsets.has_value() || offsets->size() != 2) {
    return Malformed(
        path, fmt::format("the header's entry of tensor {} has no valid dtype, shape and data_offsets", Shown(name)));
  }
  const int64_t begin = offsets->front();
  const int64_t end = offsets->back();
  if (begin > end || end > std::ssize(data)) {
    return Malformed(path, fmt::format("tensor {} lies at bytes {} to {} of the data, which has {}: the file is "
                                       "truncated or damaged",
                                       Shown(name), begin, end, data.size()));
  }
  const auto* const row = std::ranges::find(kDtypes, dtype->value.scalar, &DtypeRow::name);
  if (row == kDtypes.end()) {
    return Malformed(path, fmt::format("tensor {} has dtype '{}', which the format does not have", Shown(name),
                                       Shown(dtype->value.scalar)));
  }
  if (TensorBytes(*shape, row->bits) != end - begin) {
    return Malformed(path, fmt::format("tensor {} of dtype {} and shape [{}] cannot have {} bytes", Shown(name),
                                       row->name, fmt::join(*shape, ", "), end - begin));
  }
  return StoredTensor{.dtype = dtype->value.scalar, .shape = *shape, .bytes = data.subspan(begin, end - begin)};
}

absl::Status CheckMetadata(const std::string& path, const YamlNode& metadata) {
  const bool texts = std::ranges::all_of(metadata.entries, [](const YamlEntry& entry) { return entry.value.quoted; });
  return metadata.is_null() || (metadata.is_map() && texts)
             ? absl::OkStatus()
             : Malformed(path, "the header's __metadata__ is not a map of texts");
}

// The tensors follow each other without gaps from the first byte of the data to its last.
absl::Status CheckPlaces(const std::string& path, const std::map<std::string, StoredTensor, std::less<>>& tensors,
                         std::span<const std::byte> data) {
  struct Place {
    std::span<const std::byte> bytes;
    std::string_view name;
  };
  std::vector<Place> places;
  places.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    places.push_back({tensor.bytes, name});
  }
  std::ranges::stable_sort(places, {},
                           [](const Place& place) { return std::pair(place.bytes.data(), place.bytes.size()); });
  const std::byte* reached = data.data();
  std::string_view last;
  for (const Place& place : places) {
    const int64_t begin = place.bytes.data() - data.data();
    if (place.bytes.data() < reached) {
      return Malformed(path, fmt::format("tensors {} and {} overlap", Shown(last), Shown(place.name)));
    }
    if (place.bytes.data() > reached) {
      return Malformed(path, fmt::format("bytes {} to {} of the data belong to no tensor: the file is damaged",
                                         reached - data.data(), begin));
    }
    reached = place.bytes.data() + place.bytes.size();
    last = place.name;
  }
  const int64_t rest = data.data() + data.size() - reached;
  return rest == 0 ? absl::OkStatus()
                   : Malformed(path, fmt::format("{} bytes follow the last tensor{}{}: the file is damaged, or two "
                                                 "files in one",
                                                 rest, last.empty() ? "" : ", ", Shown(last)));
}

absl::Status UnreadableDtype(const SafetensorsFile& file, std::string_view name) {
  return absl::InvalidArgumentError(
      fmt::format("{}: tensor {} has dtype {}; F32, BF16 and F16 can be read, convert the file", file.path(), name,
                  file.tensors().find(name)->second.dtype));
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  GP_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  const FileFormat* format =
      RecogniseFormat({reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()});
  if (format != nullptr && format->name != "a safetensors file") {
    return absl::InvalidArgumentError(fmt::format("{}: is {}, not a safetensors file; {}", path, format->name,
                                                  RemedyFor(*format, WantedFile::kWeights)));
  }
  SafetensorsFile file(std::move(mapped));
  GP_ASSIGN_OR_RETURN(const std::string_view text, HeaderText(file.file_));
  GP_ASSIGN_OR_RETURN(const YamlDocument header, ParseHeader(path, text));
  const std::span<const std::byte> data = file.file_.bytes().subspan(kLengthBytes + text.size());
  for (const YamlEntry& entry : header.root.entries) {
    if (entry.key == "__metadata__") {
      GP_RETURN_IF_ERROR(CheckMetadata(path, entry.value));
      continue;
    }
    GP_ASSIGN_OR_RETURN(StoredTensor tensor, ParseTensor(path, entry.key, entry.value, data));
    file.tensors_.emplace(entry.key, std::move(tensor));
  }
  GP_RETURN_IF_ERROR(CheckPlaces(path, file.tensors_, data));
  return file;
}

absl::Status SafetensorsFile::CheckTensor(std::string_view name, const std::vector<int64_t>& shape) const {
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
  return ParseDtype(tensor.dtype).has_value() ? absl::OkStatus() : UnreadableDtype(*this, name);
}

absl::Status SafetensorsFile::Read(std::string_view name, const std::vector<int64_t>& shape,
                                   std::span<float> values) const {
  GP_RETURN_IF_ERROR(CheckTensor(name, shape));
  const StoredTensor& tensor = tensors_.find(name)->second;
  DecodeFloats(*ParseDtype(tensor.dtype), tensor.bytes, values);
  return absl::OkStatus();
}

absl::StatusOr<bool> EqualTensors(const SafetensorsFile& a, std::string_view name_a, const SafetensorsFile& b,
                                  std::string_view name_b) {
  const StoredTensor& tensor_a = a.tensors().find(name_a)->second;
  const StoredTensor& tensor_b = b.tensors().find(name_b)->second;
  if (tensor_a.shape != tensor_b.shape) {
    return false;
  }
  if (tensor_a.dtype == tensor_b.dtype) {
    return std::ranges::equal(tensor_a.bytes, tensor_b.bytes);
  }
  const std::optional<FloatFormat> format_a = ParseDtype(tensor_a.dtype);
  const std::optional<FloatFormat> format_b = ParseDtype(tensor_b.dtype);
  if (!format_a.has_value() || !format_b.has_value()) {
    return UnreadableDtype(format_a.has_value() ? b : a, format_a.has_value() ? name_b : name_a);
  }
  constexpr size_t kPiece = size_t{1} << 16;
  const size_t bytes_a = static_cast<size_t>(RowOf(*format_a).bytes);
  const size_t bytes_b = static_cast<size_t>(RowOf(*format_b).bytes);
  std::vector<float> values_a(kPiece);
  std::vector<float> values_b(kPiece);
  const size_t count = tensor_a.bytes.size() / bytes_a;
  for (size_t begin = 0; begin < count; begin += kPiece) {
    const size_t piece = std::min(kPiece, count - begin);
    DecodeFloats(*format_a, tensor_a.bytes.subspan(begin * bytes_a, piece * bytes_a), std::span(values_a).first(piece));
    DecodeFloats(*format_b, tensor_b.bytes.subspan(begin * bytes_b, piece * bytes_b), std::span(values_b).first(piece));
    if (!std::equal(values_a.begin(), values_a.begin() + static_cast<int64_t>(piece), values_b.begin())) {
      return false;
    }
  }
  return true;
}

}  // namespace geopipe
