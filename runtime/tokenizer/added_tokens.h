// Tokens that are found in the text itself, before anything else is done with it: begin and end of text, roles of a
// conversation, ...
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace geopipe {

struct AddedToken {
  std::string content = {};
  uint32_t id = 0;
  bool strips_left = false;   // takes the blanks before it
  bool strips_right = false;  // and those behind it
  bool normalized = false;    // is looked for in normalized text
  bool special = false;
};

// A set of tokens, looked for at once: the leftmost counts, of those that begin at one place the longest. Immutable;
// any thread may read.
class AddedTokens {
 public:
  AddedTokens() = default;
  // Tokens marked `special` are read as text when `ignore_special`. REQUIRES: no content is empty.
  AddedTokens(std::vector<AddedToken> tokens, bool ignore_special);

  // The bytes [begin, end) of the text: a token, with the blanks that it takes, or what lies between two.
  using Visit = absl::FunctionRef<absl::Status(size_t begin, size_t end, std::optional<uint32_t> id)>;
  // Calls `visit` for the pieces in turn; an error ends it.
  absl::Status Split(std::string_view text, Visit visit) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> next;  // in ascending order
    uint32_t token = kNone;                          // that ends here
  };

  // The longest token that begins the text.
  const AddedToken* At(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  bool ignore_special_ = false;
  std::vector<Node> nodes_;
  std::array<uint32_t, 256> first_{};  // node of each first byte; 0: none
};

}  // namespace geopipe
