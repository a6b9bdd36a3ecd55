// Names for threads, as `top -H` and debuggers show them, and their processor time.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <string>

namespace geopipe {

// Names the calling thread; at most 15 characters are kept.
void NameThisThread(const std::string& name);

// Processor time that the thread has taken. REQUIRES: it has not been joined.
int64_t ThreadCpuNs(pthread_t thread);

}  // namespace geopipe
