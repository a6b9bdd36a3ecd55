#include "tests/support/skip.h"

#include <catch2/catch.hpp>
#include <string>

namespace geopipe {
namespace {

bool any_skipped = false;

}  // namespace

void Skip(std::string_view why) {
  any_skipped = true;
  WARN("skipped: " << std::string(why));
}

bool AnySkipped() { return any_skipped; }

}  // namespace geopipe
