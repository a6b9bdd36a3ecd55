#include <fmt/format.h>

#include <cstddef>
#include <iterator>

#include "optimizer/simulator/timeline.h"

namespace geopipe {
namespace {

constexpr int kDevicesPid = 0;
constexpr int kLinksPid = 1;

std::string Microseconds(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

std::string NameEvent(std::string_view what, int pid, int64_t tid, std::string_view name) {
  return fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})", what, pid, tid, name);
}

}  // namespace

std::string ToChromeTrace(const SimulationResult& result, const PipelineCosts& costs) {
  std::string json = R"({"displayTimeUnit":"ms","traceEvents":[)";
  const auto out = std::back_inserter(json);
  json += NameEvent("process_name", kDevicesPid, 0, "devices") + ",\n";
  json += NameEvent("process_name", kLinksPid, 0, "links");
  for (size_t device = 0; device < result.timeline.size(); ++device) {
    json +=
        ",\n" + NameEvent("thread_name", kDevicesPid, static_cast<int64_t>(device), fmt::format("device {}", device));
    for (const auto& [action, start_ns, end_ns] : result.timeline[device]) {
      fmt::format_to(out,
                     ",\n"
                     R"({{"name":"{}","cat":"{}","ph":"X","pid":{},"tid":{},"ts":{},"dur":{},)"
                     R"("args":{{"stage":{},"micro_batch":{}}}}})",
                     ToString(action), ActionKindName(action.kind), kDevicesPid, device, Microseconds(start_ns),
                     Microseconds(end_ns - start_ns), action.stage, action.micro_batch);
    }
  }
  for (size_t id = 0; id < result.messages.size(); ++id) {
    const auto& [send, ready_ns, enter_ns, arrive_ns] = result.messages[id];
    const int32_t to = send.stage + (send.kind == ActionKind::kSendForward ? 1 : -1);
    fmt::format_to(out,
                   ",\n"
                   R"({{"name":"{0}","cat":"message","ph":"b","id":{1},"pid":{2},"tid":0,"ts":{3},)"
                   R"("args":{{"from_device":{4},"to_device":{5},"ready_us":{6}}}}},)"
                   "\n"
                   R"({{"name":"{0}","cat":"message","ph":"e","id":{1},"pid":{2},"tid":0,"ts":{7}}})",
                   ToString(send), id, kLinksPid, Microseconds(enter_ns), costs.shape.placement[send.stage],
                   costs.shape.placement[to], Microseconds(ready_ns), Microseconds(arrive_ns));
  }
  json += "]}\n";
  return json;
}

}  // namespace geopipe
