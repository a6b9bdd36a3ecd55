#include "runtime/transport/stream/message_transport.h"

#include <array>

namespace geopipe {

std::string_view MessageKindName(MessageKind kind) {
  static constexpr std::array<std::string_view, 7> kNames{
      "activation", "gradient", "norm terms", "tied gradient", "arrival", "collective", "collective abort"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace geopipe
