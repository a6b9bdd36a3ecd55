// Scheduling of threads that sleep nearly always and are late when they are not run at once.
#pragma once

namespace geopipe {

// Asks the kernel to run the calling thread as soon as it wakes up, before threads of this machine that compute: it
// gets a short time slice (Linux 6.12; older kernels ignore it), timers to the nanosecond (PreciseTimers) and, where
// the process may (CAP_SYS_NICE), a higher priority. A scheduler that lets a computing thread finish its slice first
// would add up to that slice, 3 ms as a rule, to every message. Best effort: false when neither was granted.
// Never a real-time thread: UCX's own threads share spin locks with those that call it, and would not get to run.
bool PreferQuickWakeup();

// Stops the kernel from coalescing the calling thread's timers: by default a sleep may last 50 us longer than asked
// for. Best effort.
void PreciseTimers();

}  // namespace geopipe
