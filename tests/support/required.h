// Takes the value of what a test cannot do without.
#pragma once

#include <absl/status/statusor.h>

#include <catch2/catch.hpp>
#include <utility>

namespace geopipe {

// REQUIREs that there is a value; else the error is shown.
template <class T>
T Required(absl::StatusOr<T> value) {
  INFO(value.status().ToString());
  REQUIRE(value.ok());
  return *std::move(value);
}

}  // namespace geopipe
