// The handshake by which two workers prove that they belong to the same epoch of the same job, before a frame passes:
//
//   dialer    hello      job, epoch, ranks, the dialer's connection id
//   listener  challenge  the listener's connection id, and its proof
//   dialer    proof      its proof
//   listener  welcome, or refusal; the dialer does not wait for it with its first frames
//   either    goodbye: it closes on purpose and will not be back
//   dialer    ping: it has heard nothing for a while
//   listener  pong
//
// The connections of one path carry its number, which the dialer makes: a connection of a higher number takes the place
// of all of a lower one.
//
// A proof is HMAC-SHA-256 under the epoch's secret over the side and everything said in hello and challenge; the
// connection ids are random and fresh, so no proof serves twice, and the secret itself never travels.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/proof.h"

namespace geopipe {

// Active message numbers between workers. Part of the wire format.
inline constexpr unsigned kHandshakeMessageId = 1;
inline constexpr unsigned kFrameMessageId = 2;

enum class HandshakeKind : uint8_t { kHello = 1, kChallenge, kProof, kWelcome, kRefusal, kGoodbye, kPing, kPong };

struct HandshakeMessage {
  HandshakeKind kind = HandshakeKind::kHello;
  uint64_t job_hash = 0;
  uint64_t epoch = 0;
  int32_t dialer_rank = 0;
  int32_t listener_rank = 0;
  uint64_t path = 0;
  uint64_t dialer_id = 0;    // of the connection, chosen by its end: the other end names it in its messages
  uint64_t listener_id = 0;  // 0 in hello
  Proof proof{};             // zero where there is none
};

std::vector<std::byte> EncodeHandshake(const HandshakeMessage& message);
// InvalidArgument if the bytes are no handshake of this version.
absl::StatusOr<HandshakeMessage> DecodeHandshake(std::span<const std::byte> bytes);

enum class HandshakeSide : uint8_t { kDialer = 1, kListener = 2 };

// The proof `side` gives for the connection described by `message`'s other fields (whatever its kind).
Proof MakeProof(std::string_view secret, HandshakeSide side, const HandshakeMessage& message);

}  // namespace geopipe
