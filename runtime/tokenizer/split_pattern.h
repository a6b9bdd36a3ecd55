// Cuts text where a regular expression matches.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <memory>
#include <string_view>

namespace geopipe {

// Immutable; any thread may read.
class SplitPattern {
 public:
  enum class Kind : uint8_t {
    kIsolated,     // matches and what lies between them are pieces
    kMatchesOnly,  // matches are pieces, the rest is dropped
  };

  // Compiles a pattern of a tokenizer.json. InvalidArgument quotes it and says what is not supported in it.
  static absl::StatusOr<SplitPattern> Compile(std::string_view pattern, Kind kind);
  // The same for text that is searched literally.
  static absl::StatusOr<SplitPattern> CompileLiteral(std::string_view text, Kind kind);

  // A thread's room for matching.
  class Room {
   public:
    Room();
    Room(Room&&) noexcept;
    Room& operator=(Room&&) noexcept;
    ~Room();

   private:
    friend class SplitPattern;
    struct State;
    std::unique_ptr<State> state_;
  };

  using Visit = absl::FunctionRef<absl::Status(std::string_view piece)>;

  // Calls `visit` for each piece in turn that begins in the first `limit` bytes; an error ends it. False: a piece
  // reaches beyond the limit, or what lies beyond the text might change one; it and those after it are not visited.
  // ResourceExhausted: the matcher gives up. REQUIRES: valid UTF-8; `limit` is the text's size where nothing follows.
  absl::StatusOr<bool> Split(std::string_view text, size_t limit, Room& room, Visit visit) const;

 private:
  struct Code;
  static absl::StatusOr<SplitPattern> CompileTranslated(std::string_view shown, std::string_view translated, Kind kind);

  std::shared_ptr<const Code> code_;
  Kind kind_ = Kind::kIsolated;
};

}  // namespace geopipe
