// Patterns of tokenizer.json are written for Oniguruma (Ruby's syntax). This translates those of them that mean the
// same for PCRE2.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>

namespace geopipe {

// The pattern for PCRE2 with PCRE2_UTF and PCRE2_UCP. Blanks are those of Unicode's White_Space, to which PCRE2 adds
// U+180E; letters without case are written by their numbers. InvalidArgument: what it quotes is not known here, or
// means something else there; completes "pattern ...: ".
absl::StatusOr<std::string> TranslatePattern(std::string_view pattern);

}  // namespace geopipe
