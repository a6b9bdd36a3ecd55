// Paths as people write them. `~`: a shell expands it in its own words, but not in a file's, nor behind `=`; taken
// literally it makes a folder of that name. The command line stands for the person who types, so `~` there is their
// home; a daemon's home is another, so it takes whole paths alone.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <string_view>

namespace geopipe {

// Replaces a leading `~` or `~/` by $HOME. InvalidArgument: `~user`, or $HOME names no folder.
absl::StatusOr<std::string> ExpandHome(std::string_view path);

// Returns InvalidArgument when `path` begins with `~`.
absl::Status RefuseHome(std::string_view path);

// InvalidArgument: a path in a file that only another program would take for one: the address of a store or a server
// (s3://...), or one with a variable ($NAME, ${NAME}), which nobody expands. Taken literally, both make folders of such
// names.
absl::Status CheckIsPath(std::string_view path);

}  // namespace geopipe
