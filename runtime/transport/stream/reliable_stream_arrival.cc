// Frames that arrive at a reliable stream: checks their sender and puts their payload in place.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "runtime/transport/stream/reliable_stream.h"

namespace geopipe {

bool ReliableStream::Admit(const DecodedFrame& frame) {
  const FrameEnvelope& envelope = frame.envelope;
  // Only a control frame may come from a peer that has not heard of us yet.
  const bool addressed =
      envelope.to_session == options_.session || (envelope.to_session == 0 && frame.type == FrameType::kControl);
  if (envelope.job_hash != options_.job_hash || envelope.epoch != options_.epoch || envelope.from_session == 0 ||
      !addressed) {
    ++counters_.refused_frames;
    return false;
  }
  if (peer_session_ == 0) {
    peer_session_ = envelope.from_session;
  }
  if (envelope.from_session != peer_session_) {
    ++counters_.refused_frames;
    failure_ = absl::UnavailableError(
        fmt::format("the worker of rank {} was restarted (session {:016x} became {:016x}) and has lost the messages "
                    "of epoch {}; a new epoch is needed",
                    options_.peer_rank, peer_session_, envelope.from_session, options_.epoch));
    return false;
  }
  return true;
}

std::optional<DecodedFrame> ReliableStream::Hear(int64_t now_ns, absl::StatusOr<DecodedFrame> frame) {
  if (!frame.ok()) {
    OnDamage(now_ns, nullptr);
    return std::nullopt;
  }
  if (!failure_.ok() || !Admit(*frame)) {
    return std::nullopt;
  }
  if (waiting_since_ns_ != kNeverNs) {
    waiting_since_ns_ = now_ns;
  }
  const int64_t sent_ns = frame->sent_ns();
  if (sent_ns > peer_sent_ns_) {
    peer_sent_ns_ = sent_ns;
    peer_sent_arrived_ns_ = now_ns;
  }
  clock_meter_.OnArrival(now_ns, sent_ns);
  return *std::move(frame);
}

void ReliableStream::OnFrame(int64_t now_ns, const Frame& frame) {
  ++counters_.frames_received;
  counters_.bytes_received += static_cast<int64_t>(frame.header.size() + frame.payload.size());
  const std::optional<DecodedFrame> heard = Hear(now_ns, DecodeFrame(frame.header, frame.payload));
  if (!heard.has_value()) {
    return;
  }
  if (heard->type == FrameType::kControl) {
    OnControl(now_ns, heard->control, frame.ready_ns);
    return;
  }
  if (heard->type == FrameType::kNack) {
    OnNack(now_ns, heard->nack);
    return;
  }
  const auto found = incoming_.find(heard->data.channel);
  if (found == incoming_.end()) {
    ++counters_.refused_frames;
    return;
  }
  if (heard->payload_damaged) {
    OnDamage(now_ns, &heard->data);
    return;
  }
  data_ready_ns_ = std::max(data_ready_ns_, frame.ready_ns);
  Note(found->second, found->second.channel.OnData(heard->data, frame.payload, frame.ready_ns));
}

void ReliableStream::OnDamage(int64_t now_ns, const DataHeader* data) {
  ++counters_.corrupt_frames;
  if (nacked_.size() >= NackBudget::kAtOnce || !asks_.Take(now_ns)) {
    return;
  }
  if (data == nullptr) {
    unnamed_nack_due_ = true;
  } else {
    nacked_.push_back(
        {.channel = data->channel, .sequence = data->sequence, .offset = data->offset, .sent_ns = data->sent_ns});
  }
}

void ReliableStream::OnNack(int64_t now_ns, const NackHeader& nack) {
  for (const NackedChunk& chunk : nack.chunks) {
    const auto found = outgoing_.find(chunk.channel);
    if (found == outgoing_.end()) {
      ++counters_.refused_frames;
      return;
    }
    if (!answers_.Take(now_ns)) {
      return;
    }
    found->second.OnNack(chunk);
  }
  if (nack.unnamed && answers_.Take(now_ns)) {
    damaged_before_ns_ = now_ns;
    probe_due_ = true;
    RequestStates();
  }
}

void ReliableStream::Note(Incoming& incoming, Arrival arrival) {
  switch (arrival) {
    case Arrival::kInOrder:
      ++incoming.chunks_since_state;
      incoming.state_due |= incoming.chunks_since_state >= options_.ack_every_chunks;
      return;
    case Arrival::kWhole:
      incoming.has_delivery = true;
      incoming.state_due = true;
      return;
    case Arrival::kGap:
      incoming.state_due = true;
      return;
    case Arrival::kDuplicate:
      ++counters_.duplicate_frames;
      incoming.state_due = true;
      return;
    case Arrival::kRefused:
      ++counters_.refused_frames;
      return;
  }
}

}  // namespace geopipe
