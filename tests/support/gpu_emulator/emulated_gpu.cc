#include "tests/support/gpu_emulator/emulated_gpu.h"

#include <dlfcn.h>

#include "optimizer/base/check.h"
#include "runtime/gpu/open_port.h"

namespace geopipe {

std::string EmulatedGpuLibrary() { return GEOPIPE_BINARY_DIR "/bin/libgeopipe_cuda_emulated.so"; }

const GpEmulator& TheGpuEmulator() {
  static const auto* emulator = [] {
    void* library = dlopen(EmulatedGpuLibrary().c_str(), RTLD_NOW | RTLD_LOCAL);
    GP_CHECK(library != nullptr, "{}", dlerror());
    return static_cast<const GpEmulator*>(dlsym(library, GP_EMULATOR_SYMBOL));
  }();
  GP_CHECK(emulator != nullptr, "the library has no {}", GP_EMULATOR_SYMBOL);
  return *emulator;
}

EmulatedGpu::EmulatedGpu(const std::string& settings) {
  GP_CHECK(TheGpuEmulator().restart(settings.c_str()) == kGpOk, "settings {}", settings);
  const absl::StatusOr<const GpPort*> port = OpenGpuPort(EmulatedGpuLibrary());
  GP_CHECK(port.ok(), "{}", port.status().ToString());
  port_ = *port;
  GP_CHECK(runtime().use_device(0) == kGpOk, "{}", runtime().last_error());
}

EmulatedGpu::~EmulatedGpu() { TheGpuEmulator().restart(""); }

GpEmulatorCounters EmulatedGpu::counters() const {
  GpEmulatorCounters counters = {};
  TheGpuEmulator().counters(&counters);
  return counters;
}

GpStream EmulatedGpu::Stream() const {
  GpStream stream = nullptr;
  GP_CHECK(runtime().stream_create(&stream) == kGpOk, "{}", runtime().last_error());
  return stream;
}

GpEvent EmulatedGpu::Event(bool is_timed) const {
  GpEvent event = nullptr;
  GP_CHECK(runtime().event_create(is_timed ? 1 : 0, &event) == kGpOk, "{}", runtime().last_error());
  return event;
}

void* EmulatedGpu::DeviceMemory(int64_t bytes) const {
  void* memory = nullptr;
  GP_CHECK(runtime().device_allocate(bytes, &memory) == kGpOk, "{}", runtime().last_error());
  return memory;
}

void* EmulatedGpu::PinnedMemory(int64_t bytes) const {
  void* memory = nullptr;
  GP_CHECK(runtime().host_allocate(bytes, &memory) == kGpOk, "{}", runtime().last_error());
  return memory;
}

}  // namespace geopipe
