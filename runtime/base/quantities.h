// Numbers with units, as files and flags write them. A bare number where a unit is needed is an error that shows an
// example; so are negative numbers, NaN, infinity and what does not fit. Blanks between number and unit are allowed.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace geopipe {

// ns, us, ms, s, min, h, to whole nanoseconds, half-up: "20ms" is 20'000'000. "0" needs no unit. Up to 9e9 seconds.
absl::StatusOr<int64_t> ParseDuration(std::string_view text);

// bps, kbps, Mbps, Gbps, Tbps (decimal bits) and B/s, kB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, GiB/s, TiB/s, to bytes per
// second: "400Gbps" is 5e10. Must be positive.
absl::StatusOr<double> ParseBandwidth(std::string_view text);

// B, kB, MB, GB, TB (decimal) and KiB, MiB, GiB, TiB, to whole bytes: "64GiB". "0" needs no unit. Up to 2^60.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);

// "15%" is 0.15.
absl::StatusOr<double> ParseRatio(std::string_view text);

// Plain numbers; "3.0e-4". Finite.
absl::StatusOr<double> ParseNumber(std::string_view text);
// Plain whole numbers; "1048576", also "1e6" when it is whole.
absl::StatusOr<int64_t> ParseInteger(std::string_view text);

// In the largest unit that makes a short number of at least one: "20ms", "1.5s", "400Gbps", "64GiB", "15%". What they
// print, the parsers read back to the same value (durations and sizes: up to 2^53).
std::string FormatDuration(int64_t ns);
std::string FormatBandwidth(double bytes_per_s);
std::string FormatBytes(int64_t bytes);
std::string FormatRatio(double ratio);

}  // namespace geopipe
