#include "runtime/base/grpc/channel.h"

namespace geopipe {
namespace {

constexpr int kRedialMs = 200;  // less than anyone waits between two tries

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, int64_t keepalive_ns) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A proxy named in the environment is meant for the web.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  if (keepalive_ns > 0) {
    const int milliseconds = static_cast<int>(keepalive_ns / 1'000'000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, milliseconds);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, milliseconds);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kRedialMs);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kRedialMs);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kRedialMs);
  }
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

void ListenOn(const std::string& address, grpc::ServerBuilder& builder, int* port) {
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), port);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);  // clients may ask whether it is there
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
}

}  // namespace geopipe
