#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/gpu_emulator/emulated_gpu.h"

namespace geopipe {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("settings that cannot be read are named, and are the error of every call") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"seed", "\"seed\": a setting is KEY=VALUE"},
      {"", ""},
      {"seed=1,", "\"\": a setting is KEY=VALUE"},
      {"seed=", "\"seed=\": the value is a number from 0 to"},
      {"seed=-1", "\"seed=-1\": the value is a number from 0 to"},
      {"seed=1x", "the value is a number from 0 to"},
      {"seed=1,seed=1", "the key stands there twice"},
      {"devices=9", "the value is a number from 0 to 8"},
      {"driver=13", "a version is MAJOR.MINOR"},
      {"driver=13.100", "a version is MAJOR.MINOR"},
      {"clock=fast", "a clock is real or modelled"},
      {"once=here", "a file is named by its whole path"},
      {"sede=1", "there is no such key; the keys are clock, once, seed, devices"},
      {"lost_at=99999999999999999999", "the value is a number from 0 to"},
  };
  for (const auto& [settings, message] : cases) {
    INFO(settings);
    if (message.empty()) {
      CHECK(TheGpuEmulator().restart(settings.c_str()) == kGpOk);
      continue;
    }
    CHECK(TheGpuEmulator().restart(settings.c_str()) == kGpInvalid);
  }
  const EmulatedGpu gpu;
  for (const auto& [settings, message] : cases) {
    if (!message.empty()) {
      TheGpuEmulator().restart(settings.c_str());
      INFO(settings);
      int32_t devices = 0;
      CHECK(gpu.runtime().device_count(&devices) == kGpInvalid);
      CHECK_THAT(gpu.runtime().last_error(), Contains("GEOPIPE_EMULATED_GPU: ") && Contains(message));
      CHECK(gpu.runtime().health() == kGpInvalid);
    }
  }
}

TEST_CASE("settings shape the devices that the driver sees") {
  const EmulatedGpu gpu("devices=3,memory_bytes=4096,architecture=80");
  const GpRuntime& runtime = gpu.runtime();
  int32_t devices = 0;
  REQUIRE(runtime.device_count(&devices) == kGpOk);
  CHECK(devices == 3);
  GpDeviceProperties properties = {};
  REQUIRE(runtime.device_properties(2, &properties) == kGpOk);
  CHECK(properties.architecture == 80);
  CHECK(properties.memory_bytes == 4096);
  int32_t ordinal = -1;
  REQUIRE(runtime.device_by_uuid(properties.uuid, &ordinal) == kGpOk);
  CHECK(ordinal == 2);
  CHECK(runtime.device_by_uuid("GPU-none", &ordinal) == kGpInvalid);
  CHECK(runtime.device_properties(3, &properties) == kGpInvalid);
  CHECK(runtime.device_properties(-1, &properties) == kGpInvalid);
  CHECK(runtime.use_device(3) == kGpInvalid);
}

}  // namespace
}  // namespace geopipe
