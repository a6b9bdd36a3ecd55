// Byte-pair encoding over bytes (Sennrich et al. 2016, arXiv 1508.07909; on bytes: Radford et al. 2019): a piece of
// text begins as its bytes, and of all neighbours that the table of merges has, the pair of lowest rank, the leftmost
// of these, becomes one token, until there is none.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace geopipe {

// Immutable; any thread may read.
class Bpe {
 public:
  // A merge in the bytes of its two tokens; its rank is its place in the list.
  using Merge = std::pair<std::string, std::string>;

  // `vocabulary` maps bytes to ids. `whole_words`: a piece that is a token is never split (`ignore_merges`).
  // InvalidArgument: a byte that UTF-8 uses has no token, two tokens have one id, or a merge joins or makes what is
  // none; completes "model.vocab: " or "model.merges: ".
  static absl::StatusOr<Bpe> Create(absl::flat_hash_map<std::string, uint32_t> vocabulary,
                                    const std::vector<Merge>& merges, bool whole_words);

  std::optional<uint32_t> IdOf(std::string_view bytes) const {
    const auto found = vocabulary_.find(absl::string_view(bytes.data(), bytes.size()));
    return found == vocabulary_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  friend class BpeEncoder;

  struct Merged {
    uint32_t rank = 0;
    uint32_t id = 0;
  };
  static uint64_t Key(uint32_t left, uint32_t right) { return (uint64_t{left} << 32) | right; }
  // The merge of two neighbours; nullptr: there is none.
  const Merged* Find(uint32_t left, uint32_t right) const {
    const auto found = merges_.find(Key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

  absl::flat_hash_map<std::string, uint32_t> vocabulary_;
  absl::flat_hash_map<uint64_t, Merged> merges_;
  std::array<uint32_t, 256> bytes_{};  // id of each; kNoId where there is none
  bool whole_words_ = false;
};

// Encodes pieces for one thread. Short ones are remembered in a table of fixed size. Long ones take O(n log n).
class BpeEncoder {
 public:
  // `bpe` outlives the encoder.
  explicit BpeEncoder(const Bpe& bpe);

  // Appends the ids of a piece of UTF-8.
  void Encode(std::string_view piece, std::vector<uint32_t>& ids);

 private:
  static constexpr size_t kSlots = size_t{1} << 16;
  static constexpr size_t kKeyBytes = 30;
  static constexpr size_t kSlotIds = 8;
  // Pieces of so many bytes are merged by looking at all neighbours again and again, longer ones with a heap.
  static constexpr size_t kShortBytes = 48;

  struct Slot {
    uint8_t bytes = 0;  // of the key; 0: empty
    uint8_t count = 0;
    std::array<char, kKeyBytes> key;
    std::array<uint32_t, kSlotIds> ids;
  };

  // A token that is still to be merged with its neighbours.
  struct Symbol {
    uint32_t id = 0;
    int32_t previous = -1;
    int32_t next = -1;
    bool is_gone = false;
  };
  struct Candidate {
    uint32_t rank = 0;
    int32_t at = 0;  // the left one
    uint32_t id = 0;
    friend bool operator>(const Candidate& a, const Candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
    }
  };

  void Merge(std::string_view piece, std::vector<uint32_t>& ids);
  void MergeShort(std::string_view piece, std::vector<uint32_t>& ids);
  void MergeLong(std::string_view piece, std::vector<uint32_t>& ids);
  void Consider(int32_t left);

  const Bpe& bpe_;
  std::vector<Slot> slots_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace geopipe
