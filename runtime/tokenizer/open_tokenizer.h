// Opens the tokenizer that a path names, whatever kind it is.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "runtime/tokenizer/tokenizer.h"

namespace geopipe {

struct OpenedTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string path;  // of the file itself
};

// `path`: a tokenizer.json, a SentencePiece model, or a folder that has one of them as tokenizer.json or
// tokenizer.model, in this order. `ignore_special`: special tokens in texts are text; SentencePiece never reads them.
// Errors: NotFound, those of OpenHfTokenizer and OpenSentencePiece.
absl::StatusOr<OpenedTokenizer> OpenTokenizer(const std::string& path, bool ignore_special);

// A token before or behind each document, as the command line names it: "auto", "none", or a token. `own`: the
// tokenizer's, for "auto". InvalidArgument: the tokenizer has no such token.
absl::StatusOr<std::vector<Mark>> MarkNamed(const Tokenizer& tokenizer, const std::string& word,
                                            const std::vector<Mark>& own);

}  // namespace geopipe
