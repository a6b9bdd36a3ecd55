#include "runtime/transport/stream/message_transport.h"

namespace geopipe {

std::string_view MessageKindName(MessageKind kind) {
  switch (kind) {
    case MessageKind::kActivation:
      return "activation";
    case MessageKind::kGradient:
      return "gradient";
    case MessageKind::kNormTerms:
      return "norm terms";
    case MessageKind::kTiedGradient:
      return "tied gradient";
  }
  return "unknown";
}

}  // namespace geopipe
