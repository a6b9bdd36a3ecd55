// Settings of the emulated GPU; gpu_emulator.h has their grammar.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace geopipe::emulator {

struct Settings {
  int64_t seed = 0;
  int64_t devices = 1;
  int64_t memory_bytes = int64_t{1} << 30;
  int64_t driver = 13000;  // 1000 * major + 10 * minor
  int64_t runtime = 13000;
  int64_t architecture = 90;
  bool is_clock_modelled = false;
  // 0: never.
  int64_t out_of_memory_at = 0;
  int64_t host_out_of_memory_at = 0;
  int64_t lost_at = 0;
  int64_t stuck_at = 0;
  int64_t off_bus_at = 0;
  int64_t wrong_product_at = 0;
  std::string once;  // empty: faults happen in every process
};

// InvalidArgument: names the setting and what it may be.
absl::StatusOr<Settings> ParseSettings(std::string_view text);

}  // namespace geopipe::emulator
