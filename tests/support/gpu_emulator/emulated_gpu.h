// The emulated GPU (gpu_emulator.h) as tests use it.
#pragma once

#include <string>

#include "runtime/gpu/port/gpu_port.h"
#include "tests/support/gpu_emulator/gpu_emulator.h"

namespace geopipe {

std::string EmulatedGpuLibrary();

// The library opened as a program opens it, begun anew with these settings, and with device 0 in use on this thread.
// REQUIRES: the settings have a device, and no other EmulatedGpu lives.
class EmulatedGpu {
 public:
  explicit EmulatedGpu(const std::string& settings = "");
  EmulatedGpu(const EmulatedGpu&) = delete;
  EmulatedGpu& operator=(const EmulatedGpu&) = delete;
  ~EmulatedGpu();

  const GpPort& port() const { return *port_; }
  const GpRuntime& runtime() const { return port_->runtime; }
  GpEmulatorCounters counters() const;

  // Objects of the port; fail the process when there is none. They stay until Restart.
  GpStream Stream() const;
  GpEvent Event(bool is_timed = false) const;
  void* DeviceMemory(int64_t bytes) const;
  void* PinnedMemory(int64_t bytes) const;

 private:
  const GpPort* port_;
};

// The library's table for tests. Works with settings that OpenGpuPort refuses.
const GpEmulator& TheGpuEmulator();

}  // namespace geopipe
