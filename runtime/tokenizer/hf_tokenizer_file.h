// Reads tokenizer.json, the file of Hugging Face's tokenizers: of its models byte-level BPE, as GPT-2, Llama 3 and Qwen
// have it.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/added_tokens.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/split_pattern.h"
#include "runtime/tokenizer/tokenizer.h"

namespace geopipe {

// The steps from text to ids, in this order.
struct HfTokenizerSteps {
  std::vector<AddedToken> added;
  bool is_nfc = false;                // text becomes NFC
  std::vector<SplitPattern> splits;   // each cuts the pieces of the one before
  bool adds_space = false;            // a piece begins with a space, its own or another
  std::optional<SplitPattern> words;  // cuts behind adds_space
  std::optional<Bpe> bpe;             // always there
  DocumentMarks marks;                // of the file's post_processor
  int64_t vocabulary = 0;             // all ids are below
};

// Parses the text of a file that errors call `file`. InvalidArgument: it is no such file, or it says something that
// changes ids and is not done here, which is named with its value.
absl::StatusOr<HfTokenizerSteps> ParseHfTokenizer(std::string_view text, std::string_view file);

}  // namespace geopipe
