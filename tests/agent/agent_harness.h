// Drives the agent's core by hand and shows its effects as short strings, so that tests read as tables.
#pragma once

#include <string>
#include <vector>

#include "agent/agent.h"
#include "tests/support/durations.h"

namespace geopipe::agent {

constexpr int64_t kS = 1000 * kMs;

// Two devices of 1 GiB at east/east-0, a shaped link to west, attach timeout 40 s, drain timeout 1 s; nothing is
// gathered; the agent's incarnation is 42, and an earlier one was welcomed by coordinator 9.
AgentConfig TestConfig();
AgentOptions TestOptions();

v1::WorkerId TestWorker(int32_t device, uint64_t incarnation = 7, const std::string& job = "tiny");

CoordinatorMessage Welcome(ConnectionId connection, int64_t heartbeat_ns = 500 * kMs, uint64_t incarnation = 9,
                           int64_t silent_after_ns = 0);
CoordinatorMessage Numbered(uint64_t sequence, CoordinatorMessage order);
CoordinatorMessage Start(ConnectionId connection, std::vector<int32_t> devices, uint64_t incarnation = 7,
                         const std::string& job = "tiny");
CoordinatorMessage Stop(ConnectionId connection, int64_t grace_ns, const std::string& job = "tiny",
                        const std::vector<int32_t>& devices = {}, uint64_t incarnation = 0);
CoordinatorMessage Command(ConnectionId connection, const v1::WorkerId& worker, v1::WorkerCommand command);

CoordinatorMessage Taken(ConnectionId connection, uint64_t sequence);
// Orders a probe to west; with an empty address the agent waits to be dialled.
CoordinatorMessage Probe(ConnectionId connection, uint64_t probe, const std::string& address, bool shaped = true);
CoordinatorMessage EndOfProbe(ConnectionId connection, uint64_t probe);
ProbeNews OpenedNews(uint64_t probe);
ProbeNews MeasuredNews(uint64_t probe);
ProbeNews FailedNews(uint64_t probe);

WorkerMessage HelloFrom(SessionId session, const v1::WorkerId& worker);
// The hello of a worker that numbers its reports and tells which commands of `agent` it has taken.
WorkerMessage NumberingHelloFrom(SessionId session, const v1::WorkerId& worker, uint64_t agent = 0,
                                 uint64_t commands_taken = 0);
WorkerMessage Numbered(uint64_t sequence, WorkerMessage event, uint64_t commands_taken = 0);
// The keeper's list; pids are 100 + device.
KeeperListed Listed(const std::vector<v1::WorkerId>& running, const std::vector<v1::WorkerExit>& ended = {});
v1::WorkerExit ExitOf(const v1::WorkerId& worker, int signal);
WorkerMessage IterationFrom(SessionId session, const v1::WorkerId& worker, int64_t iteration);
WorkerMessage HeartbeatFrom(SessionId session, const v1::WorkerId& worker, int64_t iteration);

// "dial 1 [0#7]" (living workers), "hangup 1", "send 1 heartbeat", "send 1 0#7 iteration 3", "send 1 0#7 exit 0/9:
// words" (code/signal; several reports of one message: with " + " between), "start 0#7", "start 0#7 of run 5", "signal
// 0#7 9", "accept 5", "command 5 prepare", "beat 5 taken 3", "forget 0#7", "read on 5", "remember 9", "close 5
// UNAUTHENTICATED", "probe 3 pacer /state/pacer-east-west", "stop probe 3", "send 1 probe 3 measured", "announce",
// "exit", "exit ALREADY_EXISTS", "log info".
std::string Describe(const Effect& effect);
// Describes all effects except log lines and "read on".
std::vector<std::string> Describe(const Effects& effects);

}  // namespace geopipe::agent
