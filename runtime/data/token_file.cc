#include "runtime/data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/format_of_file.h"
#include "runtime/data/token_statistics.h"

namespace geopipe {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read without conversion");

template <class Element>
class TokenFile final : public Corpus {
 public:
  TokenFile(DataFiles files, int64_t vocab_size) : files_(std::move(files)), vocab_size_(vocab_size) {}

  // Looks at all blocks before it reports a token outside the vocabulary, since what contradicts the dtype explains it.
  absl::Status Sample() {
    TokenStatistics statistics;
    absl::Status outside;
    const auto look = [&](int64_t offset, std::span<const std::byte> bytes) {
      statistics.Add(offset, bytes);
      outside.Update(CheckTokens(offset, bytes));
      return absl::OkStatus();
    };
    GP_ASSIGN_OR_RETURN(const uint32_t checksum, SampledChecksum(*this, look));
    const std::string contradiction = statistics.Contradiction(kDtype, vocab_size_, !outside.ok());
    if (!contradiction.empty()) {
      return absl::InvalidArgumentError(fmt::format("{}: {}", files_.path_of(0), contradiction));
    }
    fingerprint_ = {.bytes = files_.bytes(), .checksum = checksum};
    return outside;
  }

  int64_t tokens() const override { return files_.bytes() / kElementBytes; }

  absl::Status Copy(int64_t first, std::span<int32_t> out) const override {
    GP_CHECK(first >= 0 && first + std::ssize(out) <= tokens(), "window at {} of {}", first, tokens());
    std::vector<Element> read(out.size());
    GP_RETURN_IF_ERROR(files_.Read(first * kElementBytes, std::as_writable_bytes(std::span(read))));
    GP_RETURN_IF_ERROR(Check(first, read));
    std::ranges::copy(read, out.begin());
    return absl::OkStatus();
  }

  absl::Status CheckTokens(int64_t offset, std::span<const std::byte> bytes) const override {
    GP_CHECK(offset % kElementBytes == 0 && std::ssize(bytes) % kElementBytes == 0, "{} bytes at {}", bytes.size(),
             offset);
    return Check(offset / kElementBytes,
                 {reinterpret_cast<const Element*>(bytes.data()), bytes.size() / sizeof(Element)});
  }

  const DataFiles& files() const override { return files_; }
  const DataFingerprint& fingerprint() const override { return fingerprint_; }

 private:
  static constexpr int64_t kElementBytes = sizeof(Element);
  static constexpr TokenDtype kDtype = sizeof(Element) == 2 ? TokenDtype::kUint16 : TokenDtype::kUint32;

  absl::Status Check(int64_t first, std::span<const Element> tokens) const {
    const auto greatest = std::ranges::max_element(tokens);
    if (greatest == tokens.end() || static_cast<int64_t>(*greatest) < vocab_size_) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(fmt::format(
        "{}: token {} at position {} is outside model.vocab_size {}; was the file made with another tokenizer, or with "
        "another data.dtype than {}-bit?",
        files_.path_of(0), *greatest, first + (greatest - tokens.begin()), vocab_size_, 8 * kElementBytes));
  }

  const DataFiles files_;
  const int64_t vocab_size_;
  DataFingerprint fingerprint_;
};

template <class Element>
absl::StatusOr<std::unique_ptr<Corpus>> Open(DataFiles files, int64_t vocab_size) {
  auto corpus = std::make_unique<TokenFile<Element>>(std::move(files), vocab_size);
  GP_RETURN_IF_ERROR(corpus->Sample());
  return corpus;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Corpus>> OpenTokenFile(const std::string& path, TokenDtype dtype, int64_t vocab_size) {
  GP_RETURN_IF_ERROR(CheckFlatTokens(path));
  GP_ASSIGN_OR_RETURN(DataFiles files, DataFiles::Open({path}));
  const int64_t element_bytes = dtype == TokenDtype::kUint16 ? 2 : 4;
  if (files.bytes() == 0) {
    return absl::InvalidArgumentError(fmt::format("{}: the file is empty; data.path must hold tokens", path));
  }
  if (files.bytes() % element_bytes != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: {} bytes are not a whole number of uint{} tokens; the file is cut short, or data.dtype is wrong", path,
        files.bytes(), 8 * element_bytes));
  }
  return dtype == TokenDtype::kUint16 ? Open<uint16_t>(std::move(files), vocab_size)
                                      : Open<uint32_t>(std::move(files), vocab_size);
}

}  // namespace geopipe
