#include "runtime/tokenizer/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <utility>

namespace geopipe {
namespace {

std::optional<uint32_t> Known(int id) { return id < 0 ? std::nullopt : std::optional(static_cast<uint32_t>(id)); }

}  // namespace

struct SentencePieceModel::State {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceModel::SentencePieceModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
SentencePieceModel::~SentencePieceModel() = default;

std::unique_ptr<SentencePieceModel> SentencePieceModel::Parse(std::string_view bytes) {
  auto state = std::make_unique<State>();
  if (!state->processor.LoadFromSerializedProto(bytes).ok()) {
    return nullptr;
  }
  return std::unique_ptr<SentencePieceModel>(new SentencePieceModel(std::move(state)));
}

bool SentencePieceModel::Encode(std::string_view text, std::vector<uint32_t>& ids, std::string& error) const {
  std::vector<int> encoded;
  const sentencepiece::util::Status status = state_->processor.Encode(text, &encoded);
  if (!status.ok()) {
    error = status.error_message();
    return false;
  }
  ids.insert(ids.end(), encoded.begin(), encoded.end());
  return true;
}

int64_t SentencePieceModel::pieces() const { return state_->processor.GetPieceSize(); }

// The library gives the unknown piece for what it does not know.
std::optional<uint32_t> SentencePieceModel::IdOf(std::string_view piece) const {
  const int id = state_->processor.PieceToId(piece);
  return id >= 0 && state_->processor.IdToPiece(id) == piece ? Known(id) : std::nullopt;
}

std::string SentencePieceModel::PieceOf(uint32_t id) const { return state_->processor.IdToPiece(static_cast<int>(id)); }

std::optional<uint32_t> SentencePieceModel::begin_of_text() const { return Known(state_->processor.bos_id()); }
std::optional<uint32_t> SentencePieceModel::end_of_text() const { return Known(state_->processor.eos_id()); }

}  // namespace geopipe
