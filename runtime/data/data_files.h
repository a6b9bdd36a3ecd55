// The files of a job's data as one sequence of bytes, read at any place.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/input_file.h"

namespace geopipe {

// A piece of the data.
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;  // exclusive

  int64_t bytes() const { return end - begin; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// Blocks by which two copies of a file are compared before a job starts: a function of its size, and of the number of
// `files` that are looked at, in ascending order, and so few that opening takes no time, however large the data is. Of
// a single file all up to 16 MiB; else 512 blocks of 4 KiB, among them the first and the last, at equal distances. Of
// several, each has its part of these 16 MiB and 512 blocks, but not below 64 KiB and 16. All are aligned to tokens.
std::vector<ByteRange> SampledBlocks(int64_t bytes, int64_t files = 1);

// Move-only. Any thread may read. Nothing is mapped (runtime/base/input_file.h).
class DataFiles {
 public:
  // Limit on files that stay open; further ones are opened for each read, because a process has a limit of its own.
  static constexpr size_t kMaxOpen = 256;

  // Opens the files in this order. Errors: those of InputFile::Open.
  static absl::StatusOr<DataFiles> Open(const std::vector<std::string>& paths);

  int64_t bytes() const { return bytes_; }
  size_t count() const { return files_.size(); }
  const std::string& path_of(size_t file) const { return files_[file].path; }
  int64_t bytes_of(size_t file) const { return files_[file].bytes; }
  int64_t begin_of(size_t file) const { return files_[file].begin; }
  // The file that holds the byte. REQUIRES: there is one.
  size_t FileAt(int64_t offset) const { return static_cast<size_t>(At(offset) - files_.begin()); }

  // The bytes [offset, offset + out.size()). Errors: those of InputFile; DataLoss when a file has another size than at
  // first. REQUIRES: they exist.
  absl::Status Read(int64_t offset, std::span<std::byte> out) const;

 private:
  struct File {
    std::string path;
    int64_t begin = 0;
    int64_t bytes = 0;
    std::optional<InputFile> open;
  };

  DataFiles() = default;
  // The file that holds the byte.
  std::vector<File>::const_iterator At(int64_t offset) const;
  static absl::Status ReadFrom(const File& file, int64_t offset, std::span<std::byte> out);

  std::vector<File> files_;
  int64_t bytes_ = 0;
};

}  // namespace geopipe
