// Numbers with units: read, written exactly for files and flags, and rounded for people. The parsers read all that the
// formatters print. A bare number where a unit is needed is an error that shows an example; so are negative numbers,
// NaN, infinity and values that do not fit. Blanks between number and unit are allowed.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace geopipe {

// Parses ns, us (also µs), ms, s, min, h and sums of them ("2 min 5 s") to whole nanoseconds, each half-up: "20ms" is
// 20'000'000. "0" needs no unit. Up to 9e9 seconds.
absl::StatusOr<int64_t> ParseDuration(std::string_view text);

// Parses bps, kbps, Mbps, Gbps, Tbps (decimal bits) and B/s, kB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, GiB/s, TiB/s to
// bytes per second: "400Gbps" is 5e10. The value must be positive.
absl::StatusOr<double> ParseBandwidth(std::string_view text);

// Parses B, kB, MB, GB, TB (decimal) and KiB, MiB, GiB, TiB, PiB to whole bytes: "64GiB". "0" needs no unit. Up to
// 2^60.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);

// Parses "15%" to 0.15.
absl::StatusOr<double> ParseRatio(std::string_view text);

// Parses a plain finite number: "3.0e-4".
absl::StatusOr<double> ParseNumber(std::string_view text);
// Parses a plain whole number: "1048576", also "1e6" when it is whole.
absl::StatusOr<int64_t> ParseInteger(std::string_view text);

// Writes a value exactly, in the largest unit that makes a short number of at least one: "20ms", "1.5s", "400Gbps",
// "64GiB", "15%". The parsers read back the same value (durations and sizes: up to 2^53).
std::string FormatDuration(int64_t ns);
std::string FormatBandwidth(double bytes_per_s);
std::string FormatBytes(int64_t bytes);
std::string FormatRatio(double ratio);

// "1 site", "2 sites".
std::string Counted(int64_t count, std::string_view noun);

// Rounds a value to digits that line up in columns and can be compared: "812 ns", "3.21 µs", "20.0 ms", "6.510 s",
// "85.80 s", "3.4683 h"; "512 B", "1.50 KiB", "62.1 GiB"; "1.00 Gbps"; "11.5 %".
std::string HumanDuration(int64_t ns);
// An age: "12 s", "2 min 05 s", "3 h 12 min".
std::string HumanAge(int64_t ns);
std::string HumanBytes(int64_t bytes);
std::string HumanBandwidth(double bytes_per_s);
std::string HumanPercent(double ratio);

// The same without zeros at the end, for labels, durations to four digits: "6.51 s", "20 ms"; "400 Gbps".
std::string ShortDuration(int64_t ns);
std::string ShortBandwidth(double bytes_per_s);

}  // namespace geopipe
