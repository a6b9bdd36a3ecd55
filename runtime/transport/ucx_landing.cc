// Rendezvous at its receiver: a frame is announced by its header, the sink says where its payload belongs, and UCX puts
// it there. Everything on the progress thread.
//
// A place that was given is UCX's until its callback, which comes in any case: UCX completes what a broken or closed
// endpoint still owes with an error.
#include "optimizer/base/check.h"
#include "runtime/transport/ucx_frame.h"

namespace geopipe {

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
