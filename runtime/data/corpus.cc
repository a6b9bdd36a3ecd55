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
  return OpenTokenFiles(data.paths, data.dtype, vocab_size);
}

absl::StatusOr<uint32_t> BlocksChecksum(const DataFiles& files, int64_t base, std::span<const ByteRange> blocks,
                                        const BlockVisitor& visit, uint32_t crc) {
  constexpr int64_t kPieceBytes = int64_t{1} << 18;  // stays in the cache from the read to the checks
  std::vector<std::byte> buffer(std::min(kPieceBytes, files.bytes()));
  for (const ByteRange& block : blocks) {
    for (int64_t begin = block.begin; begin < block.end; begin += kPieceBytes) {
      const std::span<std::byte> piece = std::span(buffer).first(std::min(kPieceBytes, block.end - begin));
      GP_RETURN_IF_ERROR(files.Read(base + begin, piece));
      if (visit) {
        GP_RETURN_IF_ERROR(visit(base + begin, piece));
      }
      crc = Crc32c(piece, crc);
    }
  }
  return crc;
}

}  // namespace geopipe
