// The layout of states that are kept in memory (kept_states.h): the place of each tensor, and the text by which the
// memory tells of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace geopipe {

// The piece of one tensor whose states a rank has.
struct KeptTensor {
  int32_t stage = 0;
  std::string name;
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t tensor_ranks = 1;    // a TensorPiece's
  int64_t tensor_rank = 0;
  int64_t first = 0;
  int64_t elements = 0;
  int64_t offset = 0;  // in a state, of the value; the moments follow it, each in as much room

  // Bytes of the value, or of a moment, and what they take.
  int64_t bytes() const;
  int64_t room_bytes() const;

  friend bool operator==(const KeptTensor&, const KeptTensor&) = default;
};

struct KeptLayout {
  std::vector<KeptTensor> tensors;
  int64_t head_bytes = 0;  // whole pages, as each state
  int64_t state_bytes = 0;

  // Lays the tensors out, whose offsets are filled in, behind a head of `fixed_bytes` and the text.
  static KeptLayout Of(std::vector<KeptTensor> tensors, int64_t fixed_bytes);
  // Parses a text; nullopt: it is not one that Text made of tensors whose bytes can be counted.
  static std::optional<std::vector<KeptTensor>> Parse(std::span<const std::byte> text);
  // All of it but the offsets.
  static std::string Text(const std::vector<KeptTensor>& tensors);

  // Returns the size of the head and two states.
  int64_t bytes() const { return head_bytes + 2 * state_bytes; }

  friend bool operator==(const KeptLayout&, const KeptLayout&) = default;
};

}  // namespace geopipe
