// Text files through the byte tokenizer: token 0..255 is a byte, 256 begins a file (BOS), 257 ends it (EOS).
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "runtime/data/corpus.h"

namespace geopipe {

// More files than this are refused: each is opened when a job is prepared.
inline constexpr size_t kMaxTextFiles = 32'768;

// The files that `patterns` name, as in TextFiles, however many; errors call what names them `key` ("data.path").
absl::StatusOr<std::vector<std::string>> MatchFiles(const std::vector<std::string>& patterns, std::string_view key);

// The files of data.path in the order in which they are read. `patterns` are paths or globs (glob(7): * ? [...]; a path
// that exists is never read as a glob). Links are resolved; a file named twice counts once; files follow each other in
// byte order of their resolved paths. Folders that a glob matches are skipped. Errors: NotFound (nothing matches),
// FailedPrecondition (a folder, or more than kMaxTextFiles). A path that is no glob need not be there.
absl::StatusOr<std::vector<std::string>> TextFiles(const std::vector<std::string>& patterns);

// Opens TextFiles(patterns). Tokens are made as they are read. The fingerprint's checksum covers the sizes of all files
// (8 bytes each, little-endian) in that order before the blocks, so that moving a byte from one file to the next
// changes it. Errors name pattern or path and the remedy: those of TextFiles; NotFound (no such file), InvalidArgument
// (no text in any file, or one that is of another known format or no text by its first bytes).
absl::StatusOr<std::unique_ptr<Corpus>> OpenText(const std::vector<std::string>& patterns);

}  // namespace geopipe
