#include "runtime/data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/format_of_file.h"
#include "runtime/data/token_statistics.h"

namespace geopipe {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read without conversion");

template <class Element>
class TokenFiles final : public Corpus {
 public:
  TokenFiles(DataFiles files, int64_t vocab_size) : files_(std::move(files)), vocab_size_(vocab_size) {}

  absl::Status Sample() {
    uint32_t checksum = 0;
    for (size_t file = 0; files_.count() > 1 && file < files_.count(); ++file) {
      const int64_t size = files_.bytes_of(file);
      checksum = Crc32c(std::as_bytes(std::span(&size, 1)), checksum);
    }
    for (size_t file = 0; file < files_.count(); ++file) {
      GP_ASSIGN_OR_RETURN(checksum, SampleFile(file, checksum));
    }
    fingerprint_ = {.bytes = files_.bytes(), .checksum = checksum};
    return absl::OkStatus();
  }

  int64_t tokens() const override { return files_.bytes() / kElementBytes; }

  absl::Status Copy(int64_t first, std::span<int32_t> out) const override {
    GP_CHECK(first >= 0 && first + std::ssize(out) <= tokens(), "window at {} of {}", first, tokens());
    std::vector<Element> read(out.size());
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(read));
    GP_RETURN_IF_ERROR(files_.Read(first * kElementBytes, bytes));
    GP_RETURN_IF_ERROR(CheckTokens(first * kElementBytes, bytes));
    std::ranges::copy(read, out.begin());
    return absl::OkStatus();
  }

  absl::Status CheckTokens(int64_t offset, std::span<const std::byte> bytes) const override {
    GP_CHECK(offset % kElementBytes == 0 && std::ssize(bytes) % kElementBytes == 0, "{} bytes at {}", bytes.size(),
             offset);
    while (!bytes.empty()) {
      const size_t file = files_.FileAt(offset);
      const int64_t within = offset - files_.begin_of(file);
      const auto here = static_cast<size_t>(std::min(std::ssize(bytes), files_.bytes_of(file) - within));
      GP_RETURN_IF_ERROR(Check(file, within / kElementBytes,
                               {reinterpret_cast<const Element*>(bytes.data()), here / sizeof(Element)}));
      bytes = bytes.subspan(here);
      offset += static_cast<int64_t>(here);
    }
    return absl::OkStatus();
  }

  const DataFiles& files() const override { return files_; }

  std::vector<int64_t> file_tokens() const override {
    std::vector<int64_t> tokens;
    for (size_t file = 0; file < files_.count(); ++file) {
      tokens.push_back(files_.bytes_of(file) / kElementBytes);
    }
    return tokens;
  }

  const DataFingerprint& fingerprint() const override { return fingerprint_; }

 private:
  static constexpr int64_t kElementBytes = sizeof(Element);
  static constexpr TokenDtype kDtype = sizeof(Element) == 2 ? TokenDtype::kUint16 : TokenDtype::kUint32;

  // Continues the checksum. Looks at all blocks of a file before it reports a token outside the vocabulary, since what
  // contradicts the dtype explains it.
  absl::StatusOr<uint32_t> SampleFile(size_t file, uint32_t checksum) const {
    TokenStatistics statistics;
    absl::Status outside;
    const auto look = [&](int64_t offset, std::span<const std::byte> bytes) {
      statistics.Add(offset - files_.begin_of(file), bytes);
      outside.Update(CheckTokens(offset, bytes));
      return absl::OkStatus();
    };
    const std::vector<ByteRange> blocks = SampledBlocks(files_.bytes_of(file), static_cast<int64_t>(files_.count()));
    GP_ASSIGN_OR_RETURN(checksum, BlocksChecksum(files_, files_.begin_of(file), blocks, look, checksum));
    const std::string contradiction = statistics.Contradiction(kDtype, vocab_size_, !outside.ok());
    if (!contradiction.empty()) {
      return absl::InvalidArgumentError(fmt::format("{}: {}", files_.path_of(file), contradiction));
    }
    GP_RETURN_IF_ERROR(outside);
    return checksum;
  }

  absl::Status Check(size_t file, int64_t first, std::span<const Element> tokens) const {
    const auto greatest = std::ranges::max_element(tokens);
    if (greatest == tokens.end() || static_cast<int64_t>(*greatest) < vocab_size_) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(fmt::format(
        "{}: token {} at position {} is outside model.vocab_size {}; was the file made with another tokenizer, or with "
        "another data.dtype than {}-bit?",
        files_.path_of(file), *greatest, first + (greatest - tokens.begin()), vocab_size_, 8 * kElementBytes));
  }

  const DataFiles files_;
  const int64_t vocab_size_;
  DataFingerprint fingerprint_;
};

template <class Element>
absl::StatusOr<std::unique_ptr<Corpus>> Open(DataFiles files, int64_t vocab_size) {
  auto corpus = std::make_unique<TokenFiles<Element>>(std::move(files), vocab_size);
  GP_RETURN_IF_ERROR(corpus->Sample());
  return corpus;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Corpus>> OpenTokenFiles(const std::vector<std::string>& paths, TokenDtype dtype,
                                                       int64_t vocab_size) {
  GP_CHECK(!paths.empty());
  for (const std::string& path : paths) {
    GP_RETURN_IF_ERROR(CheckFlatTokens(path));
  }
  GP_ASSIGN_OR_RETURN(DataFiles files, DataFiles::Open(paths));
  const int64_t element_bytes = dtype == TokenDtype::kUint16 ? 2 : 4;
  for (size_t file = 0; file < files.count(); ++file) {
    const std::string& path = files.path_of(file);
    if (files.bytes_of(file) == 0) {
      return absl::InvalidArgumentError(fmt::format("{}: the file is empty; data.path must hold tokens", path));
    }
    if (files.bytes_of(file) % element_bytes != 0) {
      return absl::InvalidArgumentError(fmt::format(
          "{}: {} bytes are not a whole number of uint{} tokens; the file is cut short, or data.dtype is wrong", path,
          files.bytes_of(file), 8 * element_bytes));
    }
  }
  return dtype == TokenDtype::kUint16 ? Open<uint16_t>(std::move(files), vocab_size)
                                      : Open<uint32_t>(std::move(files), vocab_size);
}

}  // namespace geopipe
