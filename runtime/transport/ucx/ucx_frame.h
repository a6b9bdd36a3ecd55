// Frames between processes over UCX active messages (UCX 1.13; TCP here, RDMA by UCX_TLS and UCX_NET_DEVICES).
//
// A process has one UcxFrame: its listener, UCX worker and progress thread live as long as the process, because a
// listener that is closed while peers dial crashes UCX 1.13. It carries one session, of one rank in one epoch, after
// the other; handshakes and frames of a session that has ended are refused and counted. Between sessions, and before a
// session's Connect, dials wait.
//
// Every worker listens; the one of the lower rank dials, and dials again with backoff when the connection breaks. A
// connection carries frames when both ends have proved that they know the epoch's secret (handshake.h). Each frame
// names the connection by a number its receiver chose; a frame without a valid one is refused and counted.
//
// A path to a peer is one connection, or several that share the frames if one cannot fill the link. It breaks as a
// whole. The dialing end watches it (path_watch.h): when it falls silent, another is dialed beside it, and the first of
// the two to be heard is used.
//
// Frames go as eager active messages, never by rendezvous, whose round trip would add to each: across sites because it
// is long, within one because copying a frame out of the cache while the next one arrives is faster. One progress
// thread makes all calls of UCX: it progresses until there is nothing to do, arms the worker and sleeps in epoll on
// UCX's event descriptor, a timer and a wake-up descriptor. It never spins.
//
// Ports: the listening port and the one that UCX 1.13 opens for data, per worker and device, are confined to the given
// range; the dialing ends use ephemeral ports.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <ucp/api/ucp.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "runtime/base/unique_fd.h"
#include "runtime/transport/stream/frame.h"
#include "runtime/transport/ucx/handshake.h"
#include "runtime/transport/ucx/path_watch.h"
#include "runtime/transport/ucx/ucx_environment.h"

namespace geopipe {

struct UcxFrameOptions {
  NetworkLimits limits;
  int64_t min_redial_ns = 20'000'000;
  int64_t max_redial_ns = 400'000'000;
  int64_t handshake_limit_ns = 10'000'000'000;
  uint64_t seed = 1;                 // of the backoff's jitter
  int64_t send_buffer_bytes = 0;     // of each connection; 0: the kernel's
  int64_t receive_buffer_bytes = 0;  // as above
  std::function<void()> on_thread;   // called on the progress thread when it begins; may be empty
};

struct UcxSessionOptions {
  int32_t rank = 0;
  uint64_t job_hash = 0;
  uint64_t epoch = 0;
  MakeFrameLayer layer;                   // between UCX and the sink; empty: none
  std::set<PeerId> near;                  // peers of this site
  std::map<PeerId, int32_t> connections;  // of the path to each peer that is dialed; peers not listed: one
};

class UcxFrame final : public FrameCarrier {
 public:
  // Opens UCX, listens and starts the progress thread. Unavailable if no device can be opened or no port of the range
  // is free.
  static absl::StatusOr<std::unique_ptr<UcxFrame>> Create(const UcxFrameOptions& options);
  ~UcxFrame() override;  // Stop()

  // "ip:port" for the dialing peers.
  const std::string& address() const { return address_; }

  // --- A session, from one thread: OpenSession, Start, Connect, EndSession; then the next one.
  // Errors: those of the layer; then there is no session. REQUIRES: none is open.
  absl::Status OpenSession(UcxSessionOptions session);
  // The carrier that the sink sends through: the session's layer, or this.
  FrameCarrier& carrier() { return layer_ == nullptr ? static_cast<FrameCarrier&>(*this) : *layer_; }
  // Starts to call the sink. Once per session.
  void Start(FrameSink* sink);
  // Starts to dial the peers of higher ranks and to admit those of lower ranks; no others. InvalidArgument if an
  // address of a peer to dial cannot be read. Any thread; once per session.
  absl::Status Connect(const std::map<PeerId, std::string>& addresses, const std::string& secret);
  // Sends the remaining frames, says goodbye to the peers and closes the connections with them; the sink is not called
  // any more. Every frame is `done`, unless UCX holds it for longer than about a second, which bounds this whatever the
  // peers do: the memory of such a frame stays for the life of the process. The layer goes with the session.
  void EndSession();

  // Does as EndSession and ends the thread; every frame is `done`. There is no further session.
  void Stop();

  // Breaks the connection to a peer, which is then re-established as after any failure. For tests.
  void Break(PeerId peer);

  // Peers, connections and frames refused.
  int64_t refused() const { return refused_.load(); }
  // The reason why the last connection to the peer ended or was not made.
  std::string LastTrouble(PeerId peer) const;
  // Processor time of the progress thread since it began.
  int64_t thread_cpu_ns() const;

  // FrameCarrier.
  int64_t max_payload_bytes(PeerId peer) const override;
  int64_t max_header_bytes() const override;
  bool Writable(PeerId peer) const override;
  void Send(PeerId peer, const Frame& frame, std::function<void()> done) override;
  void Wake() override;
  bool SameHost(PeerId peer) const override;

 private:
  struct Connection {
    enum class State : uint8_t { kAwaitingHello, kAwaitingChallenge, kAwaitingProof, kProving, kUp };
    ucp_ep_h endpoint = nullptr;
    State state = State::kAwaitingHello;
    PeerId peer = -1;  // of an accepted connection: known from its hello
    HandshakeMessage terms;
    uint64_t remote_id = 0;  // by which our frames name it
    int64_t begun_ns = 0;
    int64_t deadline_ns = 0;  // of the handshake
    bool same_host = false;
    int64_t bytes_in_flight = 0;
    uint64_t last_use = 0;  // serial number of the last frame it was given
    PathWatch watch;        // of a dialed connection that is up
  };
  struct Peer {
    std::string address;                // to dial
    uint64_t path = 0;                  // its number
    std::vector<uint64_t> connections;  // of the path, which are up
    std::vector<uint64_t> dialing;      // in their handshakes, oldest first
    int64_t redial_at_ns = 0;
    int32_t failures = 0;  // in a row
    bool left = false;     // said goodbye: not dialed again
    RedialPolicy policy;
  };
  // An active message on its way; `done` is empty for handshakes.
  struct Departure {
    UcxFrame* frame = nullptr;
    uint64_t connection = 0;
    std::vector<std::byte> header;
    int64_t bytes = 0;
    std::function<void()> done;
  };
  struct Orders {
    FrameSink* start = nullptr;
    bool end = false;
    bool connect = false;
    std::map<PeerId, std::string> addresses;
    std::string secret;
    std::vector<PeerId> breaks;
  };

  explicit UcxFrame(const UcxFrameOptions& options) : options_(options), jitter_(options.seed) {}

  // ucx_frame.cc: the thread and the frames.
  absl::Status Open();
  absl::Status Listen(const std::string& ip);
  void Run();
  bool Progress();
  void Sleep(int64_t until_ns);
  void SetTimer(int64_t until_ns);
  void TakeOrders();
  void CloseSession();
  void Depart(ucp_ep_h endpoint, unsigned id, uint32_t flags, std::unique_ptr<Departure> departure,
              std::span<const std::byte> payload);
  // The connection that is up with the fewest bytes in flight; among equals the one that has rested longest, so that
  // all windows grow alike. 0: no connection is up.
  uint64_t LeastLoaded(const Peer& peer) const;
  void Complete(Departure* departure);
  static void OnSent(void* request, ucs_status_t status, void* user);

  // ucx_arrival.cc: active messages at their receiver.
  void Arrive(std::span<const std::byte> header, std::span<const std::byte> payload);
  static ucs_status_t OnFrameMessage(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                     const ucp_am_recv_param_t* param);
  static ucs_status_t OnHandshakeMessage(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                         const ucp_am_recv_param_t* param);

  // ucx_path.cc: which connections there should be.
  void KeepConnections(int64_t now_ns);
  void KeepPath(PeerId rank, Peer& peer, int64_t now_ns);
  bool Silent(const Peer& peer, int64_t now_ns) const;
  bool WantsConnection(PeerId rank, const Peer& peer, int64_t now_ns) const;
  int64_t NextConnectionTimeNs(int64_t now_ns) const;
  void ComeUp(uint64_t id);
  // Closes the connection. If it was up, its path is broken: the sink is told, and the peer is dialed again.
  void Drop(uint64_t id, const absl::Status& why);
  // Notes why an attempt failed. A refusal stays until a path was up: it explains the attempts that break after it.
  void NoteTrouble(PeerId rank, const absl::Status& why);
  void BreakPath(PeerId rank, Peer& peer, const absl::Status& why);
  void Redial(Peer& peer, int64_t now_ns);

  // ucx_connect.cc: connections from dialing to closing.
  void Dial(PeerId rank, Peer& peer, int64_t now_ns);
  void Accept(ucp_conn_request_h request, int64_t now_ns);
  void MakeRoomForStranger();
  absl::Status CreateEndpoint(ucp_ep_params_t& params, Connection connection);
  void OnHello(ucp_ep_h reply, const HandshakeMessage& message);
  void OnChallenge(const HandshakeMessage& message);
  void OnProof(const HandshakeMessage& message);
  void OnVerdict(const HandshakeMessage& message);
  void OnGoodbye(const HandshakeMessage& message);
  void SendHandshake(const Connection& connection, HandshakeKind kind, const Proof& proof);
  void OnPing(const HandshakeMessage& message);
  void OnPong(const HandshakeMessage& message);
  void Refuse(uint64_t id, const std::string& why);
  void CloseEndpoint(ucp_ep_h endpoint, bool flush);
  void ReapClosed();
  // Says goodbye and closes all connections.
  void CloseConnections();
  void CloseAll();
  // Progresses until `over` or until `limit_ns` have passed.
  template <class Condition>
  void ProgressUntil(const Condition& over, int64_t limit_ns);
  static void OnConnectionRequest(ucp_conn_request_h request, void* self);
  static void OnEndpointError(void* self, ucp_ep_h endpoint, ucs_status_t status);

  const UcxFrameOptions options_;
  std::string address_;
  // The session's. Written while none is started; then read by any thread.
  UcxSessionOptions session_;
  std::unique_ptr<FrameLayer> layer_;  // may be null
  bool open_ = false;                  // a session; the thread that opens and ends sessions
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> wanted_{false};  // Wake was called since the progress thread last began its round
  std::atomic<bool> asleep_{false};  // or about to be
  std::atomic<int64_t> refused_{0};
  UniqueFd epoll_fd_;
  UniqueFd timer_fd_;
  UniqueFd wake_fd_;
  int64_t timer_at_ns_ = 0;  // setting of timer_fd_; 0: disarmed. Progress thread only
  UcpContext context_;
  UcpWorker worker_;
  ucp_listener_h listener_ = nullptr;

  mutable std::mutex mutex_;  // orders_, ended_, trouble_
  std::condition_variable ended_condition_;
  bool ended_ = true;  // no session is started
  Orders orders_;
  std::map<PeerId, absl::Status> trouble_;

  // Progress thread only, once it runs.
  SplitMix64 jitter_;
  FrameSink* sink_ = nullptr;  // of the session: the layer, or its user; null: none is started
  bool connecting_ = false;    // Connect was called
  std::string secret_;
  std::map<PeerId, Peer> peers_;
  uint64_t last_use_ = 0;
  uint64_t last_path_ = 0;  // number given; begins with the time, so that a restarted dialer's are higher
  std::map<uint64_t, Connection> connections_;  // by our id
  std::deque<ucp_conn_request_h> requests_;     // waiting to be accepted; bounded
  std::vector<std::pair<ucp_ep_h, ucs_status_t>> broken_;
  std::vector<std::pair<uint64_t, absl::Status>> to_drop_;
  std::vector<void*> closing_;  // requests
  std::unordered_map<Departure*, std::unique_ptr<Departure>> departures_;
};

}  // namespace geopipe
