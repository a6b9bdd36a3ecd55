#include "runtime/transport/ucx/handshake.h"

#include <catch2/catch.hpp>
#include <functional>

namespace geopipe {
namespace {

HandshakeMessage SomeMessage() {
  HandshakeMessage message;
  message.kind = HandshakeKind::kProof;
  message.job_hash = 1;
  message.epoch = 2;
  message.dialer_rank = 3;
  message.listener_rank = 4;
  message.path = 7;
  message.dialer_id = 5;
  message.listener_id = 6;
  return message;
}

TEST_CASE("a handshake reads back as written, and nothing else does") {
  HandshakeMessage message = SomeMessage();
  message.proof = MakeProof("secret", HandshakeSide::kDialer, message);
  std::vector<std::byte> bytes = EncodeHandshake(message);
  const auto read = DecodeHandshake(bytes);
  REQUIRE(read.ok());
  CHECK(read->kind == HandshakeKind::kProof);
  CHECK(read->job_hash == 1);
  CHECK(read->epoch == 2);
  CHECK(read->dialer_rank == 3);
  CHECK(read->listener_rank == 4);
  CHECK(read->path == 7);
  CHECK(read->dialer_id == 5);
  CHECK(read->listener_id == 6);
  CHECK(read->proof == message.proof);
  CHECK_FALSE(DecodeHandshake(std::span(bytes).first(bytes.size() - 1)).ok());
  bytes[0] ^= std::byte{1};
  CHECK_FALSE(DecodeHandshake(bytes).ok());
}

TEST_CASE("a proof holds for one secret, one side and one connection") {
  const Proof proof = MakeProof("secret", HandshakeSide::kDialer, SomeMessage());
  CHECK(SameProof(proof, MakeProof("secret", HandshakeSide::kDialer, SomeMessage())));
  CHECK_FALSE(SameProof(proof, MakeProof("secreu", HandshakeSide::kDialer, SomeMessage())));
  CHECK_FALSE(SameProof(proof, MakeProof("secret", HandshakeSide::kListener, SomeMessage())));
  const std::vector<std::function<void(HandshakeMessage&)>> changes{
      [](HandshakeMessage& m) { ++m.job_hash; },    [](HandshakeMessage& m) { ++m.epoch; },
      [](HandshakeMessage& m) { ++m.dialer_rank; }, [](HandshakeMessage& m) { ++m.listener_rank; },
      [](HandshakeMessage& m) { ++m.path; },        [](HandshakeMessage& m) { ++m.dialer_id; },
      [](HandshakeMessage& m) { ++m.listener_id; },
  };
  for (const auto& change : changes) {
    HandshakeMessage other = SomeMessage();
    change(other);
    CHECK_FALSE(SameProof(proof, MakeProof("secret", HandshakeSide::kDialer, other)));
  }
}

}  // namespace
}  // namespace geopipe
