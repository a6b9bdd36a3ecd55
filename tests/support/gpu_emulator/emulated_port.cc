#include "optimizer/base/check.h"
#include "runtime/gpu/kernels/fibers.h"
#include "runtime/gpu/kernels/launchers.h"
#include "runtime/gpu/port/gpu_port.h"
#include "tests/support/gpu_emulator/emulated_driver.h"
#include "tests/support/gpu_emulator/emulated_products.h"
#include "tests/support/gpu_emulator/emulated_runtime.h"

namespace geopipe::emulator {
namespace {

constexpr int64_t kKernelNs = 5000;  // modelled

int32_t SubmitKernel(GpStream stream, std::function<void()> work) {
  return Driver::Get().Launch(stream, std::move(work), kKernelNs);
}

void* ProcessorAddress(void* address) {
  GP_CHECK(Driver::Get().IsAnyDeviceMemory(address), "a kernel was given {}, which is no device memory", address);
  return Real(address);
}

GpKernels KernelsOnStreams() {
  gpu::emulation::Settings& settings = gpu::emulation::TheSettings();
  settings.submit = SubmitKernel;
  settings.processor_address = ProcessorAddress;
  return gpu::kKernels;
}

GpResult Restart(const char* settings) { return Driver::Get().Restart(settings); }
void Counters(GpEmulatorCounters* counters) { *counters = Driver::Get().Counters(); }

}  // namespace
}  // namespace geopipe::emulator

// The symbols that the library exports.
extern "C" {
extern __attribute__((visibility("default"))) const GpPort geopipe_gpu_port;
const GpPort geopipe_gpu_port = {
    .version = kGpPortVersion,
    .bytes = sizeof(GpPort),
    .runtime = geopipe::emulator::kRuntime,
    .kernels = geopipe::emulator::KernelsOnStreams(),
    .products = geopipe::emulator::kProducts,
};

extern __attribute__((visibility("default"))) const GpEmulator geopipe_gpu_emulator;
const GpEmulator geopipe_gpu_emulator = {
    .restart = geopipe::emulator::Restart,
    .counters = geopipe::emulator::Counters,
};
}
