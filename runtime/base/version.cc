#include "runtime/base/version.h"

namespace geopipe {

std::string_view Version() { return GEOPIPE_VERSION; }

}  // namespace geopipe
