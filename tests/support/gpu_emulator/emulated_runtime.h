// The emulated GPU's part of the port that stands for the CUDA runtime.
#pragma once

#include "runtime/gpu/port/gpu_port.h"
#include "tests/support/gpu_emulator/emulated_driver.h"

namespace geopipe::emulator {

extern const GpRuntime kRuntime;

// Refuses calls while the settings cannot be read, and those of host functions.
inline GpResult CheckCall(const Driver& driver) {
  if (Driver::IsInHostFunction()) {
    return Fail(kGpInvalid, "a host function may not call the port (cudaErrorNotPermitted)");
  }
  return driver.settings_error().empty() ? kGpOk : Fail(kGpInvalid, driver.settings_error());
}

// Calls call(driver, arguments...).
template <auto kCall, class... Arguments>
GpResult WithDriver(Arguments... arguments) {
  Driver& driver = Driver::Get();
  const GpResult checked = CheckCall(driver);
  return checked == kGpOk ? kCall(driver, arguments...) : checked;
}

// Calls call(driver, device, arguments...) with the current device, unless there is none or it is lost.
template <auto kCall, class... Arguments>
GpResult OnDevice(Arguments... arguments) {
  Driver& driver = Driver::Get();
  if (const GpResult checked = CheckCall(driver); checked != kGpOk) {
    return checked;
  }
  Device* device = driver.Current();
  if (device == nullptr) {
    return Fail(kGpInvalid, "the calling thread uses no device; call use_device first");
  }
  return device->lost() != 0 ? ResultOf(device->lost()) : kCall(driver, *device, arguments...);
}

}  // namespace geopipe::emulator
