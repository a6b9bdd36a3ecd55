#include "runtime/tokenizer/files/tokenize_files.h"

#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/tokenizer/files/ordered_work.h"

namespace geopipe {
namespace {

constexpr int64_t kPiecesPerThread = 3;

// A piece, or the error that stands in its place.
struct Work {
  absl::Status error;
  TextPiece piece;
};

struct Result {
  EncodedPiece encoded;
  TextPiece piece;  // what it was made of
};

using Queue = OrderedWork<Work, Result>;

void Read(TextReader& reader, Queue& queue) {
  while (true) {
    absl::StatusOr<std::optional<TextPiece>> piece = reader.Next();
    if (!piece.ok()) {
      queue.Put({.error = piece.status(), .piece = {}});
      break;
    }
    if (!piece->has_value() || !queue.Put({.error = {}, .piece = *std::move(*piece)})) {
      break;
    }
  }
  queue.Close();
}

void Encode(const Tokenizer& tokenizer, const EncodingOptions& options, Queue& queue) {
  PieceEncoder encoder(tokenizer, options);
  while (auto work = queue.Get()) {
    auto& [number, order] = *work;
    Result result;
    if (order.error.ok()) {
      result.encoded = encoder.Encode(order.piece);
    } else {
      result.encoded.status = std::move(order.error);
    }
    result.piece = std::move(order.piece);
    queue.Finish(number, std::move(result));
  }
}

// Joins parts of documents that could not be encoded by themselves with those that follow, in the calling thread. Their
// joint length at least doubles from try to try, so it takes as long as the document, times a small number.
class Joiner {
 public:
  Joiner(const Tokenizer& tokenizer, const EncodingOptions& options) : tokenizer_(tokenizer), options_(options) {}

  // The next result in order; absent: it has to wait for more.
  std::optional<EncodedPiece> Next(Result result) {
    if (!open_.has_value()) {
      if (result.encoded.closed || !result.encoded.status.ok()) {
        return std::move(result.encoded);
      }
      tried_bytes_ = result.piece.bytes.size();
      open_ = std::move(result.piece);
      return std::nullopt;
    }
    if (!result.encoded.status.ok()) {
      return std::move(result.encoded);
    }
    open_->bytes += result.piece.bytes;
    open_->follows = std::move(result.piece.follows);
    open_->ends = result.piece.ends;
    if (!open_->ends && open_->bytes.size() < 2 * tried_bytes_) {
      return std::nullopt;
    }
    tried_bytes_ = open_->bytes.size();
    if (!encoder_.has_value()) {
      encoder_.emplace(tokenizer_, options_);
    }
    EncodedPiece encoded = encoder_->Encode(*open_);
    if (!encoded.closed && encoded.status.ok()) {
      return std::nullopt;
    }
    open_.reset();
    return encoded;
  }

 private:
  const Tokenizer& tokenizer_;
  const EncodingOptions& options_;
  std::optional<PieceEncoder> encoder_;
  std::optional<TextPiece> open_;
  size_t tried_bytes_ = 0;
};

absl::StatusOr<TextCounts> Write(const Tokenizer& tokenizer, const EncodingOptions& options, Queue& queue,
                                 const TokenizeHooks& hooks) {
  TextCounts counts;
  Joiner joiner(tokenizer, options);
  int64_t bytes_done = 0;
  while (std::optional<Result> result = queue.Take()) {
    bytes_done += static_cast<int64_t>(result->piece.bytes.size());
    const std::optional<EncodedPiece> encoded = joiner.Next(*std::move(result));
    if (encoded.has_value()) {
      GP_RETURN_IF_ERROR(encoded->status);
      GP_RETURN_IF_ERROR(hooks.write(std::as_bytes(std::span(encoded->tokens))));
      counts.documents += encoded->counts.documents;
      counts.empty_documents += encoded->counts.empty_documents;
      counts.text_bytes += encoded->counts.text_bytes;
      counts.tokens += encoded->counts.tokens;
    }
    GP_RETURN_IF_ERROR(hooks.progress(bytes_done));
  }
  return counts;
}

}  // namespace

absl::StatusOr<TextCounts> TokenizeFiles(TextReader& reader, const Tokenizer& tokenizer, const EncodingOptions& options,
                                         int32_t threads, const TokenizeHooks& hooks) {
  GP_CHECK(threads >= 1, "{} threads", threads);
  Queue queue(kPiecesPerThread * threads);
  std::vector<std::thread> started;
  started.emplace_back([&] { Read(reader, queue); });
  for (int32_t i = 0; i < threads; ++i) {
    started.emplace_back([&] { Encode(tokenizer, options, queue); });
  }
  absl::StatusOr<TextCounts> counts = Write(tokenizer, options, queue, hooks);
  queue.Stop();
  for (std::thread& thread : started) {
    thread.join();
  }
  return counts;
}

}  // namespace geopipe
