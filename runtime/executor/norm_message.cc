#include "runtime/executor/norm_message.h"

#include <absl/status/status.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>

#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

constexpr size_t kWordBytes = 4;
constexpr size_t kSumWords = 2;

size_t NameWords(size_t bytes) { return (bytes + kWordBytes - 1) / kWordBytes; }

}  // namespace

int64_t NormMessageBytes(const std::vector<NormTerm>& terms) {
  size_t words = 1;
  for (const NormTerm& term : terms) {
    words += 1 + NameWords(term.name.size()) + kSumWords;
  }
  return static_cast<int64_t>(words * kWordBytes);
}

absl::StatusOr<Tensor> EncodeNormTerms(const std::vector<NormTerm>& terms, Allocator& allocator) {
  const int64_t words = NormMessageBytes(terms) / static_cast<int64_t>(kWordBytes);
  GP_ASSIGN_OR_RETURN(Tensor message, Tensor::Zeros(allocator, MemoryCategory::kTransport, DType::kInt32, {words}));
  std::span<int32_t> rest = message.int32();
  rest[0] = static_cast<int32_t>(terms.size());
  rest = rest.subspan(1);
  for (const NormTerm& term : terms) {
    rest[0] = static_cast<int32_t>(term.name.size());
    std::memcpy(rest.data() + 1, term.name.data(), term.name.size());
    rest = rest.subspan(1 + NameWords(term.name.size()));
    std::memcpy(rest.data(), &term.sum_of_squares, sizeof(double));
    rest = rest.subspan(kSumWords);
  }
  return message;
}

absl::StatusOr<std::vector<NormTerm>> DecodeNormTerms(const Tensor& message) {
  const absl::Status malformed = absl::DataLossError("a message of gradient-norm terms is malformed");
  if (message.empty() || message.dtype() != DType::kInt32 || message.int32()[0] < 0) {
    return malformed;
  }
  std::span<const int32_t> rest = message.int32();
  const auto count = static_cast<size_t>(rest[0]);
  rest = rest.subspan(1);
  std::vector<NormTerm> terms;
  while (terms.size() < count) {
    if (rest.empty() || rest[0] < 0 || 1 + NameWords(rest[0]) + kSumWords > rest.size()) {
      return malformed;
    }
    const auto length = static_cast<size_t>(rest[0]);
    NormTerm term{std::string(reinterpret_cast<const char*>(rest.data() + 1), length)};
    rest = rest.subspan(1 + NameWords(length));
    std::memcpy(&term.sum_of_squares, rest.data(), sizeof(double));
    rest = rest.subspan(kSumWords);
    terms.push_back(std::move(term));
  }
  return rest.empty() ? absl::StatusOr<std::vector<NormTerm>>(std::move(terms)) : malformed;
}

double GlobalNorm(std::vector<NormTerm> terms) {
  std::ranges::sort(terms, {}, &NormTerm::name);
  double sum = 0;
  for (const NormTerm& term : terms) {
    sum += term.sum_of_squares;
  }
  return std::sqrt(sum);
}

}  // namespace geopipe
