// Names for threads, as `top -H` and debuggers show them.
#pragma once

#include <string>

namespace geopipe {

// Of the calling thread; at most 15 characters are kept.
void NameThisThread(const std::string& name);

}  // namespace geopipe
