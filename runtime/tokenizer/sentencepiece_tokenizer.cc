#include "runtime/tokenizer/sentencepiece_tokenizer.h"

#include <fmt/format.h>

#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/tokenizer/sentencepiece_model.h"

namespace geopipe {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;
// The library takes some hundred bytes for each of a text.
constexpr int64_t kMaxPieceBytes = int64_t{16} << 20;

class SentencePieceEncoder final : public TextEncoder {
 public:
  explicit SentencePieceEncoder(const SentencePieceModel& model) : model_(model) {}

  absl::Status Encode(std::string_view text, std::string_view /*follows*/, std::vector<uint32_t>& ids,
                      bool& closed) override {
    closed = true;
    std::string error;
    return model_.Encode(text, ids, error)
               ? absl::OkStatus()
               : absl::FailedPreconditionError(fmt::format("SentencePiece does not take a text: {}", error));
  }

 private:
  const SentencePieceModel& model_;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(std::unique_ptr<SentencePieceModel> model) : model_(std::move(model)) {
    if (const std::optional<uint32_t> id = model_->begin_of_text()) {
      marks_.begin.push_back({.token = model_->PieceOf(*id), .id = *id});
    }
    if (const std::optional<uint32_t> id = model_->end_of_text()) {
      marks_.end.push_back({.token = model_->PieceOf(*id), .id = *id});
    }
  }

  std::unique_ptr<TextEncoder> NewEncoder() const override { return std::make_unique<SentencePieceEncoder>(*model_); }
  int64_t vocabulary() const override { return model_->pieces(); }
  std::optional<uint32_t> IdOf(std::string_view token) const override { return model_->IdOf(token); }
  const DocumentMarks& own_marks() const override { return marks_; }
  // Models normalize a text as a whole: blanks at its ends, a first space.
  bool can_cut() const override { return false; }
  int64_t max_piece_bytes() const override { return kMaxPieceBytes; }

 private:
  std::unique_ptr<SentencePieceModel> model_;
  DocumentMarks marks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenSentencePiece(const std::string& path) {
  GP_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxFileBytes));
  std::unique_ptr<SentencePieceModel> model = SentencePieceModel::Parse(bytes);
  if (model == nullptr || model->pieces() == 0) {  // the library says where in its own source it failed
    return absl::InvalidArgumentError(fmt::format(
        "{}: is neither a tokenizer.json nor a SentencePiece model; name one of them, or their folder", path));
  }
  return std::make_unique<SentencePieceTokenizer>(std::move(model));
}

}  // namespace geopipe
