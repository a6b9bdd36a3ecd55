#include "tests/support/gpu_emulator/emulator_settings.h"

#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <set>
#include <string>

#include "optimizer/base/status_macros.h"

namespace geopipe::emulator {
namespace {

enum class Kind : uint8_t { kNumber, kVersion };

struct Key {
  std::string_view name;
  int64_t Settings::*value;
  Kind kind = Kind::kNumber;
  int64_t max = INT64_MAX;
};

constexpr std::array<Key, 12> kKeys = {{
    {"seed", &Settings::seed},
    {"devices", &Settings::devices, Kind::kNumber, 8},
    {"memory_bytes", &Settings::memory_bytes},
    {"driver", &Settings::driver, Kind::kVersion},
    {"runtime", &Settings::runtime, Kind::kVersion},
    {"architecture", &Settings::architecture, Kind::kNumber, 999},
    {"out_of_memory_at", &Settings::out_of_memory_at},
    {"host_out_of_memory_at", &Settings::host_out_of_memory_at},
    {"lost_at", &Settings::lost_at},
    {"stuck_at", &Settings::stuck_at},
    {"off_bus_at", &Settings::off_bus_at},
    {"wrong_product_at", &Settings::wrong_product_at},
}};

absl::Status CannotRead(std::string_view setting, std::string_view needed) {
  return absl::InvalidArgumentError(fmt::format("GEOPIPE_EMULATED_GPU: \"{}\": {}", setting, needed));
}

bool ReadNumber(std::string_view text, int64_t max, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= max;
}

bool ReadVersion(std::string_view text, int64_t& value) {
  const size_t dot = text.find('.');
  int64_t major = 0;
  int64_t minor = 0;
  if (dot == std::string_view::npos || !ReadNumber(text.substr(0, dot), 999, major) ||
      !ReadNumber(text.substr(dot + 1), 99, minor)) {
    return false;
  }
  value = 1000 * major + 10 * minor;
  return true;
}

absl::Status ReadSetting(std::string_view setting, std::string_view key, std::string_view value, Settings& settings) {
  if (key == "clock") {
    settings.is_clock_modelled = value == "modelled";
    return value == "modelled" || value == "real" ? absl::OkStatus()
                                                  : CannotRead(setting, "a clock is real or modelled");
  }
  if (key == "once") {
    settings.once = value;
    return value.starts_with('/') ? absl::OkStatus() : CannotRead(setting, "a file is named by its whole path");
  }
  for (const Key& known : kKeys) {
    if (known.name != key) {
      continue;
    }
    if (known.kind == Kind::kVersion) {
      return ReadVersion(value, settings.*known.value) ? absl::OkStatus()
                                                       : CannotRead(setting, "a version is MAJOR.MINOR");
    }
    return ReadNumber(value, known.max, settings.*known.value)
               ? absl::OkStatus()
               : CannotRead(setting, fmt::format("the value is a number from 0 to {}", known.max));
  }
  std::string names = "clock, once";
  for (const Key& known : kKeys) {
    names += fmt::format(", {}", known.name);
  }
  return CannotRead(setting, fmt::format("there is no such key; the keys are {}", names));
}

}  // namespace

absl::StatusOr<Settings> ParseSettings(std::string_view text) {
  Settings settings;
  std::set<std::string_view> seen;
  if (text.empty()) {
    return settings;
  }
  for (const absl::string_view part : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    const std::string_view setting(part.data(), part.size());
    const size_t equals = setting.find('=');
    if (equals == std::string_view::npos) {
      return CannotRead(setting, "a setting is KEY=VALUE");
    }
    const std::string_view key = setting.substr(0, equals);
    if (!seen.insert(key).second) {
      return CannotRead(setting, "the key stands there twice");
    }
    GP_RETURN_IF_ERROR(ReadSetting(setting, key, setting.substr(equals + 1), settings));
  }
  return settings;
}

}  // namespace geopipe::emulator
