#include "runtime/data/corpus.h"

#include <fmt/format.h>

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

}  // namespace geopipe
