#include "runtime/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "runtime/tokenizer/byte_alphabet.h"

namespace geopipe {
namespace {

constexpr uint32_t kNoId = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();

// RFC 3629: these bytes are in no UTF-8.
constexpr bool IsInUtf8(int byte) { return byte != 0xc0 && byte != 0xc1 && byte < 0xf5; }

}  // namespace

absl::StatusOr<Bpe> Bpe::Create(absl::flat_hash_map<std::string, uint32_t> vocabulary, const std::vector<Merge>& merges,
                                bool whole_words) {
  Bpe bpe;
  bpe.vocabulary_ = std::move(vocabulary);
  bpe.whole_words_ = whole_words;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    const std::optional<uint32_t> id = bpe.IdOf(bytes);
    if (!id.has_value() && IsInUtf8(byte)) {
      return absl::InvalidArgumentError(fmt::format(
          "model.vocab: has no token '{}' for the byte {:#04x}, so text with it would be lost; use a tokenizer that "
          "was trained with the whole byte-level alphabet",
          TokenOfBytes(bytes), byte));
    }
    bpe.bytes_[static_cast<size_t>(byte)] = id.value_or(kNoId);
  }
  absl::flat_hash_map<uint32_t, std::string_view> names;
  for (const auto& [bytes, id] : bpe.vocabulary_) {
    const auto [other, is_new] = names.emplace(id, bytes);
    if (!is_new) {
      const auto [first, second] = std::minmax({TokenOfBytes(other->second), TokenOfBytes(bytes)});
      return absl::InvalidArgumentError(
          fmt::format("model.vocab: '{}' and '{}' have the same id {}", first, second, id));
    }
  }
  bpe.merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const std::optional<uint32_t> ids[] = {bpe.IdOf(left), bpe.IdOf(right), bpe.IdOf(left + right)};
    if (!ids[0].has_value() || !ids[1].has_value() || !ids[2].has_value()) {
      const std::string& missing = !ids[0].has_value() ? left : !ids[1].has_value() ? right : left + right;
      return absl::InvalidArgumentError(
          fmt::format("model.merges: number {}, '{} {}', needs the token '{}', which "
                      "model.vocab does not have",
                      rank, TokenOfBytes(left), TokenOfBytes(right), TokenOfBytes(missing)));
    }
    // The last counts of a pair that is listed twice, as in the program that writes these files.
    bpe.merges_.insert_or_assign(Key(*ids[0], *ids[1]), Merged{.rank = static_cast<uint32_t>(rank), .id = *ids[2]});
  }
  return bpe;
}

BpeEncoder::BpeEncoder(const Bpe& bpe) : bpe_(bpe), slots_(kSlots) {}

void BpeEncoder::Encode(std::string_view piece, std::vector<uint32_t>& ids) {
  if (piece.size() > kKeyBytes) {
    Merge(piece, ids);
    return;
  }
  Slot& slot = slots_[std::hash<std::string_view>()(piece) % kSlots];
  if (slot.bytes == piece.size() && std::memcmp(slot.key.data(), piece.data(), piece.size()) == 0) {
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
    return;
  }
  const size_t before = ids.size();
  Merge(piece, ids);
  const size_t count = ids.size() - before;
  if (count <= kSlotIds) {
    slot.bytes = static_cast<uint8_t>(piece.size());
    slot.count = static_cast<uint8_t>(count);
    std::ranges::copy(piece, slot.key.begin());
    std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(before), count, slot.ids.begin());
  }
}

void BpeEncoder::Merge(std::string_view piece, std::vector<uint32_t>& ids) {
  if (bpe_.whole_words_) {
    if (const std::optional<uint32_t> id = bpe_.IdOf(piece)) {
      ids.push_back(*id);
      return;
    }
  }
  if (piece.size() <= kShortBytes) {
    MergeShort(piece, ids);
  } else {
    MergeLong(piece, ids);
  }
}

void BpeEncoder::MergeShort(std::string_view piece, std::vector<uint32_t>& ids) {
  std::array<uint32_t, kShortBytes> tokens;
  std::array<Bpe::Merged, kShortBytes> merged;  // of each token with the next
  size_t count = piece.size();
  const auto look = [&](size_t left) {
    const Bpe::Merged* found = left + 1 < count ? bpe_.Find(tokens[left], tokens[left + 1]) : nullptr;
    merged[left] = found != nullptr ? *found : Bpe::Merged{.rank = kNoRank, .id = kNoId};
  };
  for (size_t i = 0; i < count; ++i) {
    tokens[i] = bpe_.bytes_[static_cast<uint8_t>(piece[i])];
  }
  for (size_t i = 0; i < count; ++i) {
    look(i);
  }
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      best = merged[i].rank < merged[best].rank ? i : best;
    }
    if (merged[best].rank == kNoRank) {
      break;
    }
    tokens[best] = merged[best].id;
    std::copy(tokens.begin() + best + 2, tokens.begin() + count, tokens.begin() + best + 1);
    std::copy(merged.begin() + best + 2, merged.begin() + count, merged.begin() + best + 1);
    --count;
    look(best);
    if (best > 0) {
      look(best - 1);
    }
  }
  ids.insert(ids.end(), tokens.begin(), tokens.begin() + count);
}

// Adds the merge of a symbol with the next one to the heap, if there is one.
void BpeEncoder::Consider(int32_t left) {
  if (left < 0 || symbols_[left].next < 0) {
    return;
  }
  const Bpe::Merged* merged = bpe_.Find(symbols_[left].id, symbols_[symbols_[left].next].id);
  if (merged != nullptr) {
    heap_.push_back({.rank = merged->rank, .at = left, .id = merged->id});
    std::ranges::push_heap(heap_, std::greater());
  }
}

void BpeEncoder::MergeLong(std::string_view piece, std::vector<uint32_t>& ids) {
  const auto count = static_cast<int32_t>(piece.size());
  symbols_.clear();
  heap_.clear();
  for (int32_t i = 0; i < count; ++i) {
    symbols_.push_back({.id = bpe_.bytes_[static_cast<uint8_t>(piece[i])],
                        .previous = i - 1,
                        .next = i + 1 < count ? i + 1 : -1,
                        .is_gone = false});
  }
  for (int32_t i = 0; i < count; ++i) {
    Consider(i);
  }
  while (!heap_.empty()) {
    std::ranges::pop_heap(heap_, std::greater());
    const Candidate best = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[best.at];
    if (left.is_gone || left.next < 0) {
      continue;
    }
    Symbol& right = symbols_[left.next];
    const Bpe::Merged* merged = bpe_.Find(left.id, right.id);
    if (merged == nullptr || merged->id != best.id) {
      continue;  // one of the two has been merged with another since
    }
    left.id = best.id;
    right.is_gone = true;
    left.next = right.next;
    if (left.next >= 0) {
      symbols_[left.next].previous = best.at;
    }
    Consider(best.at);
    Consider(left.previous);
  }
  for (int32_t i = 0; i >= 0; i = symbols_[i].next) {
    ids.push_back(symbols_[i].id);
  }
}

}  // namespace geopipe
