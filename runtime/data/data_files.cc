#include "runtime/data/data_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

constexpr int64_t kWholeUpToBytes = int64_t{16} << 20;
constexpr int64_t kBlocks = 512;
constexpr int64_t kBlockBytes = 4096;
constexpr int64_t kMinWholeUpToBytes = int64_t{64} << 10;
constexpr int64_t kMinBlocks = 16;  // of which the whole is at least as long

}  // namespace

std::vector<ByteRange> SampledBlocks(int64_t bytes, int64_t files) {
  if (bytes <= std::max(kWholeUpToBytes / files, kMinWholeUpToBytes)) {
    return {{0, bytes}};
  }
  const int64_t count = std::max(kBlocks / files, kMinBlocks);
  const int64_t stride = (bytes - kBlockBytes) / (count - 1) / kBlockBytes * kBlockBytes;
  std::vector<ByteRange> blocks;
  blocks.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count - 1; ++i) {
    blocks.push_back({i * stride, i * stride + kBlockBytes});
  }
  blocks.push_back({bytes - kBlockBytes, bytes});
  return blocks;
}

absl::StatusOr<DataFiles> DataFiles::Open(const std::vector<std::string>& paths) {
  DataFiles data;
  data.files_.reserve(paths.size());
  for (const std::string& path : paths) {
    GP_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
    File& added =
        data.files_.emplace_back(File{.path = path, .begin = data.bytes_, .bytes = file.bytes(), .open = std::nullopt});
    data.bytes_ += added.bytes;
    if (data.files_.size() <= kMaxOpen) {
      added.open = std::move(file);
    }
  }
  return data;
}

// Empty files begin where the next one does, so the last that begins there is the one that holds the byte.
std::vector<DataFiles::File>::const_iterator DataFiles::At(int64_t offset) const {
  return std::ranges::upper_bound(files_, offset, {}, &File::begin) - 1;
}

absl::Status DataFiles::Read(int64_t offset, std::span<std::byte> out) const {
  GP_CHECK(offset >= 0 && offset + std::ssize(out) <= bytes_, "{} bytes at {} of {}", out.size(), offset, bytes_);
  while (!out.empty()) {
    const File& file = *At(offset);
    const int64_t within = offset - file.begin;
    const int64_t count = std::min<int64_t>(std::ssize(out), file.bytes - within);
    GP_RETURN_IF_ERROR(ReadFrom(file, within, out.first(count)));
    out = out.subspan(count);
    offset += count;
  }
  return absl::OkStatus();
}

absl::Status DataFiles::ReadFrom(const File& file, int64_t offset, std::span<std::byte> out) {
  if (file.open.has_value()) {
    return file.open->Read(offset, out);
  }
  GP_ASSIGN_OR_RETURN(const InputFile reopened, InputFile::Open(file.path));
  if (reopened.bytes() != file.bytes) {
    return absl::DataLossError(fmt::format("{}: the file had {} bytes when it was opened, and has {} now; restore it",
                                           file.path, file.bytes, reopened.bytes()));
  }
  return reopened.Read(offset, out);
}

}  // namespace geopipe
