// Limits that the system sets to this process: on descriptors, threads and memory.
#pragma once

#include <absl/status/status.h>

namespace geopipe {

// ResourceExhausted, with the remedy: this process may have fewer descriptors open than gRPC needs, which ends the
// process where it gets none. Raises the soft limit as far as that and the hard one allow. Call before gRPC begins.
absl::Status EnoughDescriptors();

// Makes the library's exceptions for want of threads or memory end the process with exit code 1 and one sentence on
// standard error that begins with `program`, in place of SIGABRT. `program` lives for ever.
void EndWhereResourcesEnd(const char* program);

}  // namespace geopipe
