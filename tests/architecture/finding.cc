#include "tests/architecture/finding.h"

#include <catch2/catch.hpp>
#include <iterator>
#include <utility>

namespace geopipe::architecture {

std::string ToString(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text +=
        finding.path + ':' + (finding.line > 0 ? std::to_string(finding.line) + ": " : " ") + finding.message + '\n';
  }
  return text;
}

void Append(Findings more, Findings& all) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

void CheckFound(const Findings& findings, const std::string& message) {
  if (message.empty()) {
    CHECK(ToString(findings) == "");
  } else {
    CHECK_THAT(ToString(findings), Catch::Contains(message));
  }
}

}  // namespace geopipe::architecture
