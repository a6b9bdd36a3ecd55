// The protocol by which workers exchange files of checkpoints over TCP, little-endian:
//
//   client   greeting   magic, nonce, its site
//   server   challenge  magic, nonce, its proof
//   client   proof
//   client   request    iteration, file, offset; any number, each after the answer to the one before
//   server   answer     verdict, number of bytes; then these: the file from the offset to its end, or why not
//
// A proof is HMAC-SHA-256 under the run's secret over the side, both nonces and the client's site. The nonces are
// random and fresh, so no proof serves twice, and the secret itself never travels. A server that has no secret yet
// hangs up instead of challenging. After the proofs everything travels in clear, like all data on the data plane.
//
// All is bounded: a message takes at most a few hundred bytes of memory before it is checked. Receive functions return
// InvalidArgument for bytes that are no such message, else the errors of TcpStream. Deadlines as TcpStream's.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/base/proof.h"
#include "runtime/base/tcp_stream.h"

namespace geopipe {

// Piece in which a file is read, sent and paced: more urgent traffic on the link waits for one piece at most.
inline constexpr int64_t kExchangePieceBytes = int64_t{64} * 1024;

using ExchangeNonce = std::array<std::byte, 32>;

struct ExchangeGreeting {
  ExchangeNonce nonce{};
  std::string site{};  // at most 255 bytes
};

struct ExchangeChallenge {
  ExchangeNonce nonce{};
  Proof proof{};
};

struct FileRequest {
  int64_t iteration = 0;
  int64_t offset = 0;
  std::string name{};  // at most 255 bytes
};

enum class FileVerdict : uint8_t {
  kSent = 1,     // the bytes are the file's
  kNotFound,     // the server has no such file; the bytes are a sentence
  kRefused,      // it is no plain file, or the request makes no sense; the bytes are a sentence
  kUnavailable,  // the server's node cannot read its files at the moment; the bytes are a sentence
};

struct FileAnswer {
  static constexpr int64_t kMaxTextBytes = 1024;

  FileVerdict verdict = FileVerdict::kRefused;
  int64_t bytes = 0;  // at most kMaxTextBytes where it is not kSent
};

ExchangeNonce FreshNonce();

enum class ExchangeSide : uint8_t { kClient = 1, kServer = 2 };

Proof ExchangeProof(const std::string& secret, ExchangeSide side, const ExchangeGreeting& greeting,
                    const ExchangeNonce& server_nonce);

absl::Status SendMessage(TcpStream& stream, const ExchangeGreeting& greeting, int64_t deadline_ns);
absl::Status SendMessage(TcpStream& stream, const ExchangeChallenge& challenge, int64_t deadline_ns);
absl::Status SendMessage(TcpStream& stream, const FileRequest& request, int64_t deadline_ns);
absl::Status SendMessage(TcpStream& stream, const FileAnswer& answer, int64_t deadline_ns);

absl::StatusOr<ExchangeGreeting> ReceiveGreeting(TcpStream& stream, int64_t deadline_ns);
absl::StatusOr<ExchangeChallenge> ReceiveChallenge(TcpStream& stream, int64_t deadline_ns);
absl::StatusOr<FileRequest> ReceiveRequest(TcpStream& stream, int64_t deadline_ns);
absl::StatusOr<FileAnswer> ReceiveAnswer(TcpStream& stream, int64_t deadline_ns);

}  // namespace geopipe
