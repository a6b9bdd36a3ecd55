#include "runtime/transport/ucx/ucx_frame.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <tuple>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/base/trouble.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/thread_name.h"
#include "runtime/transport/ucx/device_ip.h"

namespace geopipe {
namespace {

constexpr int64_t kFarPayloadBytes = int64_t{64} * 1024;
// Within a site frames are few, yet short enough to be copied out of the cache while the next one arrives.
constexpr int64_t kNearPayloadBytes = int64_t{256} * 1024;
constexpr int64_t kMaxHeaderBytes = 4096;
// Room for a frame, the connection's number, and UCX's own headers.
constexpr int64_t kSegmentBytes = kNearPayloadBytes + kMaxHeaderBytes + 1024;
constexpr int64_t kMaxBytesInFlight = int64_t{1024} * 1024;
constexpr int kMaxProgressRounds = 64;  // before the sink has its turn again

// Keeps the memory that a frame which did not leave reads: UCX may read it for ever.
void KeepForGood(std::function<void()> done) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::function<void()>>();
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(done));
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxFrame>> UcxFrame::Create(const UcxFrameOptions& options) {
  std::unique_ptr<UcxFrame> frame(new UcxFrame(options));
  GP_RETURN_IF_ERROR(frame->Open());
  frame->thread_ = std::thread([raw = frame.get()] { raw->Run(); });
  return frame;
}

UcxFrame::~UcxFrame() {
  Stop();
  if (listener_ != nullptr) {
    ucp_listener_destroy(listener_);
  }
  worker_.reset();
  context_.reset();
}

absl::Status UcxFrame::Open() {
  last_path_ = static_cast<uint64_t>(Clock::Real().UnixNowNs());
  GP_ASSIGN_OR_RETURN(context_, OpenUcpContext({.frame_bytes = kSegmentBytes,
                                                .send_buffer_bytes = options_.send_buffer_bytes,
                                                .receive_buffer_bytes = options_.receive_buffer_bytes,
                                                .ports = options_.limits.ports}));
  GP_ASSIGN_OR_RETURN(worker_, OpenUcpWorker(context_.get()));
  struct Handler {
    unsigned id;
    ucp_am_recv_callback_t callback;
  };
  for (const Handler& handler :
       {Handler{kFrameMessageId, &OnFrameMessage}, Handler{kHandshakeMessageId, &OnHandshakeMessage}}) {
    ucp_am_handler_param_t param{};
    param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    param.id = handler.id;
    param.flags = UCP_AM_FLAG_WHOLE_MSG;
    param.cb = handler.callback;
    param.arg = this;
    if (const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_.get(), &param); status != UCS_OK) {
      return UcxError("registering an active message", status);
    }
  }
  GP_ASSIGN_OR_RETURN(const std::string ip, DeviceIp(options_.limits.private_network));
  GP_RETURN_IF_ERROR(Listen(ip));

  int ucx_fd = -1;
  if (const ucs_status_t status = ucp_worker_get_efd(worker_.get(), &ucx_fd); status != UCS_OK) {
    return UcxError("asking UCX for its event descriptor", status);
  }
  epoll_fd_.Reset(epoll_create1(EPOLL_CLOEXEC));
  timer_fd_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  wake_fd_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  for (const int fd : {ucx_fd, timer_fd_.get(), wake_fd_.get()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (!epoll_fd_.valid() || fd < 0 || epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return OfNode(absl::UnavailableError(
          fmt::format("the transport cannot open its event descriptors: {}", std::strerror(errno))));
    }
  }
  return absl::OkStatus();
}

absl::Status UcxFrame::Listen(const std::string& ip) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  GP_CHECK(inet_pton(AF_INET, ip.c_str(), &address.sin_addr) == 1);
  ucs_status_t status = UCS_ERR_BUSY;
  const PortRange ports = options_.limits.ports;
  for (uint32_t port = ports.first; port <= ports.last; ++port) {
    address.sin_port = htons(static_cast<uint16_t>(port));
    ucp_listener_params_t params{};
    params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&address);
    params.sockaddr.addrlen = sizeof address;
    params.conn_handler.cb = &OnConnectionRequest;
    params.conn_handler.arg = this;
    status = ucp_listener_create(worker_.get(), &params, &listener_);
    if (status == UCS_OK) {
      break;
    }
    listener_ = nullptr;
  }
  if (status != UCS_OK) {
    return UcxError(fmt::format("listening on {} port {} to {}", ip, ports.first, ports.last), status);
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (status = ucp_listener_query(listener_, &attributes); status != UCS_OK) {
    return UcxError("asking UCX for its listening port", status);
  }
  sockaddr_in bound{};
  std::memcpy(&bound, &attributes.sockaddr, sizeof bound);
  address_ = fmt::format("{}:{}", ip, ntohs(bound.sin_port));
  LogDebug("the transport listens on {}", address_);
  return absl::OkStatus();
}

absl::Status UcxFrame::OpenSession(UcxSessionOptions session) {
  GP_CHECK(!open_, "a session is open");
  layer_.reset();
  session_ = std::move(session);
  if (session_.layer) {
    GP_ASSIGN_OR_RETURN(layer_, session_.layer(*this));
  }
  {
    const std::lock_guard lock(mutex_);
    trouble_.clear();
  }
  open_ = true;
  return absl::OkStatus();
}

void UcxFrame::Start(FrameSink* sink) {
  GP_CHECK(open_ && sink != nullptr);
  if (layer_ != nullptr) {
    layer_->Attach(sink);
  }
  {
    const std::lock_guard lock(mutex_);
    GP_CHECK(ended_, "a session is started twice");
    ended_ = false;
    orders_.start = layer_ == nullptr ? sink : layer_.get();
  }
  Wake();
}

void UcxFrame::EndSession() {
  open_ = false;
  std::unique_lock lock(mutex_);
  if (ended_ || !thread_.joinable()) {
    return;
  }
  orders_.end = true;
  lock.unlock();
  Wake();
  lock.lock();
  ended_condition_.wait(lock, [this] { return ended_; });
  layer_.reset();
}

void UcxFrame::Stop() {
  if (thread_.joinable()) {
    stop_.store(true);
    Wake();
    thread_.join();
  }
}

absl::Status UcxFrame::Connect(const std::map<PeerId, std::string>& addresses, const std::string& secret) {
  for (const auto& [rank, address] : addresses) {
    const size_t colon = address.rfind(':');
    in_addr parsed{};
    if (rank > session_.rank &&
        (colon == std::string::npos || inet_pton(AF_INET, address.substr(0, colon).c_str(), &parsed) != 1)) {
      return absl::InvalidArgumentError(fmt::format(
          "the address '{}' of rank {} is not ip:port, as the worker's own transport gives it", address, rank));
    }
  }
  {
    std::lock_guard lock(mutex_);
    orders_.connect = true;
    orders_.addresses = addresses;
    orders_.secret = secret;
  }
  Wake();
  return absl::OkStatus();
}

void UcxFrame::Break(PeerId peer) {
  {
    std::lock_guard lock(mutex_);
    orders_.breaks.push_back(peer);
  }
  Wake();
}

std::string UcxFrame::LastTrouble(PeerId peer) const {
  std::lock_guard lock(mutex_);
  const auto found = trouble_.find(peer);
  return found == trouble_.end() ? "" : std::string(found->second.message());
}

int64_t UcxFrame::thread_cpu_ns() const {
  // The handle is only read here; the thread is running or not yet joined.
  return ThreadCpuNs(const_cast<std::thread&>(thread_).native_handle());
}

void UcxFrame::Wake() {
  // The progress thread says that it falls asleep before it looks whether it is wanted, so one of the two sees the
  // other.
  wanted_.store(true);
  if (asleep_.load()) {
    const uint64_t one = 1;
    // A full counter (EAGAIN) wakes as well.
    [[maybe_unused]] const ssize_t written = write(wake_fd_.get(), &one, sizeof one);
  }
}

// --- The progress thread ----------------------------------------------------------------------------------------

void UcxFrame::Run() {
  NameThisThread("transport");
  if (options_.on_thread) {
    options_.on_thread();
  }
  const Clock& clock = Clock::Real();
  while (true) {
    wanted_.store(false);  // and only then is the work looked for
    if (stop_.load()) {
      break;
    }
    const bool progressed = Progress();
    TakeOrders();
    KeepConnections(clock.NowNs());
    const int64_t sink_ns = sink_ == nullptr ? kNeverNs : sink_->OnProgress(clock.NowNs());
    const int64_t next_ns = std::min(sink_ns, NextConnectionTimeNs(clock.NowNs()));
    if (!progressed && broken_.empty() && to_drop_.empty()) {
      Sleep(next_ns);
    }
  }
  CloseAll();
}

bool UcxFrame::Progress() {
  int rounds = 0;
  while (rounds < kMaxProgressRounds && ucp_worker_progress(worker_.get()) != 0) {
    ++rounds;
  }
  return rounds > 0;
}

void UcxFrame::Sleep(int64_t until_ns) {
  if (ucp_worker_arm(worker_.get()) != UCS_OK) {
    return;  // busy: something came since the last progress
  }
  asleep_.store(true);
  if (!wanted_.exchange(false)) {
    SetTimer(until_ns);
    std::array<epoll_event, 4> events{};
    const int count = epoll_wait(epoll_fd_.get(), events.data(), events.size(), -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == timer_fd_.get() || fd == wake_fd_.get()) {
        uint64_t value = 0;
        [[maybe_unused]] const ssize_t got = read(fd, &value, sizeof value);
        timer_at_ns_ = fd == timer_fd_.get() ? 0 : timer_at_ns_;
      }
    }
  }
  asleep_.store(false);
}

void UcxFrame::SetTimer(int64_t until_ns) {
  // A timer that comes too early does no harm, and costs less than moving it each time.
  if (until_ns == kNeverNs || (timer_at_ns_ != 0 && timer_at_ns_ <= until_ns)) {
    return;
  }
  timer_at_ns_ = std::max<int64_t>(1, until_ns);  // all zero would disarm; a time that has passed fires at once
  const itimerspec timer{.it_interval = {},
                         .it_value = {.tv_sec = timer_at_ns_ / 1'000'000'000, .tv_nsec = timer_at_ns_ % 1'000'000'000}};
  timerfd_settime(timer_fd_.get(), TFD_TIMER_ABSTIME, &timer, nullptr);
}

void UcxFrame::TakeOrders() {
  Orders orders;
  {
    std::lock_guard lock(mutex_);
    std::swap(orders, orders_);
  }
  if (orders.start != nullptr) {
    sink_ = orders.start;
  }
  if (orders.end) {
    CloseSession();
    return;
  }
  if (orders.connect) {
    connecting_ = true;
    secret_ = std::move(orders.secret);
    for (auto& [rank, address] : orders.addresses) {
      peers_[rank].address = std::move(address);
    }
  }
  for (const PeerId rank : orders.breaks) {
    if (const auto peer = peers_.find(rank); peer != peers_.end() && !peer->second.connections.empty()) {
      BreakPath(rank, peer->second, absl::UnavailableError("broken on purpose"));
    }
  }
}

void UcxFrame::CloseSession() {
  CloseConnections();
  for (const auto& [raw, departure] : departures_) {
    if (departure->done != nullptr) {
      KeepForGood(std::exchange(departure->done, nullptr));
      LogError("rank {}: a frame of epoch {} did not leave; its memory is not used again", session_.rank,
               session_.epoch);
    }
  }
  peers_.clear();
  connecting_ = false;
  secret_.clear();
  to_drop_.clear();
  sink_ = nullptr;
  const std::lock_guard lock(mutex_);
  ended_ = true;
  ended_condition_.notify_all();
}

int64_t UcxFrame::max_payload_bytes(PeerId peer) const {
  return session_.near.contains(peer) ? kNearPayloadBytes : kFarPayloadBytes;
}

int64_t UcxFrame::max_header_bytes() const { return kMaxHeaderBytes; }

bool UcxFrame::Writable(PeerId peer) const {
  const auto found = peers_.find(peer);
  const uint64_t id = found == peers_.end() ? 0 : LeastLoaded(found->second);
  return id != 0 && connections_.at(id).bytes_in_flight < kMaxBytesInFlight;
}

uint64_t UcxFrame::LeastLoaded(const Peer& peer) const {
  const auto least = std::min_element(peer.connections.begin(), peer.connections.end(), [this](uint64_t a, uint64_t b) {
    const Connection& left = connections_.at(a);
    const Connection& right = connections_.at(b);
    return std::tie(left.bytes_in_flight, left.last_use) < std::tie(right.bytes_in_flight, right.last_use);
  });
  return least == peer.connections.end() ? 0 : *least;
}

void UcxFrame::Send(PeerId peer, const Frame& frame, std::function<void()> done) {
  GP_CHECK(std::cmp_less_equal(frame.header.size(), kMaxHeaderBytes) &&
           std::cmp_less_equal(frame.payload.size(), max_payload_bytes(peer)));
  const auto found = peers_.find(peer);
  const uint64_t id = found == peers_.end() ? 0 : LeastLoaded(found->second);
  if (id == 0) {
    done();
    return;
  }
  Connection& connection = connections_.at(id);
  auto departure = std::make_unique<Departure>();
  departure->frame = this;
  departure->connection = id;
  departure->header.resize(sizeof connection.remote_id + frame.header.size());
  std::memcpy(departure->header.data(), &connection.remote_id, sizeof connection.remote_id);
  std::memcpy(departure->header.data() + sizeof connection.remote_id, frame.header.data(), frame.header.size());
  departure->bytes = static_cast<int64_t>(departure->header.size() + frame.payload.size());
  departure->done = std::move(done);
  connection.bytes_in_flight += departure->bytes;
  connection.last_use = ++last_use_;
  Depart(connection.endpoint, kFrameMessageId, 0, std::move(departure), frame.payload);
}

void UcxFrame::Depart(ucp_ep_h endpoint, unsigned id, uint32_t flags, std::unique_ptr<Departure> departure,
                      std::span<const std::byte> payload) {
  Departure* raw = departure.get();
  departures_.emplace(raw, std::move(departure));
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &OnSent;
  param.user_data = raw;
  param.flags = flags | UCP_AM_SEND_FLAG_EAGER;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint, id, raw->header.data(), raw->header.size(), payload.data(), payload.size(), &param);
  // No callback comes: it was sent at once, or failed at once (UCX reports the endpoint's error by itself).
  if (!UCS_PTR_IS_PTR(request)) {
    Complete(raw);
  }
}

void UcxFrame::Complete(Departure* departure) {
  auto node = departures_.extract(departure);
  GP_CHECK(!node.empty());
  if (const auto connection = connections_.find(departure->connection); connection != connections_.end()) {
    connection->second.bytes_in_flight -= departure->bytes;
  }
  if (departure->done) {
    departure->done();
  }
}

void UcxFrame::OnSent(void* request, ucs_status_t /*status*/, void* user) {
  auto* departure = static_cast<Departure*>(user);
  departure->frame->Complete(departure);
  ucp_request_free(request);
}

bool UcxFrame::SameHost(PeerId peer) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && !found->second.connections.empty() &&
         connections_.at(found->second.connections.front()).same_host;
}

}  // namespace geopipe
