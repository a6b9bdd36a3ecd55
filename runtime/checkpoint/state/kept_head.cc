#include "runtime/checkpoint/state/kept_head.h"

#include <unistd.h>

#include <cerrno>

#include "optimizer/base/status_macros.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/files.h"

namespace geopipe {

uint32_t ChecksumOf(const KeptHead& head, std::span<const std::byte> layout) {
  const auto of = [](const auto& field, uint32_t crc) { return Crc32c(std::as_bytes(std::span(&field, 1)), crc); };
  return Crc32c(layout, of(head.layout_bytes, of(head.rank, of(head.run_incarnation, 0))));
}

uint32_t SumOf(const StateIdentity& state) {
  const std::array<uint64_t, 2> words{static_cast<uint64_t>(state.iteration), state.epoch};
  return Crc32c(std::as_bytes(std::span(words)));
}

uint32_t SumOf(const StateIdentity& state, const std::byte* room, const std::vector<KeptTensor>& tensors) {
  uint32_t sum = SumOf(state);
  for (const KeptTensor& tensor : tensors) {
    for (int64_t number = 0; number < 3; ++number) {
      const std::byte* from = room + tensor.offset + number * tensor.room_bytes();
      sum = Crc32c({from, static_cast<size_t>(tensor.bytes())}, sum);
    }
  }
  return sum;
}

absl::Status WriteAt(int fd, int64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd, bytes.data(), bytes.size(), at);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return ErrnoStatus(written < 0 ? errno : EIO, "cannot write to the memory for states");
    }
    at += written;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status WriteSlot(int fd, int64_t at, const KeptSlot& slot) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(&slot, 1));
  constexpr size_t kOrderBytes = sizeof(slot.order);
  GP_RETURN_IF_ERROR(WriteAt(fd, at + static_cast<int64_t>(kOrderBytes), bytes.subspan(kOrderBytes)));
  return WriteAt(fd, at, bytes.first(kOrderBytes));
}

}  // namespace geopipe
