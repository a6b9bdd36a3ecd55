#include "runtime/checkpoint/manifest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

using Limits = CheckpointLimits;

constexpr int64_t kElementBytes = 4;

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

bool IsName(std::string_view text) { return !text.empty() && text.size() <= Limits::kMaxNameBytes && IsUtf8(text); }

absl::Status ValidateRange(const TensorRange& range) {
  if (!IsName(range.name)) {
    return Invalid(fmt::format("a tensor's name has {} bytes or is not UTF-8; 1 to {} bytes are allowed",
                               range.name.size(), Limits::kMaxNameBytes));
  }
  const int64_t count = CountElements(range.shape);
  if (count < 0) {
    return Invalid(fmt::format("tensor {} has shape [{}]; 1 to {} positive extents of at most {} bytes are allowed",
                               range.name, fmt::join(range.shape, ", "), Limits::kMaxDimensions,
                               Limits::kMaxFileBytes));
  }
  if (range.column_parts < 1 || range.shape.back() % range.column_parts != 0) {
    return Invalid(fmt::format("tensor {} of shape [{}] cannot have its columns in {} parts", range.name,
                               fmt::join(range.shape, ", "), range.column_parts));
  }
  if (range.offset < 0 || range.elements < 1 || range.offset >= count || range.elements > count - range.offset) {
    return Invalid(fmt::format("tensor {} of {} elements cannot have {} elements from {} on", range.name, count,
                               range.elements, range.offset));
  }
  return absl::OkStatus();
}

// Checks a model description for comparison only: it need not make sense.
absl::Status ValidateModelNumbers(const ModelSpec& model) {
  absl::Status status;
  ForEachModelField([&](std::string_view name, auto member) {
    const auto value = static_cast<double>(model.*member);
    if (status.ok() && (!std::isfinite(value) || value < 0)) {
      status = Invalid(fmt::format("the model has {} {}", name, value));
    }
  });
  ForEachFamilyField(model, [&](std::string_view path, const auto& field) {
    if constexpr (!std::is_enum_v<std::remove_cvref_t<decltype(field)>>) {
      const auto value = static_cast<double>(field);
      if (status.ok() && (!std::isfinite(value) || value < 0)) {
        status = Invalid(fmt::format("the model has {} {}", path.substr(1), value));
      }
    }
  });
  return status;
}

// Checks the ranges of a tensor: files may hold copies of a range, but no element may lie in two different ranges.
absl::Status ValidateTensor(std::string_view name, std::vector<const TensorEntry*>& entries) {
  std::ranges::sort(entries, {},
                    [](const TensorEntry* entry) { return std::pair(entry->range.offset, entry->range.elements); });
  for (size_t i = 1; i < entries.size(); ++i) {
    const TensorEntry& before = *entries[i - 1];
    const TensorEntry& entry = *entries[i];
    if (before.range.shape != entry.range.shape) {
      return Invalid(fmt::format("tensor {} has shape [{}] in one file and [{}] in another", name,
                                 fmt::join(before.range.shape, ", "), fmt::join(entry.range.shape, ", ")));
    }
    if (before.range.column_parts != entry.range.column_parts) {
      return Invalid(fmt::format("tensor {} has its columns in {} parts in one file and in {} in another", name,
                                 before.range.column_parts, entry.range.column_parts));
    }
    const bool copies = before.range == entry.range;
    if (copies && before.crc32c != entry.crc32c) {
      return Invalid(fmt::format("two copies of tensor {} differ: their checksums are {:08x} and {:08x}", name,
                                 before.crc32c, entry.crc32c));
    }
    if (!copies && entry.range.offset < before.range.end()) {
      return Invalid(fmt::format("tensor {}: its ranges of {} elements from {} and of {} elements from {} overlap",
                                 name, before.range.elements, before.range.offset, entry.range.elements,
                                 entry.range.offset));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool IsTensorFileName(std::string_view name) {
  return name.size() <= Limits::kMaxNameBytes && !name.starts_with('.') && name.ends_with(".safetensors") &&
         std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
                  c == '-';
         });
}

int64_t CountElements(const std::vector<int64_t>& shape) {
  if (shape.empty() || shape.size() > Limits::kMaxDimensions) {
    return -1;
  }
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 1 || __builtin_mul_overflow(count, extent, &count) || count > Limits::kMaxFileBytes / kElementBytes) {
      return -1;
    }
  }
  return count;
}

absl::Status ValidateFileEntry(const FileEntry& file) {
  if (!IsTensorFileName(file.name)) {
    return Invalid(fmt::format("'{}' is not the plain name of a .safetensors file", ToUtf8(file.name)));
  }
  if (file.tensors.empty() || file.tensors.size() > Limits::kMaxFileTensors) {
    return Invalid(fmt::format("file {} has {} tensors; 1 to {} are allowed", file.name, file.tensors.size(),
                               Limits::kMaxFileTensors));
  }
  if (file.header_bytes < 8 || file.header_bytes - 8 > Limits::kMaxHeaderBytes) {
    return Invalid(fmt::format("file {} has a header of {} bytes; 8 to {} are allowed", file.name, file.header_bytes,
                               Limits::kMaxHeaderBytes + 8));
  }
  std::set<std::string_view> names;
  int64_t bytes = file.header_bytes;
  for (const TensorEntry& tensor : file.tensors) {
    if (const absl::Status status = ValidateRange(tensor.range); !status.ok()) {
      return Invalid(fmt::format("file {}: {}", file.name, std::string(status.message())));
    }
    if (!names.insert(tensor.range.name).second) {
      return Invalid(fmt::format("file {} has tensor {} twice", file.name, tensor.range.name));
    }
    bytes += kElementBytes *
             tensor.range.elements;  // at most Limits::kMaxFileBytes, of at most Limits::kMaxFileBytes before
    if (bytes > Limits::kMaxFileBytes) {
      return Invalid(fmt::format("file {} has more than {} bytes", file.name, Limits::kMaxFileBytes));
    }
  }
  if (bytes != file.bytes) {
    return Invalid(
        fmt::format("file {} has {} bytes, but its header and tensors make {}", file.name, file.bytes, bytes));
  }
  return absl::OkStatus();
}

absl::Status ValidateCheckpointManifest(const CheckpointManifest& manifest) {
  if (manifest.init_from.size() > Limits::kMaxPathBytes || !IsUtf8(manifest.init_from)) {
    return Invalid(fmt::format("init_from has {} bytes or is not UTF-8; at most {} bytes are allowed",
                               manifest.init_from.size(), Limits::kMaxPathBytes));
  }
  if (!IsName(manifest.job)) {
    return Invalid(fmt::format("the job's name has {} bytes or is not UTF-8; 1 to {} bytes are allowed",
                               manifest.job.size(), Limits::kMaxNameBytes));
  }
  if (manifest.next_iteration < 0 || manifest.next_iteration > Limits::kMaxIteration) {
    return Invalid(
        fmt::format("next_iteration is {}; 0 to {} are allowed", manifest.next_iteration, Limits::kMaxIteration));
  }
  if (manifest.incarnation < 0 || manifest.epoch < 0 || manifest.tokens_per_iteration < 0) {
    return Invalid(fmt::format("incarnation {}, epoch {} and tokens_per_iteration {} cannot be negative",
                               manifest.incarnation, manifest.epoch, manifest.tokens_per_iteration));
  }
  GP_RETURN_IF_ERROR(ValidateModelNumbers(manifest.model));
  if (manifest.plan.size() > Limits::kMaxPlanBytes || !IsUtf8(manifest.plan)) {
    return Invalid(fmt::format("the plan has {} bytes or is not UTF-8; at most {} bytes are allowed",
                               manifest.plan.size(), Limits::kMaxPlanBytes));
  }
  if (manifest.files.empty() || manifest.files.size() > Limits::kMaxFiles) {
    return Invalid(fmt::format("there are {} files; 1 to {} are allowed", manifest.files.size(), Limits::kMaxFiles));
  }
  std::set<std::string_view> names;
  std::map<std::string_view, std::vector<const TensorEntry*>> tensors;
  for (const FileEntry& file : manifest.files) {
    GP_RETURN_IF_ERROR(ValidateFileEntry(file));
    if (!names.insert(file.name).second) {
      return Invalid(fmt::format("file {} is named twice", file.name));
    }
    for (const TensorEntry& tensor : file.tensors) {
      tensors[tensor.range.name].push_back(&tensor);
    }
  }
  for (auto& [name, entries] : tensors) {
    GP_RETURN_IF_ERROR(ValidateTensor(name, entries));
  }
  return absl::OkStatus();
}

}  // namespace geopipe
