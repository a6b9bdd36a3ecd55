#include "runtime/base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "runtime/base/wrap.h"

namespace geopipe {
namespace {

constexpr int32_t kDefaultColumns = 80;
constexpr int32_t kMinColumns = 20;
constexpr int32_t kMaxColumns = 1000;

std::string_view Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<int32_t> KnownColumns() {
  const std::string_view text = Environment("COLUMNS");
  int32_t columns = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  if (error == std::errc() && end == text.data() + text.size() && columns >= kMinColumns && columns <= kMaxColumns) {
    return columns;
  }
  winsize size{};
  if (OutputIsTerminal() && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= kMinColumns) {
    return size.ws_col;
  }
  return std::nullopt;
}

}  // namespace

bool OutputIsTerminal() { return isatty(STDOUT_FILENO) != 0; }
bool ErrorIsTerminal() { return isatty(STDERR_FILENO) != 0; }
bool ErrorTakesControl() { return ErrorIsTerminal() && Environment("TERM") != "dumb"; }

int32_t TerminalColumns() { return KnownColumns().value_or(kDefaultColumns); }

int32_t TextColumns() { return KnownColumns().value_or(OutputIsTerminal() ? kDefaultColumns : kAnyColumns); }

bool OutputInColour() { return OutputIsTerminal() && Environment("NO_COLOR").empty() && Environment("TERM") != "dumb"; }

}  // namespace geopipe
