#include "runtime/collective/region_handover.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"
#include "runtime/base/packet_socket.h"
#include "runtime/base/poll.h"
#include "runtime/base/proof.h"

namespace geopipe {
namespace {

constexpr size_t kNonceBytes = 32;
constexpr size_t kMaxGuests = 64;  // that have connected and not sent their request
constexpr int64_t kRetryNs = 10'000'000;

// The proof with which an end shows that it knows the secret. `what` tells the statements apart.
Proof ProofOf(const Handover& handover, std::string_view what, int32_t rank, std::string_view host_nonce,
              std::string_view guest_nonce) {
  const std::string statement = fmt::format("geopipe collective {}: {} of {} in {}{}{}", what, rank, handover.size,
                                            handover.group, host_nonce, guest_nonce);
  return MakeProof(handover.secret, std::as_bytes(std::span(statement)));
}

std::string SocketName(const Handover& handover) {
  const Proof proof = ProofOf(handover, "name", 0, "", "");
  std::string name = "@geopipe-collective-";
  for (size_t i = 0; i < proof.size() / 2; ++i) {
    name += fmt::format("{:02x}", static_cast<unsigned>(proof[i]));
  }
  return name;
}

// The guest's packet.
struct Request {
  int32_t rank = 0;
  std::array<char, kNonceBytes> nonce{};
  Proof proof{};
};

template <class T>
std::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// --- The first rank ---------------------------------------------------------------------------------------------

struct Guest {
  UniqueFd fd;
  std::string nonce;  // that it was given
};

class Host {
 public:
  Host(const Handover& handover, const UniqueFd& file) : handover_(handover), file_(file) {
    for (int32_t rank = 1; rank < handover.size; ++rank) {
      missing_.push_back(rank);
    }
  }

  absl::Status Serve() {
    GP_ASSIGN_OR_RETURN(const UniqueFd listener, ListenForPackets(SocketName(handover_)));
    while (!missing_.empty()) {
      std::vector<pollfd> polled = {{.fd = listener.get(), .events = POLLIN, .revents = 0},
                                    {.fd = handover_.stop->fd(), .events = POLLIN, .revents = 0}};
      for (const Guest& guest : guests_) {
        polled.push_back({.fd = guest.fd.get(), .events = POLLIN, .revents = 0});
      }
      const int64_t left_ns = handover_.deadline_ns - handover_.clock->NowNs();
      if (left_ns <= 0) {
        return absl::DeadlineExceededError(
            fmt::format("rank {} of {} did not join in time; it has ended, or belongs to another epoch",
                        fmt::join(missing_, ", "), handover_.group));
      }
      PollFor(polled, left_ns);
      if (handover_.stop->is_set()) {
        return absl::CancelledError("stopped");
      }
      std::erase_if(guests_, [&](const Guest& guest) { return IsServed(guest); });
      if (UniqueFd fd = AcceptPackets(listener.get()); fd.valid() && guests_.size() < kMaxGuests) {
        std::string nonce = RandomBytes(kNonceBytes);
        if (TrySendPacket(fd.get(), nonce) == PacketResult::kDone) {
          guests_.push_back({.fd = std::move(fd), .nonce = std::move(nonce)});
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  // Answers a guest's request, if it has come; true when the guest is done.
  bool IsServed(const Guest& guest) {
    std::string packet;
    const PacketResult result = TryReceivePacket(guest.fd.get(), sizeof(Request), packet);
    if (result == PacketResult::kWait) {
      return false;
    }
    Request request;
    if (result == PacketResult::kDone && packet.size() == sizeof(request)) {
      std::memcpy(&request, packet.data(), sizeof(request));
      const std::string_view nonce(request.nonce.data(), request.nonce.size());
      if (SameProof(request.proof, ProofOf(handover_, "join", request.rank, guest.nonce, nonce)) &&
          std::erase(missing_, request.rank) > 0) {
        const Proof answer = ProofOf(handover_, "region", request.rank, guest.nonce, nonce);
        if (TrySendPacketAndFile(guest.fd.get(), BytesOf(answer), file_.get()) == PacketResult::kDone) {
          return true;
        }
        missing_.push_back(request.rank);  // it has gone
      }
    }
    LogWarning("refused a process that asked for the shared memory of {}", handover_.group);
    return true;
  }

  const Handover& handover_;
  const UniqueFd& file_;
  std::list<Guest> guests_;
  std::vector<int32_t> missing_;
};

// --- The others -------------------------------------------------------------------------------------------------

absl::Status Late(const Handover& handover) {
  return absl::DeadlineExceededError(
      fmt::format("rank 0 of {} did not answer rank {} in time; it has ended, or belongs to another epoch",
                  handover.group, handover.rank));
}

absl::StatusOr<UniqueFd> Connect(const Handover& handover) {
  const std::string name = SocketName(handover);
  StoppableClock clock(*handover.clock, *handover.stop);
  while (true) {
    absl::StatusOr<UniqueFd> fd = ConnectPackets(name);
    if (fd.ok() || absl::IsPermissionDenied(fd.status())) {
      return fd;
    }
    const int64_t now_ns = clock.NowNs();
    if (handover.stop->is_set()) {
      return absl::CancelledError("stopped");
    }
    if (now_ns >= handover.deadline_ns) {
      return Late(handover);
    }
    clock.SleepUntilNs(std::min(handover.deadline_ns, now_ns + kRetryNs));  // it is not there yet
  }
}

// Waits for the next packet of `bytes` bytes and the file that comes with it.
absl::Status AwaitPacket(const Handover& handover, int fd, size_t bytes, std::string& packet, UniqueFd& file) {
  std::array polled{pollfd{.fd = fd, .events = POLLIN, .revents = 0},
                    pollfd{.fd = handover.stop->fd(), .events = POLLIN, .revents = 0}};
  if (PollFor(polled, std::max<int64_t>(0, handover.deadline_ns - handover.clock->NowNs())) == 0) {
    return Late(handover);
  }
  if (handover.stop->is_set()) {
    return absl::CancelledError("stopped");
  }
  if (TryReceivePacketAndFile(fd, bytes, packet, file) != PacketResult::kDone || packet.size() != bytes) {
    return absl::PermissionDeniedError(
        fmt::format("rank 0 of {} refused rank {}: it is there already, or the secrets differ; start the epoch anew",
                    handover.group, handover.rank));
  }
  return absl::OkStatus();
}

absl::StatusOr<SharedRegion> Join(const Handover& handover) {
  GP_ASSIGN_OR_RETURN(const UniqueFd fd, Connect(handover));
  std::string host_nonce;
  UniqueFd file;
  GP_RETURN_IF_ERROR(AwaitPacket(handover, fd.get(), kNonceBytes, host_nonce, file));
  Request request{.rank = handover.rank};
  const std::string nonce = RandomBytes(kNonceBytes);
  std::ranges::copy(nonce, request.nonce.begin());
  request.proof = ProofOf(handover, "join", handover.rank, host_nonce, nonce);
  TrySendPacket(fd.get(), BytesOf(request));  // an error shows in the answer
  std::string answer;
  GP_RETURN_IF_ERROR(AwaitPacket(handover, fd.get(), sizeof(Proof), answer, file));
  Proof proof{};
  std::memcpy(proof.data(), answer.data(), proof.size());
  if (!SameProof(proof, ProofOf(handover, "region", handover.rank, host_nonce, nonce)) || !file.valid()) {
    return absl::PermissionDeniedError(
        fmt::format("what answers rank {} as rank 0 of {} does not know the secret", handover.rank, handover.group));
  }
  return SharedRegion::Map(file, handover.size);
}

}  // namespace

absl::StatusOr<SharedRegion> ShareRegion(const Handover& handover) {
  GP_CHECK(handover.size >= 2 && handover.rank >= 0 && handover.rank < handover.size, "rank {} of {}", handover.rank,
           handover.size);
  if (handover.rank > 0) {
    return Join(handover);
  }
  GP_ASSIGN_OR_RETURN(auto made, SharedRegion::Create(handover.size));
  GP_RETURN_IF_ERROR(Host(handover, made.second).Serve());
  return std::move(made.first);
}

}  // namespace geopipe
