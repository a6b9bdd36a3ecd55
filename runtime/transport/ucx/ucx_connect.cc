// Connections of the UCX carrier, from dialing to closing; ucx_path.cc says which there should be. Everything runs on
// the progress thread.
#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "runtime/base/backoff.h"
#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"
#include "runtime/transport/ucx/ucx_frame.h"

namespace geopipe {
namespace {

constexpr size_t kMaxWaitingRequests = 64;
constexpr size_t kMaxUnprovenConnections = 64;
constexpr int64_t kCloseLimitNs = 500'000'000;

std::string_view IpOf(std::string_view address) { return address.substr(0, address.rfind(':')); }

// The dialer's address; empty if UCX does not know it.
std::string IpOf(ucp_conn_request_h request) {
  ucp_conn_request_attr_t attributes{};
  attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  sockaddr_in dialer{};
  std::array<char, INET_ADDRSTRLEN> text{};
  if (ucp_conn_request_query(request, &attributes) != UCS_OK || attributes.client_address.ss_family != AF_INET) {
    return "";
  }
  std::memcpy(&dialer, &attributes.client_address, sizeof dialer);
  inet_ntop(AF_INET, &dialer.sin_addr, text.data(), text.size());
  return text.data();
}

// Keeps the context and the worker for the life of the process. UCX asserts that no request is left when a worker goes
// (openucx/ucx, issue 9323), and those of a peer that cannot be reached never end. Without progress they do nothing.
void KeepForGood(UcpContext context, UcpWorker worker) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::pair<UcpContext, UcpWorker>>();
  const std::lock_guard lock(mutex);
  kept->emplace_back(std::move(context), std::move(worker));
}

}  // namespace

void UcxFrame::OnConnectionRequest(ucp_conn_request_h request, void* self) {
  auto* frame = static_cast<UcxFrame*>(self);
  if (frame->requests_.size() >= kMaxWaitingRequests) {
    ++frame->refused_;
    ucp_listener_reject(frame->listener_, request);
    return;
  }
  frame->requests_.push_back(request);
}

void UcxFrame::OnEndpointError(void* self, ucp_ep_h endpoint, ucs_status_t status) {
  // The endpoint must not be closed in here.
  static_cast<UcxFrame*>(self)->broken_.emplace_back(endpoint, status);
}

absl::Status UcxFrame::CreateEndpoint(ucp_ep_params_t& params, Connection connection) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &OnEndpointError;
  params.err_handler.arg = this;
  if (const ucs_status_t status = ucp_ep_create(worker_.get(), &params, &connection.endpoint); status != UCS_OK) {
    return UcxError("creating an endpoint", status);
  }
  const bool dialed = connection.state == Connection::State::kAwaitingChallenge;
  const uint64_t id = dialed ? connection.terms.dialer_id : connection.terms.listener_id;
  connections_.emplace(id, std::move(connection));
  return absl::OkStatus();
}

void UcxFrame::Dial(PeerId rank, Peer& peer, int64_t now_ns) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const size_t colon = peer.address.rfind(':');
  GP_CHECK(inet_pton(AF_INET, peer.address.substr(0, colon).c_str(), &address.sin_addr) == 1);
  address.sin_port = htons(static_cast<uint16_t>(std::strtoul(peer.address.c_str() + colon + 1, nullptr, 10)));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&address);
  params.sockaddr.addrlen = sizeof address;

  Connection connection;
  connection.state = Connection::State::kAwaitingChallenge;
  connection.peer = rank;
  connection.begun_ns = now_ns;
  connection.same_host = IpOf(peer.address) == IpOf(address_);
  connection.deadline_ns = now_ns + options_.handshake_limit_ns;
  const bool joins = !peer.connections.empty() && !Silent(peer, now_ns);
  connection.terms = {.job_hash = session_.job_hash,
                      .epoch = session_.epoch,
                      .dialer_rank = session_.rank,
                      .listener_rank = rank,
                      .path = joins ? peer.path : ++last_path_,
                      .dialer_id = RandomId()};
  const uint64_t id = connection.terms.dialer_id;
  if (const absl::Status status = CreateEndpoint(params, std::move(connection)); !status.ok()) {
    peer.redial_at_ns = now_ns + LengthenedNs(options_.max_redial_ns, jitter_);
    NoteTrouble(rank, status);
    return;
  }
  LogDebug("rank {} dials rank {} (path {})", session_.rank, rank, connections_.at(id).terms.path);
  peer.dialing.push_back(id);
  peer.policy.OnAttempt();
  peer.redial_at_ns = now_ns + LengthenedNs(peer.policy.StaggerNs(options_.handshake_limit_ns), jitter_);
  SendHandshake(connections_.at(id), HandshakeKind::kHello, {});
}

// Drops accepted connections that prove nothing when new ones come, the oldest first: a peer gets its round trips, and
// strangers who only hold connections open keep no peer out.
void UcxFrame::MakeRoomForStranger() {
  std::vector<std::pair<int64_t, uint64_t>> unproven;  // deadline and number
  for (const auto& [id, connection] : connections_) {
    if (connection.state == Connection::State::kAwaitingHello ||
        connection.state == Connection::State::kAwaitingProof) {
      unproven.emplace_back(connection.deadline_ns, id);
    }
  }
  if (unproven.size() >= kMaxUnprovenConnections) {
    ++refused_;
    Drop(std::min_element(unproven.begin(), unproven.end())->second,
         absl::ResourceExhaustedError("it proved nothing, and others want to connect"));
  }
}

void UcxFrame::Accept(ucp_conn_request_h request, int64_t now_ns) {
  const std::string dialer = IpOf(request);
  const std::optional<Ipv4Network>& private_network = options_.limits.private_network;
  const bool stranger = private_network.has_value() && !private_network->Contains(dialer) && dialer != IpOf(address_);
  if (stranger) {
    ++refused_;
    ucp_listener_reject(listener_, request);
    return;
  }
  MakeRoomForStranger();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  Connection connection;
  connection.same_host = dialer == IpOf(address_);
  connection.deadline_ns = now_ns + options_.handshake_limit_ns;
  connection.terms.listener_id = RandomId();
  if (const absl::Status status = CreateEndpoint(params, std::move(connection)); !status.ok()) {
    LogInfo("rank {} could not accept a connection: {}", session_.rank, std::string(status.message()));
  }
}

void UcxFrame::SendHandshake(const Connection& connection, HandshakeKind kind, const Proof& proof) {
  HandshakeMessage message = connection.terms;
  message.kind = kind;
  message.proof = proof;
  auto departure = std::make_unique<Departure>();
  departure->frame = this;
  departure->header = EncodeHandshake(message);
  // Only hello has to say where it came from; from then on both ends know each other's number.
  Depart(connection.endpoint, kHandshakeMessageId, kind == HandshakeKind::kHello ? UCP_AM_SEND_FLAG_REPLY : 0,
         std::move(departure), {});
}

void UcxFrame::OnHello(ucp_ep_h reply, const HandshakeMessage& message) {
  const auto found = std::find_if(connections_.begin(), connections_.end(), [&](const auto& entry) {
    return entry.second.endpoint == reply && entry.second.state == Connection::State::kAwaitingHello;
  });
  if (reply == nullptr || found == connections_.end()) {
    ++refused_;
    return;
  }
  auto& [id, connection] = *found;
  connection.terms = message;
  connection.terms.listener_id = id;
  connection.remote_id = message.dialer_id;
  connection.peer = message.dialer_rank;
  if (message.job_hash != session_.job_hash || message.epoch != session_.epoch) {
    Refuse(id, fmt::format("it is of job {:016x}, epoch {}; this is job {:016x}, epoch {}", message.job_hash,
                           message.epoch, session_.job_hash, session_.epoch));
    return;
  }
  if (message.listener_rank != session_.rank || message.dialer_rank >= session_.rank ||
      !peers_.contains(message.dialer_rank)) {
    Refuse(id, fmt::format("rank {} is not a peer that dials rank {}", message.dialer_rank, session_.rank));
    return;
  }
  connection.state = Connection::State::kAwaitingProof;
  SendHandshake(connection, HandshakeKind::kChallenge, MakeProof(secret_, HandshakeSide::kListener, connection.terms));
}

void UcxFrame::OnChallenge(const HandshakeMessage& message) {
  const auto found = connections_.find(message.dialer_id);
  if (found == connections_.end() || found->second.state != Connection::State::kAwaitingChallenge) {
    ++refused_;
    return;
  }
  Connection& connection = found->second;
  const std::vector<uint64_t>& dialing = peers_.at(connection.peer).dialing;
  if (std::find(dialing.begin(), dialing.end(), found->first) == dialing.end()) {
    return;  // another came up first, and this one is about to be dropped
  }
  connection.terms.listener_id = message.listener_id;
  connection.remote_id = message.listener_id;
  connection.state = Connection::State::kProving;
  // The proof goes out in any case, so that a listener with another secret counts its refusal too.
  SendHandshake(connection, HandshakeKind::kProof, MakeProof(secret_, HandshakeSide::kDialer, connection.terms));
  if (!SameProof(message.proof, MakeProof(secret_, HandshakeSide::kListener, connection.terms))) {
    Refuse(found->first, "it does not know the epoch's secret");
    return;
  }
  // The listener has proved that it shares the secret, and so it will take the proof: frames may follow it at once.
  // That saves a round trip, and the attempts beside this one end before they prove anything.
  ComeUp(found->first);
}

void UcxFrame::OnProof(const HandshakeMessage& message) {
  const auto found = connections_.find(message.listener_id);
  if (found == connections_.end() || found->second.state != Connection::State::kAwaitingProof) {
    ++refused_;
    return;
  }
  if (!SameProof(message.proof, MakeProof(secret_, HandshakeSide::kDialer, found->second.terms))) {
    Refuse(found->first, "it does not know the epoch's secret");
    return;
  }
  if (found->second.terms.path < peers_.at(found->second.peer).path) {
    to_drop_.emplace_back(found->first, absl::UnavailableError("there is a newer path"));
    return;
  }
  SendHandshake(found->second, HandshakeKind::kWelcome, {});
  ComeUp(found->first);
}

void UcxFrame::OnVerdict(const HandshakeMessage& message) {
  const auto found = connections_.find(message.dialer_id);
  if (found == connections_.end()) {
    return;  // refused by us already
  }
  found->second.watch.Heard(Clock::Real().NowNs());
  if (message.kind == HandshakeKind::kRefusal) {
    to_drop_.emplace_back(found->first,
                          absl::PermissionDeniedError("the peer refused it: another job, epoch or secret"));
  }
}

void UcxFrame::OnGoodbye(const HandshakeMessage& message) {
  for (const uint64_t id : {message.dialer_id, message.listener_id}) {
    const auto found = connections_.find(id);
    if (found != connections_.end() && found->second.state == Connection::State::kUp) {
      peers_.at(found->second.peer).left = true;
    }
  }
}

void UcxFrame::OnPing(const HandshakeMessage& message) {
  const auto found = connections_.find(message.listener_id);
  if (found != connections_.end() && found->second.state == Connection::State::kUp) {
    SendHandshake(found->second, HandshakeKind::kPong, {});
  }
}

void UcxFrame::OnPong(const HandshakeMessage& message) {
  if (const auto found = connections_.find(message.dialer_id); found != connections_.end()) {
    found->second.watch.Heard(Clock::Real().NowNs());
  }
}

void UcxFrame::Refuse(uint64_t id, const std::string& why) {
  ++refused_;
  const Connection& connection = connections_.at(id);
  LogWarning("rank {} refused a connection with rank {}: {}", session_.rank, connection.peer, why);
  if (connection.state != Connection::State::kProving) {
    SendHandshake(connection, HandshakeKind::kRefusal, {});
  }
  to_drop_.emplace_back(id, absl::PermissionDeniedError(why));
}

void UcxFrame::CloseEndpoint(ucp_ep_h endpoint, bool flush) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flush ? 0 : UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) {
    closing_.push_back(request);
  }
}

void UcxFrame::ReapClosed() {
  std::erase_if(closing_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) {
      return false;
    }
    ucp_request_free(request);
    return true;
  });
}

template <class Condition>
void UcxFrame::ProgressUntil(const Condition& over, int64_t limit_ns) {
  limit_ns += Clock::Real().NowNs();
  while (!over() && Clock::Real().NowNs() < limit_ns) {
    if (!Progress()) {
      Sleep(limit_ns);
    }
    ReapClosed();
  }
}

void UcxFrame::CloseConnections() {
  // Frames handed over still leave, the last acknowledgements with them. A peer that does not take them in time is cut
  // off.
  ProgressUntil([this] { return departures_.empty(); }, kCloseLimitNs);
  for (const auto& [id, connection] : connections_) {
    const bool takes = connection.bytes_in_flight == 0;
    if (takes && connection.state == Connection::State::kUp) {
      SendHandshake(connection, HandshakeKind::kGoodbye, {});
    }
    CloseEndpoint(connection.endpoint, takes);
  }
  connections_.clear();
  // Frames of the sink are waited for: their memory may go after the session.
  const auto holds_frame = [](const auto& entry) { return entry.second->done != nullptr; };
  ProgressUntil([&] { return closing_.empty() && std::ranges::none_of(departures_, holds_frame); }, kCloseLimitNs);
}

void UcxFrame::CloseAll() {
  for (const ucp_conn_request_h request : std::exchange(requests_, {})) {
    ucp_listener_reject(listener_, request);
  }
  if (!connections_.empty()) {  // the end of a session closes them, and waits for it
    CloseConnections();
  }
  ucp_listener_destroy(std::exchange(listener_, nullptr));
  if (closing_.empty() && departures_.empty()) {
    worker_.reset();
  } else {
    KeepForGood(std::move(context_), std::move(worker_));
  }
  for (const auto& [raw, departure] : std::exchange(departures_, {})) {
    if (departure->done) {
      departure->done();
    }
  }
}

}  // namespace geopipe
