#include "runtime/rehearsal/host/stolen_time.h"

#include <fstream>
#include <sstream>
#include <string>

namespace geopipe {

std::optional<ProcessorTime> ParseProcessorTime(std::string_view stat) {
  // cpu user nice system idle iowait irq softirq steal guest guest_nice; user and nice include the guests' time.
  constexpr int kFields = 8;
  constexpr int kIdle = 3;
  constexpr int kWaitingForDevices = 4;
  constexpr int kStolen = 7;
  std::istringstream line{std::string(stat.substr(0, stat.find('\n')))};
  std::string name;
  line >> name;
  ProcessorTime time;
  for (int field = 0; field < kFields; ++field) {
    int64_t ticks = 0;
    if (!(line >> ticks)) {
      return std::nullopt;
    }
    time.wanted += field == kIdle || field == kWaitingForDevices ? 0 : ticks;
    time.stolen += field == kStolen ? ticks : 0;
  }
  return name == "cpu" ? std::optional(time) : std::nullopt;
}

std::optional<ProcessorTime> ReadProcessorTime() {
  std::ifstream file("/proc/stat");
  std::string line;
  return std::getline(file, line) ? ParseProcessorTime(line) : std::nullopt;
}

double StolenShare(const ProcessorTime& before, const ProcessorTime& after) {
  const int64_t wanted = after.wanted - before.wanted;
  return wanted <= 0 ? 0 : static_cast<double>(after.stolen - before.stolen) / static_cast<double>(wanted);
}

}  // namespace geopipe
