// Drives the agent's core by hand and shows its effects as short strings, so that tests read as tables.
#pragma once

#include <string>
#include <vector>

#include "agent/agent.h"

namespace geopipe::agent {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kS = 1000 * kMs;

// Two devices of 1 GiB at east/east-0, a shaped link to west, attach timeout 10 s, drain timeout 1 s.
AgentConfig TestConfig();
AgentOptions TestOptions();

v1::WorkerId TestWorker(int32_t device, uint64_t incarnation = 7, const std::string& job = "tiny");

CoordinatorMessage Welcome(ConnectionId connection, int64_t heartbeat_ns = 500 * kMs);
CoordinatorMessage Start(ConnectionId connection, std::vector<int32_t> devices, uint64_t incarnation = 7,
                         const std::string& job = "tiny");
CoordinatorMessage Stop(ConnectionId connection, int64_t grace_ns, const std::string& job = "tiny");
CoordinatorMessage Command(ConnectionId connection, const v1::WorkerId& worker, v1::WorkerCommand command);

WorkerMessage HelloFrom(SessionId session, const v1::WorkerId& worker);
WorkerMessage IterationFrom(SessionId session, const v1::WorkerId& worker, int64_t iteration);
WorkerMessage HeartbeatFrom(SessionId session, const v1::WorkerId& worker, int64_t iteration);

// "dial 1 [0#7]" (living workers), "hangup 1", "send 1 heartbeat", "send 1 0#7 iteration 3", "send 1 0#7 exit 0/9:
// words" (code/signal), "start 0#7", "signal 0#7 9", "accept 5", "command 5 prepare", "close 5 UNAUTHENTICATED",
// "announce", "exit", "exit ALREADY_EXISTS", "log info".
std::string Describe(const Effect& effect);
// Without the log lines.
std::vector<std::string> Describe(const Effects& effects);

}  // namespace geopipe::agent
