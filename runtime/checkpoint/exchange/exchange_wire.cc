#include "runtime/checkpoint/exchange/exchange_wire.h"

#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/ids.h"

namespace geopipe {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kExchangeMagic = 0x31585047;  // "GPX1"
constexpr size_t kMaxTextBytes = 255;            // of a site or a name

class MessageWriter {
 public:
  template <class Value>
  MessageWriter& Add(const Value& value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
    return *this;
  }
  MessageWriter& AddText(const std::string& text) {
    GP_CHECK(text.size() <= kMaxTextBytes, "a text of {} bytes", text.size());
    Add(static_cast<uint16_t>(text.size()));
    const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  absl::Status Send(TcpStream& stream, int64_t deadline_ns) const { return stream.Send(bytes_, deadline_ns); }

 private:
  std::vector<std::byte> bytes_;
};

class MessageReader {
 public:
  MessageReader(TcpStream& stream, int64_t deadline_ns) : stream_(stream), deadline_ns_(deadline_ns) {}

  template <class Value>
  absl::Status Take(Value& value) {
    return stream_.Receive(std::as_writable_bytes(std::span(&value, 1)), deadline_ns_);
  }
  absl::Status TakeMagic() {
    uint32_t magic = 0;
    GP_RETURN_IF_ERROR(Take(magic));
    return magic == kExchangeMagic
               ? absl::OkStatus()
               : absl::InvalidArgumentError("what is there is another program or another version of this one");
  }
  absl::Status TakeText(std::string& text) {
    uint16_t bytes = 0;
    GP_RETURN_IF_ERROR(Take(bytes));
    if (bytes > kMaxTextBytes) {
      return absl::InvalidArgumentError("a text that is longer than any of this version");
    }
    text.resize(bytes);
    return stream_.Receive(std::as_writable_bytes(std::span(text)), deadline_ns_);
  }

 private:
  TcpStream& stream_;
  const int64_t deadline_ns_;
};

}  // namespace

ExchangeNonce FreshNonce() {
  ExchangeNonce nonce{};
  const std::string random = RandomBytes(nonce.size());
  std::memcpy(nonce.data(), random.data(), nonce.size());
  return nonce;
}

Proof ExchangeProof(const std::string& secret, ExchangeSide side, const ExchangeGreeting& greeting,
                    const ExchangeNonce& server_nonce) {
  MessageWriter statement;
  statement.Add(kExchangeMagic).Add(side).Add(greeting.nonce).Add(server_nonce).AddText(greeting.site);
  return MakeProof(secret, statement.bytes());
}

absl::Status SendMessage(TcpStream& stream, const ExchangeGreeting& greeting, int64_t deadline_ns) {
  return MessageWriter().Add(kExchangeMagic).Add(greeting.nonce).AddText(greeting.site).Send(stream, deadline_ns);
}

absl::Status SendMessage(TcpStream& stream, const ExchangeChallenge& challenge, int64_t deadline_ns) {
  return MessageWriter().Add(kExchangeMagic).Add(challenge.nonce).Add(challenge.proof).Send(stream, deadline_ns);
}

absl::Status SendMessage(TcpStream& stream, const FileRequest& request, int64_t deadline_ns) {
  return MessageWriter().Add(request.iteration).Add(request.offset).AddText(request.name).Send(stream, deadline_ns);
}

absl::Status SendMessage(TcpStream& stream, const FileAnswer& answer, int64_t deadline_ns) {
  return MessageWriter().Add(answer.verdict).Add(answer.bytes).Send(stream, deadline_ns);
}

absl::StatusOr<ExchangeGreeting> ReceiveGreeting(TcpStream& stream, int64_t deadline_ns) {
  MessageReader reader(stream, deadline_ns);
  ExchangeGreeting greeting;
  GP_RETURN_IF_ERROR(reader.TakeMagic());
  GP_RETURN_IF_ERROR(reader.Take(greeting.nonce));
  GP_RETURN_IF_ERROR(reader.TakeText(greeting.site));
  return greeting;
}

absl::StatusOr<ExchangeChallenge> ReceiveChallenge(TcpStream& stream, int64_t deadline_ns) {
  MessageReader reader(stream, deadline_ns);
  ExchangeChallenge challenge;
  GP_RETURN_IF_ERROR(reader.TakeMagic());
  GP_RETURN_IF_ERROR(reader.Take(challenge.nonce));
  GP_RETURN_IF_ERROR(reader.Take(challenge.proof));
  return challenge;
}

absl::StatusOr<FileRequest> ReceiveRequest(TcpStream& stream, int64_t deadline_ns) {
  MessageReader reader(stream, deadline_ns);
  FileRequest request;
  GP_RETURN_IF_ERROR(reader.Take(request.iteration));
  GP_RETURN_IF_ERROR(reader.Take(request.offset));
  GP_RETURN_IF_ERROR(reader.TakeText(request.name));
  return request;
}

absl::StatusOr<FileAnswer> ReceiveAnswer(TcpStream& stream, int64_t deadline_ns) {
  MessageReader reader(stream, deadline_ns);
  FileAnswer answer;
  GP_RETURN_IF_ERROR(reader.Take(answer.verdict));
  GP_RETURN_IF_ERROR(reader.Take(answer.bytes));
  const bool is_text = answer.verdict == FileVerdict::kNotFound || answer.verdict == FileVerdict::kRefused ||
                       answer.verdict == FileVerdict::kUnavailable;
  if ((!is_text && answer.verdict != FileVerdict::kSent) || answer.bytes < 0 ||
      (is_text && answer.bytes > FileAnswer::kMaxTextBytes)) {
    return absl::InvalidArgumentError("an answer that is none of this version");
  }
  return answer;
}

}  // namespace geopipe
