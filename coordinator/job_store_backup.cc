#include "coordinator/job_store_backup.h"

#include <fmt/format.h>

#include <cstddef>
#include <ctime>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>

#include "coordinator/job_store.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/files.h"

namespace geopipe {
namespace {

constexpr size_t kMaxBackupBytes = size_t{4} << 30;

// "20261129T024700Z".
std::string UtcStamp(int64_t unix_ns) {
  const std::time_t seconds = unix_ns / 1'000'000'000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string ChecksumText(std::string_view content) {
  return fmt::format("{:08x}", Crc32c(std::as_bytes(std::span(content.data(), content.size()))));
}

}  // namespace

absl::StatusOr<std::string> MakeBackup(const std::string& store, int64_t now_unix_ns,
                                       const std::function<absl::Status(const std::string& path)>& copy) {
  const std::string folder = (std::filesystem::path(store).parent_path() / "backups").string();
  const std::string part = folder + "/being-written";
  GP_RETURN_IF_ERROR(MakeFolder(folder));
  std::error_code error;
  std::filesystem::remove(part, error);
  GP_RETURN_IF_ERROR(copy(part));
  GP_ASSIGN_OR_RETURN(const std::string content, ReadFile(part, kMaxBackupBytes));
  std::string path = fmt::format("{}/jobs-{}-{}.sqlite", folder, UtcStamp(now_unix_ns), ChecksumText(content));
  GP_RETURN_IF_ERROR(WriteFileAtomically(path, content));
  std::filesystem::remove(part, error);
  return path;
}

absl::StatusOr<std::string> RestoreJobStore(const std::string& backup, const std::string& path, int64_t now_unix_ns) {
  GP_ASSIGN_OR_RETURN(const std::string content, ReadFile(backup, kMaxBackupBytes));
  const std::string stem = std::filesystem::path(backup).stem().string();
  const std::string sum = ChecksumText(content);
  if (stem.starts_with("jobs-") && !stem.ends_with("-" + sum)) {
    return absl::DataLossError(fmt::format(
        "{} is not what was written: its checksum is {}, not the one in its name; take another backup", backup, sum));
  }
  std::string aside;
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    // A store that opens is held by nobody, and so is a damaged one.
    const absl::Status held = JobStore::Open(path, {.busy_timeout_ns = 0}).status();
    if (absl::IsUnavailable(held)) {
      return held;
    }
    aside = fmt::format("{}.before-{}", path, UtcStamp(now_unix_ns));
    for (const std::string_view part : {"", "-wal", "-shm"}) {
      std::filesystem::rename(path + std::string(part), aside + std::string(part), error);
      if (error && part.empty()) {
        return ErrnoStatus(error.value(), fmt::format("cannot move {} to {}", path, aside));
      }
    }
  }
  GP_RETURN_IF_ERROR(MakeFolder(std::filesystem::path(path).parent_path()));
  GP_RETURN_IF_ERROR(WriteFileAtomically(path, content));
  // It is whole, ours, and of a schema that this version knows.
  GP_RETURN_IF_ERROR(JobStore::Open(path).status());
  return aside;
}

}  // namespace geopipe
