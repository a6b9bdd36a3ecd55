#include "runtime/executor/norm_message.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

namespace geopipe {
namespace {

TEST_CASE("norm terms survive a message") {
  Allocator allocator(1 << 12);
  const std::vector<NormTerm> terms{{"model.norm.weight", 0.1}, {"a", -0.0}, {"", 1e300}, {"four", 3.0}};
  const auto message = EncodeNormTerms(terms, allocator);
  REQUIRE(message.ok());
  CHECK(message->bytes() == NormMessageBytes(terms));
  const auto decoded = DecodeNormTerms(*message);
  REQUIRE(decoded.ok());
  REQUIRE(decoded->size() == terms.size());
  for (size_t i = 0; i < terms.size(); ++i) {
    CHECK((*decoded)[i].name == terms[i].name);
    CHECK((*decoded)[i].sum_of_squares == terms[i].sum_of_squares);
  }
}

TEST_CASE("no terms still are a message") {
  Allocator allocator(1 << 12);
  const auto message = EncodeNormTerms({}, allocator);
  REQUIRE(message.ok());
  CHECK(message->bytes() == 4);
  CHECK(DecodeNormTerms(*message)->empty());
}

TEST_CASE("what is no message of norm terms is refused") {
  Allocator allocator(1 << 12);
  const auto good = EncodeNormTerms({{"name", 1.0}}, allocator);
  REQUIRE(good.ok());
  for (const int32_t count : {-1, 0, 2, 1'000'000}) {
    good->int32()[0] = count;
    CHECK_FALSE(DecodeNormTerms(*good).ok());
  }
  good->int32()[0] = 1;
  for (const int32_t length : {-1, 5, 2'000'000'000}) {
    good->int32()[1] = length;
    CHECK_FALSE(DecodeNormTerms(*good).ok());
  }
  CHECK_FALSE(DecodeNormTerms(Tensor()).ok());
}

TEST_CASE("the norm does not depend on the order in which terms arrive") {
  std::vector<NormTerm> terms{{"a", 1e-3}, {"b", 1e10}, {"c", 0.1}, {"d", 7.0}};
  const double norm = GlobalNorm(terms);
  std::ranges::sort(terms, {}, &NormTerm::name);
  do {
    CHECK(GlobalNorm(terms) == norm);
  } while (std::ranges::next_permutation(terms, {}, &NormTerm::name).found);
  CHECK(GlobalNorm({{"a", 9.0}, {"b", 16.0}}) == 5.0);
}

}  // namespace
}  // namespace geopipe
