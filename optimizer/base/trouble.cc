#include "optimizer/base/trouble.h"

namespace geopipe {
namespace {

constexpr char kNodeMark[] = "geopipe/of-node";

}  // namespace

absl::Status OfNode(absl::Status status) {
  status.SetPayload(kNodeMark, absl::Cord());
  return status;
}

bool IsOfNode(const absl::Status& status) { return status.GetPayload(kNodeMark).has_value(); }

absl::Status Reworded(const absl::Status& status, std::string_view message) {
  absl::Status other(status.code(), absl::string_view(message.data(), message.size()));
  status.ForEachPayload([&](absl::string_view mark, const absl::Cord& payload) { other.SetPayload(mark, payload); });
  return other;
}

}  // namespace geopipe
