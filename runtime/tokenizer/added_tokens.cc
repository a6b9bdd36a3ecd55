#include "runtime/tokenizer/added_tokens.h"

#include <algorithm>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// Bytes of the blank (Unicode's White_Space) that begins the text; 0: it begins with none.
size_t BlankAt(std::string_view text) {
  if (text.empty()) {
    return 0;
  }
  const auto first = static_cast<uint8_t>(text.front());
  if (first == ' ' || (first >= '\t' && first <= '\r')) {
    return 1;
  }
  if (text.starts_with("\xc2\x85") || text.starts_with("\xc2\xa0")) {
    return 2;
  }
  if (text.size() < 3) {
    return 0;
  }
  const std::string_view three = text.substr(0, 3);
  const bool is_en_quad_to_hair_space = three >= "\xe2\x80\x80" && three <= "\xe2\x80\x8a";
  return is_en_quad_to_hair_space || three == "\xe1\x9a\x80" || three == "\xe2\x80\xa8" || three == "\xe2\x80\xa9" ||
                 three == "\xe2\x80\xaf" || three == "\xe2\x81\x9f" || three == "\xe3\x80\x80"
             ? 3
             : 0;
}

// The place where the blanks at the end of the text begin.
size_t BlanksAtEnd(std::string_view text) {
  size_t end = text.size();
  while (true) {
    size_t begin = end;
    for (size_t length = 1; length <= 3 && length <= end; ++length) {
      if (BlankAt(text.substr(end - length, length)) == length) {
        begin = end - length;
        break;
      }
    }
    if (begin == end) {
      return end;
    }
    end = begin;
  }
}

size_t BlanksAtFront(std::string_view text) {
  size_t end = 0;
  while (const size_t length = BlankAt(text.substr(end))) {
    end += length;
  }
  return end;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, bool ignore_special)
    : tokens_(std::move(tokens)), ignore_special_(ignore_special), nodes_(1) {
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    GP_CHECK(!tokens_[i].content.empty());
    uint32_t node = 0;
    for (const char c : tokens_[i].content) {
      const auto byte = static_cast<uint8_t>(c);
      auto& next = nodes_[node].next;
      const auto at = std::ranges::lower_bound(next, byte, {}, &std::pair<uint8_t, uint32_t>::first);
      if (at != next.end() && at->first == byte) {
        node = at->second;
        continue;
      }
      const auto made = static_cast<uint32_t>(nodes_.size());
      next.insert(at, {byte, made});
      nodes_.emplace_back();
      node = made;
    }
    nodes_[node].token = nodes_[node].token == kNone ? i : nodes_[node].token;
  }
  for (const auto& [byte, node] : nodes_.front().next) {
    first_[byte] = node;
  }
}

const AddedToken* AddedTokens::At(std::string_view text) const {
  const AddedToken* longest = nullptr;
  uint32_t node = first_[static_cast<uint8_t>(text.front())];
  for (size_t i = 1; node != 0; ++i) {
    longest = nodes_[node].token != kNone ? &tokens_[nodes_[node].token] : longest;
    if (i == text.size()) {
      break;
    }
    const auto& next = nodes_[node].next;
    const auto at =
        std::ranges::lower_bound(next, static_cast<uint8_t>(text[i]), {}, &std::pair<uint8_t, uint32_t>::first);
    node = at != next.end() && at->first == static_cast<uint8_t>(text[i]) ? at->second : 0;
  }
  return longest;
}

absl::Status AddedTokens::Split(std::string_view text, Visit visit) const {
  size_t done = 0;  // up to here pieces were visited
  size_t at = 0;
  while (at < text.size() && !tokens_.empty()) {
    if (first_[static_cast<uint8_t>(text[at])] == 0) {
      ++at;
      continue;
    }
    const AddedToken* token = At(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    at = end;
    if (ignore_special_ && token->special) {
      continue;
    }
    // Blanks that a token before has taken are taken once.
    begin = token->strips_left ? std::max(BlanksAtEnd(text.substr(0, begin)), done) : begin;
    end += token->strips_right ? BlanksAtFront(text.substr(end)) : 0;
    if (begin > done) {
      GP_RETURN_IF_ERROR(visit(done, begin, std::nullopt));
    }
    GP_RETURN_IF_ERROR(visit(std::min(begin, end), end, token->id));
    done = end;
  }
  return done < text.size() ? visit(done, text.size(), std::nullopt) : absl::OkStatus();
}

}  // namespace geopipe
