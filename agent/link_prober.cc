#include "agent/link_prober.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "agent/worker_supervisor.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/packet_socket.h"
#include "runtime/base/poll.h"
#include "runtime/base/process.h"
#include "runtime/base/unique_fd.h"

namespace geopipe::agent {
namespace {

constexpr int64_t kStartNs = 5'000'000'000;  // beyond the order's own limit, for the process to begin and end

}  // namespace

// A thread of its own, because starting a process and waiting for it take time.
class LinkProber::Probe {
 public:
  Probe(const AgentConfig& config, PostEvent post, StartProbe start)
      : config_(config), post_(std::move(post)), start_(std::move(start)), opened_(Open()), thread_([this] {
          Run();
        }) {}
  ~Probe() {
    Stop();
    thread_.join();
  }

  uint64_t id() const { return start_.order.probe(); }
  bool done() const { return done_; }

  void Stop() {
    stopped_ = true;
    if (socket_.valid()) {
      ShutDownPackets(socket_.get());  // wakes the thread
    }
  }

 private:
  absl::Status Open() {
    GP_ASSIGN_OR_RETURN(auto ends, MakePacketSockets());
    std::tie(socket_, child_socket_) = std::move(ends);
    return absl::OkStatus();
  }

  void Run() {
    if (const absl::Status status = Measure(); !status.ok()) {
      v1::ProbeReport report;
      report.mutable_failed()->set_code(static_cast<int32_t>(status.code()));
      report.mutable_failed()->set_message(std::string(status.message()));
      Post(std::move(report));
    }
    done_ = true;
  }

  // Waits until the process has reported everything. It ends with this function.
  absl::Status Measure() {
    GP_RETURN_IF_ERROR(opened_);
    ProcessSpec spec = DataPlaneProcess(config_);
    spec.args.insert(spec.args.end(), {"--probe-fd", std::to_string(child_socket_.get())});
    if (start_.order.shaped()) {
      spec.args.insert(spec.args.end(), {"--probe-pacer", start_.pacer_path});
    }
    if (start_.order.to_site() == config_.site) {
      spec.args.emplace_back("--probe-near");
    }
    spec.inherited_fds = {child_socket_.get()};
    spec.parent_death_signal = SIGKILL;
    GP_ASSIGN_OR_RETURN(Process process, Process::Start(spec));
    child_socket_.Reset();
    const int64_t deadline_ns = Clock::Real().NowNs() + start_.order.limit_ns() + kStartNs;
    if (absl::Status sent = SendPacket(socket_.get(), start_.order.SerializeAsString()); !sent.ok() && !stopped_) {
      return sent;
    }
    while (true) {
      GP_ASSIGN_OR_RETURN(const std::string packet, Receive(process, deadline_ns));
      if (packet.empty()) {
        return absl::OkStatus();
      }
      v1::ProbeReport report;
      if (!report.ParseFromString(packet)) {
        return absl::InternalError(
            "the probe's process sent something that is not a report; are agent and worker of the same version?");
      }
      const bool is_last = !report.has_opened();
      Post(std::move(report));
      if (is_last) {
        return absl::OkStatus();
      }
    }
  }

  // The next packet of the process; empty when it has ended well.
  absl::StatusOr<std::string> Receive(Process& process, int64_t deadline_ns) {
    pollfd readable{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (PollFor({&readable, 1}, std::max<int64_t>(0, deadline_ns - Clock::Real().NowNs())) == 0) {
      return absl::DeadlineExceededError("the probe's process did not end in time");
    }
    std::string packet = ReceivePacket(socket_.get());
    if (stopped_) {
      return absl::CancelledError("the probe was called off");
    }
    if (packet.empty()) {
      // Its descriptors close a moment before it can be reaped.
      const std::optional<ExitStatus> ended = process.Wait(1'000'000'000);
      if (!ended.has_value() || !ended->success()) {
        return absl::UnavailableError(
            fmt::format("the probe's process {}",
                        ended.has_value() ? ended->Description() : "closed its socket before its report"));
      }
    }
    return packet;
  }

  void Post(v1::ProbeReport report) {
    report.set_probe(id());
    post_(ProbeNews{std::move(report)});
  }

  const AgentConfig& config_;
  const PostEvent post_;
  const StartProbe start_;
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> done_ = false;
  UniqueFd socket_;
  UniqueFd child_socket_;  // thread only, once it runs
  const absl::Status opened_;
  std::thread thread_;
};

LinkProber::LinkProber(const AgentConfig& config, PostEvent post) : config_(config), post_(std::move(post)) {}

LinkProber::~LinkProber() {
  for (const std::unique_ptr<Probe>& probe : probes_) {
    probe->Stop();
  }
}

void LinkProber::Carry(StartProbe order) {
  // Only probes that are over are joined here: another may be waiting for room in the core's inbox.
  probes_.remove_if([](const std::unique_ptr<Probe>& probe) { return probe->done(); });
  probes_.push_back(std::make_unique<Probe>(config_, post_, std::move(order)));
}

void LinkProber::Carry(const StopProbe& order) {
  for (const std::unique_ptr<Probe>& probe : probes_) {
    if (probe->id() == order.probe) {
      probe->Stop();
    }
  }
}

}  // namespace geopipe::agent
