#include "agent/kept/worker_log.h"

#include <absl/status/statusor.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/utf8.h"

namespace geopipe::agent {

namespace fs = std::filesystem;

int64_t FileSize(const std::string& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

void MoveLogAside(const std::string& path, int64_t max_bytes) {
  if (FileSize(path) > max_bytes) {
    std::error_code ignored;
    fs::rename(path, path + ".1", ignored);
  }
}

bool CutLog(const std::string& path, int64_t max_bytes) {
  if (FileSize(path) <= max_bytes) {
    return false;
  }
  std::error_code error;
  fs::copy_file(path, path + ".1", fs::copy_options::overwrite_existing, error);
  if (!error) {
    fs::resize_file(path, 0, error);
  }
  if (error) {
    LogWarning("cannot rotate {}: {}", path, error.message());
  }
  return !error;
}

std::string LastWords(const std::string& path, int64_t start, size_t max_bytes) {
  const int64_t own = std::max<int64_t>(FileSize(path) - start, 0);
  if (own == 0) {
    return "";
  }
  const absl::StatusOr<std::string> words = ReadFileTail(path, std::min(max_bytes, static_cast<size_t>(own)));
  return words.ok() ? ToUtf8(*words) : "";
}

}  // namespace geopipe::agent
