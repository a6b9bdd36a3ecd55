#include "runtime/weights/json_text.h"

namespace geopipe {

nlohmann::json ParseJson(std::string_view text) {
  constexpr int kMaxDepth = 8;
  const auto keep = [](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) { return depth <= kMaxDepth; };
  return nlohmann::json::parse(text.begin(), text.end(), keep, /*allow_exceptions=*/false);
}

}  // namespace geopipe
