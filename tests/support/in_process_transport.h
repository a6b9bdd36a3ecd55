// Messages between threads of one test, with the contract of MessageTransport: in order per channel, `slots` messages
// accepted ahead of need, acknowledgement on acceptance.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/transport/stream/message_transport.h"

namespace geopipe {

class InProcessNetwork {
 public:
  explicit InProcessNetwork(int32_t ranks) : failures_(ranks) {}

  // Declares a channel; both ends may.
  void Add(const ChannelSpec& spec);

  // The transport of one rank; what it receives is allocated from `allocator`. Both outlive it.
  std::unique_ptr<MessageTransport> Endpoint(int32_t rank, Allocator& allocator);

  // Every endpoint fails, as when the peers' process is gone.
  void FailAll(const absl::Status& status);

  // Messages that found no free slot when they were sent: a plan's slots must prevent them.
  int64_t throttled() const;
  // Greatest number of messages of the channel that were sent and not taken at once.
  int64_t greatest_outstanding(const ChannelId& id) const;
  int64_t messages_sent() const;

 private:
  friend class InProcessEndpoint;

  struct Message {
    MessageTag tag;
    Tensor payload;
  };
  struct Channel {
    ChannelSpec spec;
    std::deque<Message> queue;          // ready and not taken
    int64_t sent = 0;                   // ready or not
    std::vector<MessageTag> tags = {};  // of all that were sent
    int64_t ready = 0;
    int64_t taken = 0;
    int64_t greatest_outstanding = 0;
  };

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<ChannelId, Channel> channels_;
  std::vector<absl::Status> failures_;  // by rank
  int64_t throttled_ = 0;
  int64_t messages_sent_ = 0;
};

}  // namespace geopipe
