#include "agent/kept/keeper_table.h"

#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "optimizer/base/check.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/thread_name.h"

namespace geopipe::agent {
namespace {

constexpr size_t kMaxTableBytes = size_t{64} << 20;

// Reads the table at `path`; an empty one when there is none.
absl::StatusOr<v1::KeeperTable> ParseTable(const std::string& path) {
  v1::KeeperTable table;
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxTableBytes);
  if (absl::IsNotFound(text.status()) || (text.ok() && table.ParseFromString(*text))) {
    return table;
  }
  return absl::DataLossError(fmt::format("{} cannot be read ({}); workers of an earlier keeper are not known", path,
                                         text.ok() ? "it is damaged" : std::string(text.status().message())));
}

}  // namespace

std::string KeeperTablePath(const std::string& state_dir) { return state_dir + "/keeper.table"; }

absl::Status CheckKeeperTable(const std::string& state_dir) { return ParseTable(KeeperTablePath(state_dir)).status(); }

v1::KeeperTable ReadKeeperTable(const std::string& state_dir) {
  absl::StatusOr<v1::KeeperTable> table = ParseTable(KeeperTablePath(state_dir));
  if (!table.ok()) {
    LogError("{}", std::string(table.status().message()));
    return {};
  }
  return *std::move(table);
}

TableWriter::TableWriter(std::string path)
    : path_(std::move(path)), done_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { Loop(); }) {
  GP_CHECK(done_.valid(), "eventfd failed, errno {}", errno);
}

TableWriter::~TableWriter() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  more_.notify_one();
  thread_.join();
}

void TableWriter::Write(uint64_t version, std::string table) {
  {
    const std::lock_guard lock(mutex_);
    waiting_ = {version, std::move(table)};
  }
  more_.notify_one();
}

TableWriter::Written TableWriter::Take() {
  uint64_t count = 0;
  const ssize_t ignored = read(done_.get(), &count, sizeof(count));
  (void)ignored;
  const std::lock_guard lock(mutex_);
  return written_;
}

void TableWriter::Loop() {
  NameThisThread("table");
  std::unique_lock lock(mutex_);
  while (true) {
    more_.wait(lock, [this] { return closed_ || waiting_.has_value(); });
    if (!waiting_.has_value()) {
      return;
    }
    const auto [version, table] = *std::exchange(waiting_, std::nullopt);
    lock.unlock();
    absl::Status status = WriteFileAtomically(path_, table);
    lock.lock();
    written_ = {version, std::move(status)};
    const uint64_t one = 1;
    const ssize_t ignored = write(done_.get(), &one, sizeof(one));  // fails only when it is readable anyway
    (void)ignored;
  }
}

}  // namespace geopipe::agent
