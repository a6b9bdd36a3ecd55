// The emulated GPU: a library with the port of libgeopipe_cuda.so that runs on processors, for tests. It is opened the
// same way (runtime/gpu/open_port.h), from EmulatedGpuLibrary().
//
// It differs from a processor where a GPU does. Device memory lies at addresses that the host cannot touch, and holds
// NaNs until it is written; host memory that is not pinned cannot be copied. Work runs late, and each stream's in any
// order against the others' that the events allow, drawn from a seed. Kernels are the GPU's own sources. Products have
// cuBLASLt's limits. An access that a GPU would refuse ends the device.
//
// Settings come from the environment variable GEOPIPE_EMULATED_GPU, or Restart:
//   settings = [setting {"," setting}];  setting = key "=" value
//   seed=N            of the order of work (default 0)
//   devices=N         that the driver sees, 0 to 8 (1)
//   memory_bytes=N    of a device (1073741824)
//   driver=M.N        newest CUDA that the driver runs; 0.0: none is installed (13.0)
//   runtime=M.N       version of the CUDA runtime (13.0)
//   architecture=N    10 * major + minor (90)
//   clock=real|modelled  of event_elapsed: real time, or that of a GPU as modelled (real)
// and planted faults, at the Nth call or launch of the process, from 1; 0, the default: never:
//   out_of_memory_at=N       the Nth device_allocate finds no memory
//   host_out_of_memory_at=N  the Nth host_allocate finds none
//   lost_at=N                the Nth launch of a kernel or product accesses an illegal address: its device is lost
//   stuck_at=N               the Nth launch never ends, nor do calls that wait for it: those that free or unregister
//                            memory, and exit()
//   off_bus_at=N             at the Nth launch the device falls off the bus: the launch and every later call fail
//   wrong_product_at=N       the first element of the Nth product is twice or half of what it has to be
//   once=FILE  of all processes with these settings, faults happen only in the one that is first to come to one, which
//              makes the file (none)
// A setting that cannot be read is the error of every call.
#pragma once

#include <stdint.h>

#include "runtime/gpu/port/gpu_port.h"

#ifdef __cplusplus
extern "C" {
#endif

// NOLINTBEGIN(modernize-use-using): plain C, as the port.

#define GP_EMULATOR_SYMBOL "geopipe_gpu_emulator"

// Calls of the port since the process or Restart began, whether they succeeded or not.
typedef struct GpEmulatorCounters {
  int64_t device_allocations;
  int64_t device_frees;
  int64_t host_allocations;  // pinned
  int64_t host_frees;
  int64_t registrations;
  int64_t waits;     // stream_synchronize and event_synchronize
  int64_t plans;     // GpProducts.make
  int64_t launches;  // kernels, of which a launcher may start several, and products
  int64_t products;  // of these
  int64_t copies;
  int64_t copied_bytes;
  int64_t fills;
  int64_t host_calls;    // stream_call_host
  int64_t device_bytes;  // allocated now
  int64_t peak_device_bytes;
} GpEmulatorCounters;

typedef struct GpEmulator {
  // Takes new settings (NULL: the environment's), as if the process began anew: counters are 0, and all objects and
  // memory are gone. kGpInvalid: the settings cannot be read. REQUIRES: no other thread is in the port.
  GpResult (*restart)(const char* settings);
  void (*counters)(GpEmulatorCounters* counters);
} GpEmulator;

// NOLINTEND(modernize-use-using)

#ifdef __cplusplus
}  // extern "C"
#endif
