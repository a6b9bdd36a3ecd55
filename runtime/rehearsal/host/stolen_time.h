// Processor time that a hypervisor gave to other guests: why what is measured on a virtual machine can take longer than
// it should, now and then, for no reason that shows inside it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace geopipe {

// Of all processors of this host since it started, in ticks.
struct ProcessorTime {
  int64_t wanted = 0;  // somebody was ready to run: all but idle and waiting for devices; with what was stolen
  int64_t stolen = 0;
};

// Of the text of /proc/stat; nullopt if it does not begin with the sum over the processors (proc(5)).
std::optional<ProcessorTime> ParseProcessorTime(std::string_view stat);
// nullopt where the system does not tell.
std::optional<ProcessorTime> ReadProcessorTime();

// Between two readings: the share of the wanted time that was stolen, 0 when none was wanted.
double StolenShare(const ProcessorTime& before, const ProcessorTime& after);

// More than that is worth telling beside a measured time.
inline constexpr double kNotableStolenShare = 0.02;

}  // namespace geopipe
