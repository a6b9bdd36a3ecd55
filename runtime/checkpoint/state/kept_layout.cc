#include "runtime/checkpoint/state/kept_layout.h"

#include <cstring>
#include <utility>

namespace geopipe {
namespace {

constexpr int64_t kTensorAlignment = 64;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kMaxElements = int64_t{1} << 48;  // of all tensors; so no sum of bytes overflows

constexpr int64_t RoundUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

template <class Number>
void Put(std::string& text, Number number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

class LayoutReader {
 public:
  explicit LayoutReader(std::span<const std::byte> text) : text_(text) {}

  // Reads a number; false: the text ends before it.
  template <class Number>
  bool Get(Number& number) {
    const std::span<const std::byte> bytes = Next(sizeof(number));
    if (bytes.empty()) {
      return false;
    }
    std::memcpy(&number, bytes.data(), sizeof(number));
    return true;
  }
  bool Get(std::string& value, uint32_t size) {
    const std::span<const std::byte> bytes = Next(size);
    value.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return bytes.size() == size;
  }
  bool at_end() const { return text_.empty(); }

 private:
  std::span<const std::byte> Next(size_t size) {
    if (text_.size() < size) {
      return {};
    }
    const std::span<const std::byte> bytes = text_.first(size);
    text_ = text_.subspan(size);
    return bytes;
  }

  std::span<const std::byte> text_;
};

}  // namespace

int64_t KeptTensor::bytes() const { return elements * static_cast<int64_t>(sizeof(float)); }

int64_t KeptTensor::room_bytes() const { return RoundUp(bytes(), kTensorAlignment); }

std::string KeptLayout::Text(const std::vector<KeptTensor>& tensors) {
  std::string text;
  for (const KeptTensor& tensor : tensors) {
    Put(text, tensor.stage);
    Put(text, static_cast<uint32_t>(tensor.name.size()));
    text += tensor.name;
    Put(text, static_cast<uint32_t>(tensor.shape.size()));
    for (const int64_t extent : tensor.shape) {
      Put(text, extent);
    }
    for (const int64_t number : {tensor.tensor_ranks, tensor.tensor_rank, tensor.first, tensor.elements}) {
      Put(text, number);
    }
  }
  return text;
}

std::optional<std::vector<KeptTensor>> KeptLayout::Parse(std::span<const std::byte> text) {
  std::vector<KeptTensor> tensors;
  LayoutReader reader(text);
  int64_t left = kMaxElements;
  while (!reader.at_end()) {
    KeptTensor tensor;
    uint32_t size = 0;
    uint32_t dimensions = 0;
    if (!reader.Get(tensor.stage) || !reader.Get(size) || !reader.Get(tensor.name, size) || !reader.Get(dimensions)) {
      return std::nullopt;
    }
    for (uint32_t i = 0; i < dimensions; ++i) {
      int64_t extent = 0;
      if (!reader.Get(extent)) {
        return std::nullopt;
      }
      tensor.shape.push_back(extent);
    }
    if (!reader.Get(tensor.tensor_ranks) || !reader.Get(tensor.tensor_rank) || !reader.Get(tensor.first) ||
        !reader.Get(tensor.elements) || tensor.elements < 1 || tensor.elements >= left) {
      return std::nullopt;
    }
    left -= tensor.elements;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

KeptLayout KeptLayout::Of(std::vector<KeptTensor> tensors, int64_t fixed_bytes) {
  KeptLayout layout;
  layout.head_bytes = RoundUp(fixed_bytes + static_cast<int64_t>(Text(tensors).size()), kPageBytes);
  for (KeptTensor& tensor : tensors) {
    tensor.offset = layout.state_bytes;
    layout.state_bytes += 3 * tensor.room_bytes();
  }
  layout.state_bytes = RoundUp(layout.state_bytes, kPageBytes);
  layout.tensors = std::move(tensors);
  return layout;
}

}  // namespace geopipe
