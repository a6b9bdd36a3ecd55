// Makes every gRPC channel and server of this program, so that limits and credentials are set in one place.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace geopipe {

// The largest message: a PrepareCommand carries the schedule of all devices, a job's detail a whole plan.
inline constexpr int kMaxMessageBytes = 256 << 20;

// Makes a channel that shares nothing with others, because its user decides when to dial again, not gRPC's own backoff.
// Does not connect yet.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);

// Makes the server listen on "127.0.0.1:0" or "unix:/run/agent.sock". `port` (unless null) is set when the server is
// started: the port it got, or 0.
void ListenOn(const std::string& address, grpc::ServerBuilder& builder, int* port = nullptr);

}  // namespace geopipe
