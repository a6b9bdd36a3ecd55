// Two ends of a frame carrier in memory, with a seeded model of what networks do to frames, on the time its user pumps
// it with. For tests and single-process runs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "runtime/transport/stream/frame.h"

namespace geopipe {

// Probabilities per frame; times are drawn uniformly up to the maximum.
struct LoopbackFaults {
  double drop = 0;
  double duplicate = 0;
  double corrupt = 0;     // one bit of header or payload
  double reorder = 0;     // delayed by up to reorder_ns more than its neighbours
  double disconnect = 0;  // instead of carrying the frame: both ends go down, frames on their way are lost
  int64_t latency_ns = 1'000'000;
  int64_t reorder_ns = 3'000'000;
  int64_t reconnect_ns = 50'000'000;
};

class LoopbackNetwork {
 public:
  // Joins `low_rank` and `high_rank`. Sinks are attached before the first Pump and must outlive the network's use.
  LoopbackNetwork(PeerId low_rank, PeerId high_rank, int64_t max_payload_bytes, uint64_t seed);
  ~LoopbackNetwork();
  LoopbackNetwork(const LoopbackNetwork&) = delete;
  LoopbackNetwork& operator=(const LoopbackNetwork&) = delete;

  FrameCarrier& carrier(PeerId rank);
  void Attach(PeerId rank, FrameSink* sink);
  void set_faults(const LoopbackFaults& faults) { faults_ = faults; }

  // Takes both ends up at once (the beginning), or down; after Disconnect they come up by themselves.
  void Connect(int64_t now_ns);
  void Disconnect(int64_t now_ns);

  // Lets everything happen that is due at `now_ns`, and both sinks progress. Returns the next time something is due.
  int64_t Pump(int64_t now_ns);

  int64_t frames_lost() const { return frames_lost_; }
  int64_t disconnects() const { return disconnects_; }

 private:
  class End;
  struct Flight {
    bool to_high = false;
    std::vector<std::byte> header = {};
    std::span<const std::byte> payload = {};
    std::vector<std::byte> own_payload = {};  // of a duplicated or damaged frame
    std::function<void()> done = {};
  };
  void Carry(bool to_high, std::span<const std::byte> header, std::span<const std::byte> payload,
             std::function<void()> done);
  void Launch(Flight&& flight);
  void Corrupt(Flight& flight);
  void Land(int64_t now_ns);
  void LoseAll();

  LoopbackFaults faults_;
  SplitMix64 random_;
  int64_t now_ns_ = 0;
  uint64_t next_order_ = 0;
  std::unique_ptr<End> low_;
  std::unique_ptr<End> high_;
  // Frames in flight by due time; those due together arrive in the order they were sent.
  std::map<std::pair<int64_t, uint64_t>, Flight> flights_;
  bool disconnect_due_ = false;
  int64_t frames_lost_ = 0;
  int64_t disconnects_ = 0;
};

}  // namespace geopipe
