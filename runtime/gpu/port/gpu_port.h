// The port: the table of C functions through which the runtime reaches a GPU. libgeopipe_cuda.so implements it over
// CUDA; a library for tests implements it on processors. Callers open it with OpenGpuPort (runtime/gpu/open_port.h).
//
// A library exports the table alone, under the name GP_PORT_SYMBOL. Groups that come with later versions (attention,
// bytes among ranks) are appended to the table and raise kGpPortVersion; nothing that stands here changes its meaning.
//
// Rules for all functions:
// - They return a GpResult; unless it is kGpOk or kGpNotReady, `last_error` has a sentence about it for that thread.
// - They may be called on any thread, those with a "current device" after UseDevice on that thread. An object belongs
//   to the device that was current when it was made, and only calls with that device current may name it.
// - They enqueue on a stream, or return at once, unless they say that they block. Work on one stream is done in order.
// - kGpDeviceLost is sticky: once it was returned, the process can do no more work on that device and has to end.
// - Sizes are bytes, extents and strides are elements, times are nanoseconds.
#pragma once

#include <stdint.h>

#include "runtime/gpu/port/gpu_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// NOLINTBEGIN(modernize-use-using): the header is plain C.

#define GP_PORT_SYMBOL "geopipe_gpu_port"
enum { kGpPortVersion = 1 };

typedef int32_t GpResult;
enum {
  kGpOk = 0,
  kGpNotReady = 1,     // queries only: work before is still to do
  kGpOutOfMemory = 2,  // of the device, or of pinned host memory; the device goes on
  kGpDeviceLost = 3,   // sticky: an illegal address, a failed kernel, an ECC error, a device off the bus
  kGpUnsupported = 4,  // the device or a library has no such thing
  kGpInvalid = 5,      // the caller's mistake
  kGpInternal = 6,     // any other error of the driver or a library
};

typedef void* GpStream;  // a queue of work
typedef void* GpEvent;   // a mark in a stream

// Versions of libraries: 1000 * major + 10 * minor for those of CUDA.
typedef struct GpVersions {
  int32_t driver;          // newest CUDA that the driver runs; 0: no driver is installed
  int32_t runtime;         // of the CUDA runtime that was loaded
  int32_t toolkit;         // of the toolkit that built the library
  int32_t reserved;        // 0
  int64_t products;        // of cuBLASLt, as it counts: 10000 * major + 100 * minor + patch
  char kernels[65];        // SHA-256 of the sources of the kernels, hexadecimal
  char products_name[31];  // "cuBLASLt"
} GpVersions;

typedef struct GpDeviceProperties {
  char name[256];               // "NVIDIA H100 80GB HBM3"
  char uuid[48];                // "GPU-8f3a...", as nvidia-smi and CUDA_VISIBLE_DEVICES write it
  char pci_address[16];         // "0000:3b:00.0"
  int32_t architecture;         // compute capability, 10 * major + minor: 90
  int32_t multiprocessors;      // streaming multiprocessors (SMs)
  int32_t copy_engines;         // copies that run beside kernels at once
  int32_t can_register_memory;  // 1: `host_register` works
  int64_t memory_bytes;
  int64_t l2_cache_bytes;
} GpDeviceProperties;

typedef void (*GpHostFunction)(void* data);

typedef struct GpRuntime {
  // A sentence about this thread's last error; "" when it had none. It holds until the thread's next call.
  const char* (*last_error)(void);
  // Turns what a launcher of `kernels` returned into a result and its sentence.
  GpResult (*launch_result)(int32_t error);
  // Needs no device and no driver.
  GpResult (*versions)(GpVersions* versions);

  // Number of devices that the process may use (CUDA_VISIBLE_DEVICES counts). kGpUnsupported: no driver, or one older
  // than the runtime needs.
  GpResult (*device_count)(int32_t* count);
  // REQUIRES: 0 <= ordinal < count, here and below. Makes no context.
  GpResult (*device_properties)(int32_t ordinal, GpDeviceProperties* properties);
  // Ordinal of the device with this UUID. kGpInvalid: the process sees none such.
  GpResult (*device_by_uuid)(const char* uuid, int32_t* ordinal);
  // Makes the device the calling thread's current one, and its context at the first call (a second or so).
  GpResult (*use_device)(int32_t ordinal);
  // An error that ended the current device, or kGpOk. Costs some microseconds.
  GpResult (*health)(void);
  // Memory of the current device, free for this process and in all.
  GpResult (*memory_info)(int64_t* free_bytes, int64_t* total_bytes);

  // A stream is independent of all others. Destroying blocks until its work is done.
  GpResult (*stream_create)(GpStream* stream);
  GpResult (*stream_destroy)(GpStream stream);
  // kGpNotReady while work is to do.
  GpResult (*stream_query)(GpStream stream);
  // Blocks until all work enqueued so far is done.
  GpResult (*stream_synchronize)(GpStream stream);
  // Later work of the stream waits for the event's last record; an event never recorded is over.
  GpResult (*stream_wait_event)(GpStream stream, GpEvent event);
  // Calls `function` on a thread of the library behind the stream's work, which goes on when it returns. It may not
  // call the port and must be short: it is there to write to an eventfd. It is not called once the device is lost.
  GpResult (*stream_call_host)(GpStream stream, GpHostFunction function, void* data);

  // is_timed: 1 for an event that event_elapsed takes; others are cheaper.
  GpResult (*event_create)(int32_t is_timed, GpEvent* event);
  GpResult (*event_destroy)(GpEvent event);
  GpResult (*event_record)(GpEvent event, GpStream stream);
  // kGpNotReady until the work before the last record is done.
  GpResult (*event_query)(GpEvent event);
  // Blocks until then, without spinning.
  GpResult (*event_synchronize)(GpEvent event);
  // Device time from one event to another; both timed and over. Resolution: half a microsecond.
  GpResult (*event_elapsed)(GpEvent begin, GpEvent end, int64_t* elapsed_ns);

  // Memory of the current device, aligned to 256 bytes and not zeroed. Both may block until the device is idle.
  // kGpOutOfMemory leaves *memory NULL.
  GpResult (*device_allocate)(int64_t bytes, void** memory);
  GpResult (*device_free)(void* memory);
  // Pinned host memory, page-aligned and not zeroed, for every device. Both may block.
  GpResult (*host_allocate)(int64_t bytes, void** memory);
  GpResult (*host_free)(void* memory);
  // Pins memory that the caller mapped (a memfd), so that copies may name it until host_unregister. May block.
  // kGpUnsupported: the host or the device cannot; kGpInvalid: part of it is registered already.
  GpResult (*host_register)(void* memory, int64_t bytes);
  GpResult (*host_unregister)(void* memory);

  // Enqueues a copy between device memory and pinned or registered host memory, either way or within one of them. Both
  // must stay until it is done, and not overlap. REQUIRES: no other host memory, for which the call could block.
  GpResult (*copy)(const void* from, void* to, int64_t bytes, GpStream stream);
  // Enqueues setting device memory to a byte.
  GpResult (*fill)(void* memory, uint8_t byte, int64_t bytes, GpStream stream);
} GpRuntime;

// A batch of products of row-major matrices: D = op(A) * op(B) + C + row, where op transposes or not, D is [m, n] and
// the sums run over k. They are made in fp32, and D is rounded once. Strides are between rows, of the matrices as they
// lie in memory, and between the matrices of the batch.
//
// Types of A and B, and of C and D: fp32 and fp32, bf16 and bf16, bf16 and fp32. Others are kGpUnsupported. fp32 is not
// rounded to TF32.
typedef struct GpProductShape {
  GpDType operand_type;
  GpDType result_type;
  int32_t a_transposed;  // 1: A lies as [k, m], else as [m, k]
  int32_t b_transposed;  // 1: B lies as [n, k], else as [k, n]
  int64_t m;             // extents are at least 1
  int64_t n;
  int64_t k;
  int64_t a_stride;
  int64_t b_stride;
  int64_t c_stride;  // of no meaning without an addend
  int64_t d_stride;
  int64_t batch;           // at least 1
  int64_t a_batch_stride;  // 0: the same matrix for all; likewise B's and C's
  int64_t b_batch_stride;
  int64_t c_batch_stride;
  int64_t d_batch_stride;
  // 1: a matrix C is added. It may be D (then their strides are equal) or lie elsewhere.
  int32_t has_addend;
  // 1: a vector [n] of fp32 is added to each row. kGpUnsupported unless D is fp32 and batch is 1.
  int32_t has_row;
  // Powers of two from the size of an element to 256, to which the pointers of a run are aligned; of no meaning for
  // what the shape has not. To have the same bits whatever the addresses, take them from extents and strides.
  int32_t a_alignment_bytes;
  int32_t b_alignment_bytes;
  int32_t c_alignment_bytes;
  int32_t d_alignment_bytes;
  int32_t row_alignment_bytes;
  // The plan is made for so many SMs. A constant gives the same plan on devices with different numbers of them; 0: the
  // device's own.
  int32_t multiprocessors;
  // Greatest workspace that the plan may ask for.
  int64_t workspace_limit_bytes;
} GpProductShape;

typedef struct GpProductOperands {
  const void* a;
  const void* b;
  const void* c;     // NULL without an addend
  const float* row;  // NULL without one
  void* d;           // overlaps neither a nor b
} GpProductOperands;

typedef struct GpProductPlan GpProductPlan;  // of the library

typedef struct GpProducts {
  // Makes a plan for the current device. It depends on the shape, the device's architecture and the library's version,
  // never on timing or earlier calls, and a plan's results have the same bits at every run. The first call on a device
  // takes long. kGpUnsupported: the library has no such product. On an error *plan is NULL.
  GpResult (*make)(const GpProductShape* shape, GpProductPlan** plan);
  // Bytes of workspace that a run needs, at most the shape's limit.
  int64_t (*workspace_bytes)(const GpProductPlan* plan);
  // Enqueues the product. `workspace`, aligned to 256 bytes, has at least workspace_bytes(plan) and belongs to the run
  // until it is done; runs on one stream may share it. kGpInvalid: too little workspace, an operand that is missing or
  // less aligned than the shape promised. One thread at a time may run a plan.
  GpResult (*run)(GpProductPlan* plan, const GpProductOperands* operands, void* workspace, int64_t workspace_bytes,
                  GpStream stream);
  // Runs that are enqueued go on. NULL is let pass.
  void (*destroy)(GpProductPlan* plan);
} GpProducts;

typedef struct GpPort {
  uint32_t version;  // kGpPortVersion
  uint32_t bytes;    // sizeof(GpPort)
  GpRuntime runtime;
  GpKernels kernels;
  GpProducts products;
} GpPort;

// NOLINTEND(modernize-use-using)

#ifdef __cplusplus
}  // extern "C"
#endif
