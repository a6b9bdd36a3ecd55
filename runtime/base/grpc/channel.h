// Makes every gRPC channel and server of this program, so that limits and credentials are set in one place.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

namespace geopipe {

// The largest message: a PrepareCommand carries the schedule of all devices, a job's detail a whole plan.
inline constexpr int kMaxMessageBytes = 256 << 20;

// A channel that shares nothing with others, because when to dial again is for its user to decide and not for gRPC's
// own backoff. Does not connect yet. `keepalive_ns`: while a call is open the server is asked so often whether it is
// there, and the call ends as Unavailable when it does not answer within as long, and each try dials anew; 0: neither.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, int64_t keepalive_ns = 0);

// Makes the server listen on "127.0.0.1:0" or "unix:/run/agent.sock". `port` (unless null) is set when the server is
// started: the port it got, or 0.
void ListenOn(const std::string& address, grpc::ServerBuilder& builder, int* port = nullptr);

}  // namespace geopipe
