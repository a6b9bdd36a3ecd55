// JSON (RFC 8259) into the tree that YAML is read into, so that schemas and errors with places serve both. Strict:
// UTF-8, one value, keys given once, no comments, no NaN, no trailing commas.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/config/yaml_reader.h"

namespace geopipe {

struct JsonLimits {
  size_t max_bytes = kMaxYamlBytes;
  int64_t max_values = kMaxYamlNodes;
};

// Texts are quoted scalars; numbers, true and false are plain ones with their spelling; null is kNull. Escaped
// surrogate pairs become the character they stand for. Columns count bytes. InvalidArgument has the form of
// YamlDocument::Error and says that it is JSON that is expected: "config.json:3:7: not valid JSON: ...".
absl::StatusOr<YamlDocument> ParseJsonDocument(std::string_view text, std::string_view file,
                                               const JsonLimits& limits = {});

}  // namespace geopipe
