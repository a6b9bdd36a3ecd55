// Active messages at their receiver. Everything runs on the progress thread.
#include <cstring>

#include "runtime/base/clock.h"
#include "runtime/transport/ucx/ucx_frame.h"

namespace geopipe {

void UcxFrame::Arrive(std::span<const std::byte> header, std::span<const std::byte> payload) {
  uint64_t id = 0;
  if (header.size() >= sizeof id) {
    std::memcpy(&id, header.data(), sizeof id);
  }
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.state != Connection::State::kUp) {
    ++refused_;
    return;
  }
  Connection& connection = found->second;
  const int64_t now_ns = Clock::Real().NowNs();
  connection.watch.Heard(now_ns);
  sink_->OnFrame(connection.peer, {.header = header.subspan(sizeof id), .payload = payload, .ready_ns = now_ns});
}

ucs_status_t UcxFrame::OnFrameMessage(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                      const ucp_am_recv_param_t* param) {
  auto* frame = static_cast<UcxFrame*>(self);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    ++frame->refused_;  // not ours: our payloads are not sent this way
    return UCS_OK;
  }
  frame->Arrive({static_cast<const std::byte*>(header), header_bytes}, {static_cast<const std::byte*>(data), bytes});
  return UCS_OK;  // the bytes are UCX's again
}

ucs_status_t UcxFrame::OnHandshakeMessage(void* self, const void* header, size_t header_bytes, void* /*data*/,
                                          size_t /*bytes*/, const ucp_am_recv_param_t* param) {
  auto* frame = static_cast<UcxFrame*>(self);
  const auto message = DecodeHandshake({static_cast<const std::byte*>(header), header_bytes});
  if (!message.ok()) {
    ++frame->refused_;
    return UCS_OK;
  }
  const bool has_reply = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
  switch (message->kind) {
    case HandshakeKind::kHello:
      frame->OnHello(has_reply ? param->reply_ep : nullptr, *message);
      break;
    case HandshakeKind::kChallenge:
      frame->OnChallenge(*message);
      break;
    case HandshakeKind::kProof:
      frame->OnProof(*message);
      break;
    case HandshakeKind::kWelcome:
    case HandshakeKind::kRefusal:
      frame->OnVerdict(*message);
      break;
    case HandshakeKind::kGoodbye:
      frame->OnGoodbye(*message);
      break;
    case HandshakeKind::kPing:
      frame->OnPing(*message);
      break;
    case HandshakeKind::kPong:
      frame->OnPong(*message);
      break;
  }
  return UCS_OK;
}

}  // namespace geopipe
