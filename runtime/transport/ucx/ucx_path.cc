// Decides which connections of the UCX carrier there should be: dialing, dialing beside a silent one, coming up,
// breaking. Everything runs on the progress thread.
#include <algorithm>

#include "runtime/base/backoff.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/transport/ucx/ucx_frame.h"

namespace geopipe {

void UcxFrame::KeepConnections(int64_t now_ns) {
  for (const auto& broken : std::exchange(broken_, {})) {
    const auto found = std::find_if(connections_.begin(), connections_.end(),
                                    [&](const auto& entry) { return entry.second.endpoint == broken.first; });
    if (found != connections_.end()) {
      Drop(found->first, UcxError("the connection broke", broken.second));
    }
  }
  for (const auto& [id, connection] : connections_) {
    if (connection.state != Connection::State::kUp && now_ns >= connection.deadline_ns) {
      to_drop_.emplace_back(id, absl::DeadlineExceededError("no handshake in time"));
    }
  }
  for (const auto& [id, why] : std::exchange(to_drop_, {})) {
    Drop(id, why);
  }
  if (connecting_) {
    while (!requests_.empty()) {
      const ucp_conn_request_h request = requests_.front();
      requests_.pop_front();
      Accept(request, now_ns);
    }
    for (auto& [rank, peer] : peers_) {
      if (rank > session_.rank && !peer.left) {
        KeepPath(rank, peer, now_ns);
      }
    }
  }
  ReapClosed();
}

void UcxFrame::KeepPath(PeerId rank, Peer& peer, int64_t now_ns) {
  for (const uint64_t id : peer.connections) {
    if (Connection& connection = connections_.at(id); connection.watch.TakeAsk(now_ns)) {
      SendHandshake(connection, HandshakeKind::kPing, {});
    }
  }
  if (!peer.connections.empty() && !Silent(peer, now_ns)) {
    // The path has spoken again.
    const std::vector<uint64_t> dialing = peer.dialing;
    for (const uint64_t id : dialing) {
      const Connection& connection = connections_.at(id);
      if (connection.terms.path != peer.path) {
        Drop(id, absl::CancelledError("the path is not silent any more"));
      }
    }
  }
  if (!WantsConnection(rank, peer, now_ns) || now_ns < peer.redial_at_ns) {
    return;
  }
  if (std::cmp_greater_equal(peer.dialing.size(), RedialPolicy::kMaxAttempts)) {
    Drop(peer.dialing.front(), absl::DeadlineExceededError("no handshake in time"));
  }
  Dial(rank, peer, now_ns);
}

bool UcxFrame::Silent(const Peer& peer, int64_t now_ns) const {
  return std::any_of(peer.connections.begin(), peer.connections.end(),
                     [&](uint64_t id) { return connections_.at(id).watch.Silent(now_ns, peer.policy.PatienceNs()); });
}

bool UcxFrame::WantsConnection(PeerId rank, const Peer& peer, int64_t now_ns) const {
  if (rank <= session_.rank || peer.left) {
    return false;
  }
  const auto connections = session_.connections.find(rank);
  const int32_t wanted = connections == session_.connections.end() ? 1 : connections->second;
  return peer.connections.empty() || Silent(peer, now_ns) ||
         std::cmp_less(peer.connections.size() + peer.dialing.size(), wanted);
}

int64_t UcxFrame::NextConnectionTimeNs(int64_t now_ns) const {
  int64_t next_ns = kNeverNs;
  for (const auto& [id, connection] : connections_) {
    if (connection.state != Connection::State::kUp) {
      next_ns = std::min(next_ns, connection.deadline_ns);
    }
  }
  for (const auto& [rank, peer] : peers_) {
    if (connecting_ && WantsConnection(rank, peer, now_ns)) {
      next_ns = std::min(next_ns, peer.redial_at_ns);
    }
    if (rank > session_.rank && !peer.left) {
      for (const uint64_t id : peer.connections) {
        next_ns = std::min(next_ns, connections_.at(id).watch.NextTimeNs(now_ns, peer.policy.PatienceNs()));
      }
    }
  }
  return next_ns;
}

void UcxFrame::ComeUp(uint64_t id) {
  const int64_t now_ns = Clock::Real().NowNs();
  Connection& connection = connections_.at(id);
  const PeerId rank = connection.peer;
  Peer& peer = peers_.at(rank);
  const bool joins = !peer.connections.empty() && peer.path == connection.terms.path;
  const bool replaces = !joins && !peer.connections.empty();
  connection.state = Connection::State::kUp;
  connection.watch.Start(now_ns);
  std::erase(peer.dialing, id);
  if (rank > session_.rank) {
    peer.policy.OnUp(now_ns, now_ns - connection.begun_ns, replaces);
    if (!joins) {
      peer.redial_at_ns = now_ns;  // of connections that join it
    }
  }
  if (joins) {
    peer.connections.push_back(id);
    return;
  }
  // Endpoints are not closed within callbacks.
  const absl::Status why = absl::UnavailableError("a newer path took its place");
  for (const uint64_t other : std::exchange(peer.dialing, {})) {
    to_drop_.emplace_back(other, absl::CancelledError(why.message()));
  }
  const std::vector<uint64_t> old = std::exchange(peer.connections, {});
  for (const uint64_t other : old) {
    to_drop_.emplace_back(other, why);
  }
  if (replaces) {
    LogWarning("rank {}: the connection with rank {} was silent and has been replaced", session_.rank, rank);
    sink_->OnPeerDown(rank, why);
  }
  peer.path = connection.terms.path;
  peer.connections = {id};
  peer.failures = 0;
  peer.left = false;
  LogDebug("rank {}: connection with rank {} is up", session_.rank, rank);
  sink_->OnPeerUp(rank);
}

void UcxFrame::Redial(Peer& peer, int64_t now_ns) {
  ++peer.failures;
  peer.redial_at_ns = now_ns + BackoffNs(options_.min_redial_ns, options_.max_redial_ns, peer.failures, jitter_);
}

void UcxFrame::Drop(uint64_t id, const absl::Status& why) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) {
    return;
  }
  const PeerId rank = found->second.peer;
  const auto peer = peers_.find(rank);
  if (peer != peers_.end() && std::count(peer->second.connections.begin(), peer->second.connections.end(), id) > 0) {
    BreakPath(rank, peer->second, why);
    return;
  }
  // The refusal must still reach the peer.
  CloseEndpoint(found->second.endpoint, why.code() == absl::StatusCode::kPermissionDenied);
  connections_.erase(found);
  if (peer == peers_.end()) {
    return;
  }
  const bool dialed = std::erase(peer->second.dialing, id) > 0;
  if (absl::IsCancelled(why)) {
    return;
  }
  // An attempt that was not answered does not delay the next, which may have begun already.
  if (dialed && (!absl::IsDeadlineExceeded(why) || peer->second.dialing.empty())) {
    Redial(peer->second, Clock::Real().NowNs());
  }
  NoteTrouble(rank, why);
}

void UcxFrame::NoteTrouble(PeerId rank, const absl::Status& why) {
  std::lock_guard lock(mutex_);
  if (absl::Status& last = trouble_[rank]; !absl::IsPermissionDenied(last) || absl::IsPermissionDenied(why)) {
    last = why;
  }
}

void UcxFrame::BreakPath(PeerId rank, Peer& peer, const absl::Status& why) {
  for (const uint64_t id : std::exchange(peer.connections, {})) {
    CloseEndpoint(connections_.at(id).endpoint, false);
    connections_.erase(id);
  }
  for (const uint64_t id : peer.dialing) {
    to_drop_.emplace_back(id, absl::CancelledError("its path broke"));
  }
  Redial(peer, Clock::Real().NowNs());
  {
    std::lock_guard lock(mutex_);
    trouble_[rank] = why;
  }
  Log(peer.left ? LogLevel::kDebug : LogLevel::kWarning, LogContext{}, "rank {}: connection with rank {} lost: {}",
      session_.rank, rank, std::string(why.message()));
  sink_->OnPeerDown(rank, why);
}

}  // namespace geopipe
