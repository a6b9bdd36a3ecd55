#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "coordinator/cli/render/timeline.h"

namespace geopipe {
namespace {

// Nanoseconds as microseconds; times before the origin are negative.
std::string Microseconds(int64_t ns) {
  const int64_t size = ns < 0 ? -ns : ns;
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", size / 1000, size % 1000);
}

// Names come from configuration files.
std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      escaped += '\\';
    }
    escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return escaped;
}

class TraceWriter {
 public:
  explicit TraceWriter(const PipelineShape& shape) : shape_(shape) {}

  void Add(const TracePart& part) {
    const int devices_pid = next_pid_++;
    const int links_pid = next_pid_++;
    Name("process_name", devices_pid, 0, fmt::format("{}: devices", part.name));
    Sort(devices_pid);
    for (size_t device = 0; device < part.timeline->size(); ++device) {
      Name("thread_name", devices_pid, static_cast<int64_t>(device),
           device < part.device_names.size() ? part.device_names[device] : fmt::format("device {}", device));
      for (const ActionTiming& timing : (*part.timeline)[device]) {
        AddAction(devices_pid, device, timing);
      }
    }
    if (!part.messages->empty()) {
      Name("process_name", links_pid, 0, fmt::format("{}: links", part.name));
      Sort(links_pid);
    }
    const Takers takers = TakersOf(*part.timeline);
    for (const MessageTiming& message : *part.messages) {
      AddMessage(devices_pid, links_pid, message, takers);
    }
  }

  std::string Finish() && {
    json_ += "]}\n";
    return std::move(json_);
  }

 private:
  // Beginnings of actions by stage, direction and micro-batch.
  using Takers = std::map<std::tuple<int32_t, bool, int32_t>, int64_t>;

  static Takers TakersOf(const std::vector<std::vector<ActionTiming>>& timeline) {
    Takers takers;
    for (const auto& device : timeline) {
      for (const auto& [action, start_ns, end_ns] : device) {
        if (action.kind != ActionKind::kWeightGradient) {
          takers[{action.stage, action.kind == ActionKind::kForward, action.micro_batch}] = start_ns;
        }
      }
    }
    return takers;
  }

  template <class... Args>
  void Event(fmt::format_string<Args...> format, Args&&... args) {
    json_ += json_.ends_with('[') ? "" : ",\n";
    fmt::format_to(std::back_inserter(json_), format, std::forward<Args>(args)...);
  }

  void Name(std::string_view what, int pid, int64_t tid, std::string_view name) {
    Event(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})", what, pid, tid, Escaped(name));
  }

  // Sorts processes in the order in which they were added.
  void Sort(int pid) {
    Event(R"({{"name":"process_sort_index","ph":"M","pid":{0},"tid":0,"args":{{"sort_index":{0}}}}})", pid);
  }

  void AddAction(int pid, size_t device, const ActionTiming& timing) {
    const auto& [action, start_ns, end_ns] = timing;
    Event(R"({{"name":"{}","cat":"{}","ph":"X","pid":{},"tid":{},"ts":{},"dur":{},)"
          R"("args":{{"stage":{},"micro_batch":{}}}}})",
          ToString(action), ActionKindName(action.kind), pid, device, Microseconds(start_ns),
          Microseconds(end_ns - start_ns), action.stage, action.micro_batch);
  }

  // A slice on the links' lane, and an arrow from the action that made the message to the one that takes it.
  void AddMessage(int devices_pid, int links_pid, const MessageTiming& message, const Takers& takers) {
    const auto& [send, ready_ns, enter_ns, arrive_ns] = message;
    const bool upwards = send.kind == ActionKind::kSendForward;
    const int32_t to = send.stage + (upwards ? 1 : -1);
    const int64_t id = next_id_++;
    Event(R"({{"name":"{0}","cat":"message","ph":"b","id":{1},"pid":{2},"tid":0,"ts":{3},)"
          R"("args":{{"from_device":{4},"to_device":{5},"ready_us":{6}}}}},)"
          "\n"
          R"({{"name":"{0}","cat":"message","ph":"e","id":{1},"pid":{2},"tid":0,"ts":{7}}})",
          ToString(send), id, links_pid, Microseconds(enter_ns), shape_.placement[send.stage], shape_.placement[to],
          Microseconds(ready_ns), Microseconds(arrive_ns));
    const auto taker = takers.find({to, upwards, send.micro_batch});
    if (taker == takers.end()) {
      return;
    }
    // An arrow hangs on the slice that covers its time: the producing action's last microsecond.
    constexpr int64_t kInsideNs = 1000;
    Event(R"({{"name":"{0}","cat":"flow","ph":"s","id":{1},"pid":{2},"tid":{3},"ts":{4}}},)"
          "\n"
          R"({{"name":"{0}","cat":"flow","ph":"f","bp":"e","id":{1},"pid":{2},"tid":{5},"ts":{6}}})",
          ToString(send), id, devices_pid, shape_.placement[send.stage], Microseconds(ready_ns - kInsideNs),
          shape_.placement[to], Microseconds(taker->second));
  }

  const PipelineShape& shape_;
  std::string json_ = R"({"displayTimeUnit":"ms","traceEvents":[)";
  int next_pid_ = 0;
  int64_t next_id_ = 0;
};

}  // namespace

std::string ToChromeTrace(const SimulationResult& result, const PipelineCosts& costs, const TimelineLabels& labels) {
  return ToChromeTrace({{.name = "simulated",
                         .timeline = &result.timeline,
                         .messages = &result.messages,
                         .device_names = DeviceNames(labels, costs.shape.devices)}},
                       costs.shape);
}

std::string ToChromeTrace(const std::vector<TracePart>& parts, const PipelineShape& shape) {
  TraceWriter writer(shape);
  for (const TracePart& part : parts) {
    writer.Add(part);
  }
  return std::move(writer).Finish();
}

}  // namespace geopipe
