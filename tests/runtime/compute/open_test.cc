#include "runtime/compute/open.h"

#include <catch2/catch.hpp>
#include <string>

#include "runtime/backend/cpu_backend.h"
#include "runtime/gpu/gpu_backend.h"
#include "tests/support/gpu_emulator/emulated_gpu.h"

namespace geopipe {
namespace {

TEST_CASE("the processor is opened for all kinds but cuda, whatever the GPU library") {
  for (const BackendKind kind : kBackendKinds) {
    if (kind == BackendKind::kCuda) {
      continue;
    }
    CHECK(CanOpen(kind, 7, "/nowhere/libgeopipe_cuda.so").ok());
    const std::unique_ptr<Device> device = *OpenDevice(kind, "/nowhere/libgeopipe_cuda.so");
    CHECK(device->space() == MemorySpace::kHost);
    CHECK(!VersionsOf(*device).has_value());
  }
  Allocator allocator(1 << 20);
  const std::unique_ptr<Backend> backend = *OpenBackend(BackendKind::kCpu, 1, allocator);
  CHECK(dynamic_cast<const CpuBackend*>(backend.get()) != nullptr);
  CHECK(!InstructionsOf(BackendKind::kCpu).empty());
  CHECK(InstructionsOf(BackendKind::kCuda).empty());
  CHECK(InstructionsOf(BackendKind::kModelled).empty());
}

TEST_CASE("cuda opens a GPU and its backend, and tells the versions that results depend on") {
  const EmulatedGpu emulated("devices=2");
  CHECK(CanOpen(BackendKind::kCuda, 1, EmulatedGpuLibrary()).ok());
  CHECK(absl::IsNotFound(CanOpen(BackendKind::kCuda, 2, EmulatedGpuLibrary())));
  const std::unique_ptr<Device> device = *OpenDevice(BackendKind::kCuda, EmulatedGpuLibrary(), 1);
  CHECK(device->space() == MemorySpace::kDevice);
  CHECK(VersionsOf(*device)->name == "Emulated GPU");
  CHECK(VersionsOf(*device)->architecture == "sm_90");
  Allocator allocator(1 << 20, *device);
  const std::unique_ptr<Backend> backend = *OpenBackend(BackendKind::kCuda, 1, allocator);
  CHECK(dynamic_cast<const GpuBackend*>(backend.get()) != nullptr);
}

TEST_CASE("the port's sentences say why there is no GPU") {
  const absl::Status missing = OpenDevice(BackendKind::kCuda, "/nowhere/libgeopipe_cuda.so").status();
  CHECK(absl::IsNotFound(missing));
  CHECK_THAT(std::string(missing.message()), Catch::Contains("GPUs cannot be used") && Catch::Contains("install it"));
  CHECK(CanOpen(BackendKind::kCuda, 0, "/nowhere/libgeopipe_cuda.so") == missing);

  const EmulatedGpu emulated;
  for (const auto& [settings, sentence] :
       {std::pair<std::string, std::string>{"driver=0.0", "no NVIDIA driver is installed"},
        {"devices=0", "the NVIDIA driver sees none"},
        {"architecture=75", "compute capability 7.5"}}) {
    INFO(settings);
    REQUIRE(TheGpuEmulator().restart(settings.c_str()) == kGpOk);
    CHECK_THAT(std::string(OpenDevice(BackendKind::kCuda, EmulatedGpuLibrary()).status().message()),
               Catch::Contains(sentence));
  }
}

}  // namespace
}  // namespace geopipe
