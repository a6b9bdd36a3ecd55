// Measured costs, which replace the analytic model wherever they exist.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace geopipe {

// Durations of one part of the model for one micro-batch.
struct PartCosts {
  int64_t forward_ns = 0;
  int64_t input_grad_ns = 0;
  int64_t weight_grad_ns = 0;

  friend bool operator==(const PartCosts&, const PartCosts&) = default;
};

// One device's measurement at one (b, s), taken while all devices of the job computed at once.
struct ProfileEntry {
  std::string site;
  std::string node;
  int32_t device = 0;
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
  PartCosts embedding;
  PartCosts block;  // one decoder layer
  PartCosts head;   // final norm, LM head, loss
  // Norm terms, AdamW and clearing the gradients: all the work of a stage between two iterations.
  int64_t adamw_ns_per_million_parameters = 0;

  friend bool operator==(const ProfileEntry&, const ProfileEntry&) = default;
};

// Time in which one device's transport brings a message from one thread to another over no link at all (waking up,
// copying, checking), from handing the message over until the receiver continues; measured while all devices of the job
// did the same. It is the interquartile mean of several, because the sum over an iteration's many messages depends on
// the mean, and a long wait for a processor is no cost of the transport. Two messages cross each other each time. Of
// the large ones the later counts: inside a site, where nothing hides them, stages of equal work wait for both. Of the
// small ones, which stand for the time that a crossing adds to its link, each counts.
struct MessageCost {
  std::string site;
  std::string node;
  int32_t device = 0;
  int64_t bytes = 0;     // of the large message
  int64_t whole_ns = 0;  // it took
  int64_t fixed_ns = 0;  // a message of a few bytes took

  friend bool operator==(const MessageCost&, const MessageCost&) = default;
};

struct Profile {
  std::vector<ProfileEntry> entries = {};
  std::vector<MessageCost> messages = {};  // at most one for each device
  int64_t tensor = 0;                      // degree that the entries are of; 0: the job's, and 1 where that is auto

  bool empty() const { return entries.empty() && messages.empty(); }

  friend bool operator==(const Profile&, const Profile&) = default;
};

}  // namespace geopipe
