// Processor time that a hypervisor gave to other guests. It explains why measurements on a virtual machine are longer
// now and then for no reason visible inside it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace geopipe {

// Processor time of all processors of this host since it started, in ticks.
struct ProcessorTime {
  int64_t wanted = 0;  // some process was ready to run: all but idle and waiting for devices; includes stolen time
  int64_t stolen = 0;
};

// Parses the text of /proc/stat; nullopt if it does not begin with the sum over the processors (proc(5)).
std::optional<ProcessorTime> ParseProcessorTime(std::string_view stat);
// The current reading; nullopt where the system provides none.
std::optional<ProcessorTime> ReadProcessorTime();

// Share of the wanted time that was stolen between two readings, 0 when none was wanted.
double StolenShare(const ProcessorTime& before, const ProcessorTime& after);

// Share above which stolen time is reported beside a measured time.
inline constexpr double kNotableStolenShare = 0.02;

}  // namespace geopipe
