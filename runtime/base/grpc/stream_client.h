// The client's end of a stream: one thread reads, one writes from an outbox.
#pragma once

#include <absl/status/status.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <thread>
#include <utility>

#include "runtime/base/grpc/grpc_status.h"
#include "runtime/base/grpc/outbox.h"

namespace geopipe {

template <class In>
struct StreamClientHandlers {
  // A message, on the thread that reads; while it waits, nothing is read. Not OK: the stream is cancelled.
  std::function<absl::Status(In)> on_message;
  // A message of the outbox has been written, on the thread that writes. False: the stream is cancelled. May be empty.
  std::function<bool()> on_written;
};

// Sends `first`, then the messages of the outbox, and reads, until the stream ends. Returns the status with which
// `on_message` refused a message, or else the server's. context.TryCancel() ends it early.
template <class Out, class In>
absl::Status RunStream(grpc::ClientContext& context, grpc::ClientReaderWriter<Out, In>& stream, const Out& first,
                       Outbox<Out>& outbox, const StreamClientHandlers<In>& handlers) {
  outbox.Resume();
  std::thread writer([&] {
    if (!stream.Write(first)) {
      return;  // the reader sees the end of the stream too, and the server's status
    }
    while (const Out* message = outbox.Front()) {
      if (!stream.Write(*message)) {
        return;
      }
      outbox.Pop();
      if (handlers.on_written && !handlers.on_written()) {
        context.TryCancel();
        return;
      }
    }
    if (!outbox.interrupted()) {
      stream.WritesDone();
    }
  });
  absl::Status refused;
  In message;
  while (refused.ok() && stream.Read(&message)) {
    refused = handlers.on_message(std::move(message));
    message.Clear();
  }
  if (!refused.ok()) {
    context.TryCancel();
  }
  outbox.Interrupt();  // without a cancel, which would hide the server's own status
  writer.join();
  const grpc::Status finished = stream.Finish();
  return refused.ok() ? FromGrpc(finished) : refused;
}

}  // namespace geopipe
