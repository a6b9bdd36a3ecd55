#include "tests/architecture/finding.h"

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

}  // namespace geopipe::architecture
