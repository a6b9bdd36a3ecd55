// An error may be the trouble of a job or of a node. What a job is made of (its model, tokens, numbers) follows it to
// every node; what its node lacks for the moment (an errno, memory that others hold) may be over soon, or is not so on
// another node. An error says so by a mark that stays on it when its words change.
#pragma once

#include <absl/status/status.h>

#include <string_view>

namespace geopipe {

// Marks the error as the node's.
absl::Status OfNode(absl::Status status);
bool IsOfNode(const absl::Status& status);

// The same error in other words: with its code and marks.
absl::Status Reworded(const absl::Status& status, std::string_view message);

}  // namespace geopipe
