// Checks that all conversions share: bounds on the contents of a message, and errors that begin with the field's path
// ("plan.stages[3].site is ..."), so that a parent only has to put its own field in front. Private to proto/wire.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <google/protobuf/repeated_field.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"

namespace geopipe::wire {

inline constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr size_t kMaxPathBytes = 4096;
inline constexpr size_t kMaxTextBytes = size_t{64} * 1024;     // causes, reasons, last words
inline constexpr size_t kMaxAddressBytes = size_t{64} * 1024;  // transport addresses
inline constexpr size_t kMaxCsvBytes = size_t{1} << 28;        // a schedule's text
inline constexpr int64_t kMaxSites = 1024;
inline constexpr int64_t kMaxDevicesPerNode = 1024;
inline constexpr int64_t kMaxStages = 65'536;
inline constexpr int64_t kMaxRanks = 65'536;
inline constexpr int64_t kMaxActionsPerReport = int64_t{1} << 20;
inline constexpr int64_t kMaxEntries = int64_t{1} << 20;  // rows of a report or profile
// Hundreds can be added.
inline constexpr int64_t kMaxDurationNs = int64_t{365} * 24 * 3600 * 1'000'000'000;
inline constexpr int64_t kMaxLatencyNs = 60'000'000'000;  // of a link, one way
inline constexpr int64_t kMaxBytes = int64_t{1} << 60;

// Error "<field> is <value>; it must be <rule>".
template <class T>
absl::Status FieldError(std::string_view field, const T& value, std::string_view rule) {
  return absl::InvalidArgumentError(fmt::format("{} is {}; it must be {}", field, value, rule));
}

inline absl::Status CheckRange(std::string_view field, int64_t value, int64_t least, int64_t greatest) {
  return value >= least && value <= greatest ? absl::OkStatus()
                                             : FieldError(field, value, fmt::format("from {} to {}", least, greatest));
}

inline absl::Status CheckDuration(std::string_view field, int64_t value_ns) {
  return CheckRange(field, value_ns, 0, kMaxDurationNs);
}

inline absl::Status CheckFinite(std::string_view field, double value, double least) {
  return std::isfinite(value) && value >= least
             ? absl::OkStatus()
             : FieldError(field, value, fmt::format("finite and at least {}", least));
}

inline absl::Status CheckCount(std::string_view field, int64_t count, int64_t greatest) {
  return count <= greatest ? absl::OkStatus()
                           : absl::InvalidArgumentError(
                                 fmt::format("{} has {} entries; at most {} are taken", field, count, greatest));
}

inline absl::Status CheckText(std::string_view field, std::string_view text, size_t most_bytes) {
  return text.size() <= most_bytes ? absl::OkStatus()
                                   : absl::InvalidArgumentError(fmt::format("{} has {} bytes; at most {} are taken",
                                                                            field, text.size(), most_bytes));
}

// A name that people see: not empty, and no control characters.
inline absl::Status CheckName(std::string_view field, std::string_view name) {
  GP_RETURN_IF_ERROR(CheckText(field, name, kMaxNameBytes));
  if (name.empty()) {
    return absl::InvalidArgumentError(fmt::format("{} is empty; give a name", field));
  }
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      return absl::InvalidArgumentError(fmt::format("{} holds a control character; names are printable", field));
    }
  }
  return absl::OkStatus();
}

// Checks the name of a site or a node.
inline absl::Status CheckSiteName(std::string_view field, std::string_view name) {
  GP_RETURN_IF_ERROR(CheckName(field, name));
  return IsSiteName(name) ? absl::OkStatus() : FieldError(field, name, kSiteNameRule);
}

inline absl::Status CheckJobName(std::string_view field, std::string_view name) {
  return IsJobName(name) ? absl::OkStatus() : FieldError(field, name.substr(0, kMaxNameBytes), kJobNameRule);
}

// Puts the parent's field in front of an error.
inline absl::Status Under(std::string_view field, const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), fmt::format("{}.{}", field, std::string(status.message())));
}

template <class T>
absl::StatusOr<T> Under(std::string_view field, absl::StatusOr<T> value) {
  if (value.ok()) {
    return value;
  }
  return Under(field, value.status());
}

// Checks that every value is within bounds; an error names "field[i]".
template <class T>
absl::Status CheckEach(std::string_view field, const google::protobuf::RepeatedField<T>& values, int64_t greatest_count,
                       int64_t least, int64_t greatest) {
  GP_RETURN_IF_ERROR(CheckCount(field, values.size(), greatest_count));
  for (int i = 0; i < values.size(); ++i) {
    if (values[i] < least || values[i] > greatest) {
      return CheckRange(fmt::format("{}[{}]", field, i), values[i], least, greatest);
    }
  }
  return absl::OkStatus();
}

}  // namespace geopipe::wire
