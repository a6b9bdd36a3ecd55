// A file mapped read-only into memory.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <span>
#include <string>

namespace geopipe {

// Move-only. The file must not shrink while it is mapped (as with every mapping, that ends the process by SIGBUS).
class MappedFile {
 public:
  // Maps the file; an empty one is mapped as no bytes. Errors name the path: those of InputFile::Open;
  // ResourceExhausted (the system refuses another mapping).
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes) : path_(std::move(path)), bytes_(bytes) {}

  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace geopipe
