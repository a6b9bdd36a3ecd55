// The library SentencePiece behind types of its own: its header does not compile beside Abseil's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace geopipe {

// Immutable; any thread may read.
class SentencePieceModel {
 public:
  // Parses the bytes of a model; nullptr when they are none.
  static std::unique_ptr<SentencePieceModel> Parse(std::string_view bytes);
  SentencePieceModel(const SentencePieceModel&) = delete;
  SentencePieceModel& operator=(const SentencePieceModel&) = delete;
  ~SentencePieceModel();

  // Appends the ids of valid UTF-8; false, and `error` says why, when the library fails.
  bool Encode(std::string_view text, std::vector<uint32_t>& ids, std::string& error) const;

  int64_t pieces() const;
  std::optional<uint32_t> IdOf(std::string_view piece) const;
  std::string PieceOf(uint32_t id) const;
  std::optional<uint32_t> begin_of_text() const;
  std::optional<uint32_t> end_of_text() const;

 private:
  struct State;
  explicit SentencePieceModel(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace geopipe
