#include "runtime/transport/ucx/handshake.h"

#include <fmt/format.h>

#include <cstring>

namespace geopipe {
namespace {

constexpr uint32_t kHandshakeMagic = 0x32485047;  // "GPH2"
constexpr size_t kMessageBytes = 4 + 1 + 8 + 8 + 4 + 4 + 8 + 8 + 8 + 32;

template <class Number>
void Append(std::vector<std::byte>& bytes, Number value) {
  const size_t at = bytes.size();
  bytes.resize(at + sizeof value);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

template <class Number>
void Take(std::span<const std::byte>& bytes, Number& value) {
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes = bytes.subspan(sizeof value);
}

// Visits the fields that both ends sign, in the order of the wire.
template <class Message, class Visit>
void VisitFields(Message& message, Visit visit) {
  visit(message.job_hash);
  visit(message.epoch);
  visit(message.dialer_rank);
  visit(message.listener_rank);
  visit(message.path);
  visit(message.dialer_id);
  visit(message.listener_id);
}

void AppendFields(std::vector<std::byte>& bytes, const HandshakeMessage& message) {
  VisitFields(message, [&](auto field) { Append(bytes, field); });
}

}  // namespace

std::vector<std::byte> EncodeHandshake(const HandshakeMessage& message) {
  std::vector<std::byte> bytes;
  bytes.reserve(kMessageBytes);
  Append(bytes, kHandshakeMagic);
  Append(bytes, static_cast<uint8_t>(message.kind));
  AppendFields(bytes, message);
  bytes.insert(bytes.end(), message.proof.begin(), message.proof.end());
  return bytes;
}

absl::StatusOr<HandshakeMessage> DecodeHandshake(std::span<const std::byte> bytes) {
  if (bytes.size() != kMessageBytes) {
    return absl::InvalidArgumentError(
        fmt::format("a handshake of {} bytes, where this version's has {}", bytes.size(), kMessageBytes));
  }
  uint32_t magic = 0;
  uint8_t kind = 0;
  HandshakeMessage message;
  Take(bytes, magic);
  Take(bytes, kind);
  if (magic != kHandshakeMagic || kind < static_cast<uint8_t>(HandshakeKind::kHello) ||
      kind > static_cast<uint8_t>(HandshakeKind::kPong)) {
    return absl::InvalidArgumentError("a handshake of another version or program");
  }
  message.kind = static_cast<HandshakeKind>(kind);
  VisitFields(message, [&](auto& field) { Take(bytes, field); });
  Take(bytes, message.proof);
  return message;
}

Proof MakeProof(std::string_view secret, HandshakeSide side, const HandshakeMessage& message) {
  std::vector<std::byte> statement;
  Append(statement, kHandshakeMagic);
  Append(statement, static_cast<uint8_t>(side));
  AppendFields(statement, message);
  return MakeProof(secret, statement);
}

}  // namespace geopipe
