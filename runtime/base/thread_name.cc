#include "runtime/base/thread_name.h"

#include <pthread.h>

namespace geopipe {

void NameThisThread(const std::string& name) {
  // Only a name that is too long could fail.
  (void)pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace geopipe
