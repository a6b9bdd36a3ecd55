#include "runtime/data/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/crc32c.h"
#include "runtime/data/text_corpus.h"
#include "runtime/data/token_file.h"

namespace geopipe {

absl::StatusOr<std::unique_ptr<Corpus>> OpenCorpus(const DataSpec& data, int64_t vocab_size) {
  if (data.format == DataFormat::kText) {
    if (data.tokenizer != "byte") {
      return absl::InvalidArgumentError(
          fmt::format("data.tokenizer: {} is not known; use byte, or tokenize beforehand into data.format: tokens",
                      data.tokenizer));
    }
    return OpenText(data.paths);
  }
  if (data.paths.size() != 1) {
    return absl::InvalidArgumentError(fmt::format(
        "data.path: format tokens reads exactly one file, found {}; join them into one file", data.paths.size()));
  }
  return OpenTokenFile(data.paths.front(), data.dtype, vocab_size);
}

absl::StatusOr<uint32_t> SampledChecksum(const Corpus& corpus, const BlockVisitor& visit, uint32_t crc) {
  constexpr int64_t kPieceBytes = int64_t{1} << 18;  // stays in the cache from the read to the checks
  std::vector<std::byte> buffer(std::min(kPieceBytes, corpus.files().bytes()));
  for (const ByteRange& block : SampledBlocks(corpus.files().bytes())) {
    for (int64_t begin = block.begin; begin < block.end; begin += kPieceBytes) {
      const std::span<std::byte> piece = std::span(buffer).first(std::min(kPieceBytes, block.end - begin));
      GP_RETURN_IF_ERROR(corpus.files().Read(begin, piece));
      if (visit) {
        GP_RETURN_IF_ERROR(visit(begin, piece));
      }
      crc = Crc32c(piece, crc);
    }
  }
  return crc;
}

}  // namespace geopipe
