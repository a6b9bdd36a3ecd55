#include "runtime/data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/mapped_file.h"

namespace geopipe {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read without conversion");

// Checksum and vocabulary check go over the file together, in pieces that stay in the cache between the two.
constexpr size_t kPieceBytes = size_t{1} << 18;

// A mapping begins on a page and tokens are naturally aligned in it, so that it can be read in place.
template <class Element>
std::span<const Element> AsTokens(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const Element*>(bytes.data()), bytes.size() / sizeof(Element)};
}

template <class Element>
class TokenFile final : public Corpus {
 public:
  TokenFile(MappedFile file, const DataFingerprint& fingerprint)
      : file_(std::move(file)), tokens_(AsTokens<Element>(file_.bytes())), fingerprint_(fingerprint) {}

  int64_t tokens() const override { return static_cast<int64_t>(tokens_.size()); }
  void Copy(int64_t first, std::span<int32_t> out) const override {
    GP_CHECK(first >= 0 && first + static_cast<int64_t>(out.size()) <= tokens(), "window at {} of {}", first, tokens());
    std::ranges::copy(tokens_.subspan(first, out.size()), out.begin());
  }
  const DataFingerprint& fingerprint() const override { return fingerprint_; }

 private:
  MappedFile file_;
  std::span<const Element> tokens_;
  DataFingerprint fingerprint_;
};

template <class Element>
absl::StatusOr<std::unique_ptr<Corpus>> Open(MappedFile file, int64_t vocab_size) {
  uint32_t crc = 0;
  const std::span<const std::byte> bytes = file.bytes();
  for (size_t offset = 0; offset < bytes.size(); offset += kPieceBytes) {
    const std::span<const std::byte> piece = bytes.subspan(offset, std::min(kPieceBytes, bytes.size() - offset));
    crc = Crc32c(piece, crc);
    const std::span<const Element> tokens = AsTokens<Element>(piece);
    const auto greatest = std::ranges::max_element(tokens);
    if (static_cast<int64_t>(*greatest) >= vocab_size) {
      return absl::InvalidArgumentError(fmt::format(
          "{}: token {} at position {} is outside model.vocab_size {}; was the file made with another tokenizer, or "
          "with another data.dtype than {}-bit?",
          file.path(), *greatest, offset / sizeof(Element) + (greatest - tokens.begin()), vocab_size,
          8 * sizeof(Element)));
    }
  }
  const DataFingerprint fingerprint{static_cast<int64_t>(bytes.size()), crc};
  return std::make_unique<TokenFile<Element>>(std::move(file), fingerprint);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Corpus>> OpenTokenFile(const std::string& path, TokenDtype dtype, int64_t vocab_size) {
  GP_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  const size_t element_bytes = dtype == TokenDtype::kUint16 ? 2 : 4;
  if (file.bytes().empty()) {
    return absl::InvalidArgumentError(fmt::format("{}: the file is empty; data.path must hold tokens", path));
  }
  if (file.bytes().size() % element_bytes != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: {} bytes are not a whole number of uint{} tokens; the file is cut short, or data.dtype is wrong", path,
        file.bytes().size(), 8 * element_bytes));
  }
  return dtype == TokenDtype::kUint16 ? Open<uint16_t>(std::move(file), vocab_size)
                                      : Open<uint32_t>(std::move(file), vocab_size);
}

}  // namespace geopipe
