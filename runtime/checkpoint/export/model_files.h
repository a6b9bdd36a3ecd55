// The files that a model's directory has beside configuration and weights: its tokenizer, the template of its
// conversations, and how it generates.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace geopipe {

struct ModelFile {
  std::string name;  // in the folder
  std::string content;
};

// Files of a Hugging Face directory, by name. Errors: those of ReadFile, but a file that is not there is left out; an
// empty list: it has none.
absl::StatusOr<std::vector<ModelFile>> ReadModelFiles(const std::string& folder);

// Folder with the files of a checkpoint's model: that from which its job took its weights, or where this was a
// checkpoint itself, the one of that checkpoint's job, and so on. Empty: the weights were drawn. It need not be there.
std::string ModelFilesFolder(const Checkpoint& checkpoint);

}  // namespace geopipe
