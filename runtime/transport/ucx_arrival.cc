// Frames at their receiver: whole, or by rendezvous, where a header announces the payload, the sink says where it
// belongs, and UCX puts it there. Everything on the progress thread.
//
// A place that was given is UCX's until its callback, with an error if the endpoint broke or was closed, or until UCX's
// worker is destroyed.
#include <cstring>

#include "optimizer/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/transport/ucx_frame.h"

namespace geopipe {

UcxFrame::Connection* UcxFrame::Named(std::span<const std::byte> header) {
  uint64_t id = 0;
  if (header.size() >= sizeof id) {
    std::memcpy(&id, header.data(), sizeof id);
  }
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.state != Connection::State::kUp) {
    ++refused_;
    return nullptr;
  }
  found->second.watch.Heard(Clock::Real().NowNs());
  return &found->second;
}

void UcxFrame::Arrive(std::span<const std::byte> header, std::span<const std::byte> payload) {
  if (const Connection* connection = Named(header); connection != nullptr) {
    sink_->OnFrame(connection->peer, header.subspan(sizeof connection->remote_id), payload);
  }
}

ucs_status_t UcxFrame::OnFrameMessage(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                      const ucp_am_recv_param_t* param) {
  auto* frame = static_cast<UcxFrame*>(self);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    return frame->Announce({static_cast<const std::byte*>(header), header_bytes}, data, bytes);
  }
  frame->Arrive({static_cast<const std::byte*>(header), header_bytes}, {static_cast<const std::byte*>(data), bytes});
  return UCS_OK;  // the bytes are UCX's again
}

ucs_status_t UcxFrame::Announce(std::span<const std::byte> header, void* descriptor, size_t bytes) {
  const Connection* connection = Named(header);
  if (connection == nullptr) {
    return UCS_OK;  // UCX drops it, and tells the sender that it is done
  }
  const std::optional<Landing> landing =
      sink_->OnAnnounced(connection->peer, header.subspan(sizeof connection->remote_id), static_cast<int64_t>(bytes));
  if (!landing.has_value()) {
    return UCS_OK;
  }
  auto approach = std::make_unique<Approach>(Approach{.frame = this, .peer = connection->peer, .landing = landing->id});
  Approach* raw = approach.get();
  approaches_.emplace(raw, std::move(approach));
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = &OnApproached;
  param.user_data = raw;
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker_.get(), descriptor, landing->memory, bytes, &param);
  if (UCS_PTR_IS_PTR(request)) {
    return UCS_INPROGRESS;
  }
  FinishApproach(raw, !UCS_PTR_IS_ERR(request));
  if (UCS_PTR_IS_ERR(request)) {
    // UCX has marked the payload as being received and will tell its sender nothing.
    uint64_t id = 0;
    std::memcpy(&id, header.data(), sizeof id);
    to_drop_.emplace_back(id, UcxError("receiving a payload", UCS_PTR_STATUS(request)));
  }
  return UCS_OK;
}

void UcxFrame::OnApproached(void* request, ucs_status_t status, size_t /*bytes*/, void* user) {
  auto* approach = static_cast<Approach*>(user);
  approach->frame->FinishApproach(approach, status == UCS_OK);
  ucp_request_free(request);
}

void UcxFrame::FinishApproach(Approach* approach, bool whole) {
  const auto node = approaches_.extract(approach);
  GP_CHECK(!node.empty());
  sink_->OnLanded(approach->peer, approach->landing, whole);
}

bool UcxFrame::SameHost(PeerId peer) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && !found->second.connections.empty() &&
         connections_.at(found->second.connections.front()).same_host;
}

}  // namespace geopipe
