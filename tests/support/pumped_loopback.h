// A loopback network between ranks 0 and 1 that a thread of its own pumps in real time, as a carrier's progress thread
// does: for tests whose users wait in Receive.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/base/clock.h"
#include "tests/support/loopback_frame.h"

namespace geopipe {

class PumpedLoopback {
 public:
  PumpedLoopback(int64_t max_payload_bytes, uint64_t seed, const LoopbackFaults& faults)
      : network_(std::make_unique<LoopbackNetwork>(0, 1, max_payload_bytes, seed)),
        ends_{End(*this, network_->carrier(0)), End(*this, network_->carrier(1))} {
    network_->set_faults(faults);
  }
  ~PumpedLoopback() { Stop(); }
  PumpedLoopback(const PumpedLoopback&) = delete;
  PumpedLoopback& operator=(const PumpedLoopback&) = delete;

  FrameCarrier& carrier(int32_t rank) { return ends_.at(static_cast<size_t>(rank)); }

  // The sinks outlive Stop.
  void Start(FrameSink& low, FrameSink& high) {
    network_->Attach(0, &low);
    network_->Attach(1, &high);
    network_->Connect(Clock::Real().NowNs());
    thread_ = std::thread([this] { Run(); });
  }

  // No sink is called afterwards, and all frames are done. Idempotent.
  void Stop() {
    if (!thread_.joinable()) {
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_one();
    thread_.join();
    network_.reset();
  }

 private:
  class End final : public FrameCarrier {
   public:
    End(PumpedLoopback& network, FrameCarrier& below) : network_(network), below_(below) {}

    int64_t max_payload_bytes(PeerId peer) const override { return below_.max_payload_bytes(peer); }
    int64_t max_header_bytes() const override { return below_.max_header_bytes(); }
    bool Writable(PeerId peer) const override { return below_.Writable(peer); }
    void Send(PeerId peer, const Frame& frame, std::function<void()> done) override {
      below_.Send(peer, frame, std::move(done));
    }
    void Wake() override {
      {
        const std::lock_guard lock(network_.mutex_);
        network_.woken_ = true;
      }
      network_.changed_.notify_one();
    }

   private:
    PumpedLoopback& network_;
    FrameCarrier& below_;
  };

  void Run() {
    std::unique_lock lock(mutex_);
    while (!stops_) {
      woken_ = false;
      lock.unlock();
      const int64_t next_ns = network_->Pump(Clock::Real().NowNs());
      lock.lock();
      changed_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(next_ns)),
                          [this] { return stops_ || woken_; });
    }
  }

  std::unique_ptr<LoopbackNetwork> network_;
  std::array<End, 2> ends_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace geopipe
