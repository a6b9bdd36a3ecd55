#include "runtime/gpu/open_port.h"

#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "optimizer/base/trouble.h"
#include "tests/runtime/gpu/product_trial.h"
#include "tests/support/gpu_emulator/emulated_gpu.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

std::string Fixture(const std::string& name) { return std::string(GEOPIPE_FIXTURES "/") + name; }

absl::Status OpenStatus(const std::string& library) { return OpenGpuPort(library).status(); }

absl::Status StatusWith(const std::string& settings) {
  TheGpuEmulator().restart(settings.c_str());
  absl::Status status = OpenStatus(EmulatedGpuLibrary());
  TheGpuEmulator().restart("");
  return status;
}

TEST_CASE("a library that is not there is not found, with the remedy") {
  const absl::Status status = OpenStatus("libgeopipe_nowhere.so");
  CHECK(status.code() == absl::StatusCode::kNotFound);
  CHECK(std::string(status.message()) ==
        "GPUs cannot be used: libgeopipe_nowhere.so is neither beside the program nor on the library path; install it, "
        "or add its folder to LD_LIBRARY_PATH");
}

TEST_CASE("a library that needs one that is missing names it") {
  const absl::Status status = OpenStatus(Fixture("libgpu_library_alone.so"));
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(status.message()),
             Contains("libgpu_library_alone.so needs libgeopipe_absent.so, which is not on the library path; install "
                      "CUDA's libraries (CUDA runtime and cuBLAS, 12.4 or newer)"));
}

TEST_CASE("what is no library of the port is refused") {
  const TempDir folder;
  const std::string text = folder.path() + "/libgeopipe_cuda.so";
  std::ofstream(text) << "not a library";
  const absl::Status no_library = OpenStatus(text);
  CHECK(no_library.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(no_library.message()), Contains("does not load") && Contains(text));

  const absl::Status no_table = OpenStatus(Fixture("libgpu_library_no_table.so"));
  CHECK(no_table.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(no_table.message()), Contains("has no geopipe_gpu_port; it is not libgeopipe_cuda.so"));
}

TEST_CASE("a port of another version is refused before anything of it is called") {
  const absl::Status status = OpenStatus(Fixture("libgpu_library_other_version.so"));
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(IsOfNode(status));  // a worker that goes on with an earlier program may find a later library beside it
  CHECK_THAT(std::string(status.message()), Contains("port of version 2") &&
                                                Contains("this program one of version 1") &&
                                                Contains("install the library of this program's build"));
}

TEST_CASE("drivers and runtimes that are missing or too old are refused with what is needed") {
  struct Case {
    std::string settings;
    absl::StatusCode code;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"driver=0.0", absl::StatusCode::kFailedPrecondition,
       "GPUs cannot be used: no NVIDIA driver is installed; install one, or run the job with backend cpu"},
      {"driver=12.8", absl::StatusCode::kFailedPrecondition,
       "GPUs cannot be used: the NVIDIA driver runs CUDA up to 12.8, and CUDA runtime 13.0 needs 13.0 or newer; "
       "install "
       "a newer driver"},
      {"runtime=12.2,driver=13.0", absl::StatusCode::kFailedPrecondition,
       "GPUs cannot be used: the CUDA runtime is 12.2, and 12.4 or newer is needed; install a newer one"},
      {"devices=0", absl::StatusCode::kUnavailable,
       "GPUs cannot be used: the NVIDIA driver sees none; check nvidia-smi and CUDA_VISIBLE_DEVICES"},
      {"device=2", absl::StatusCode::kInternal, "there is no such key"},
  };
  for (const Case& c : cases) {
    const absl::Status status = StatusWith(c.settings);
    INFO(c.settings);
    CHECK(status.code() == c.code);
    CHECK_THAT(std::string(status.message()), Contains(c.message));
  }
}

TEST_CASE("a driver runs every minor version of its major one") {
  CHECK(StatusWith("driver=13.0,runtime=13.2").ok());
  CHECK(StatusWith("driver=12.0,runtime=12.4").ok());
  CHECK(StatusWith("driver=13.1,runtime=12.9").ok());
}

TEST_CASE("a library is opened once, however often it is asked for") {
  const absl::StatusOr<const GpPort*> first = OpenGpuPort(EmulatedGpuLibrary());
  const absl::StatusOr<const GpPort*> second = OpenGpuPort(EmulatedGpuLibrary());
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(*first == *second);
}

TEST_CASE("devices older than the kernels are refused") {
  GpDeviceProperties properties = {};
  std::strcpy(properties.name, "Tesla V100");
  std::strcpy(properties.uuid, "GPU-1");
  properties.architecture = 70;
  const absl::Status status = CheckGpuDevice(properties);
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(std::string(status.message()) ==
        "Tesla V100 (GPU-1) has compute capability 7.0, and 8.0 or newer is needed; run the job on another device");
  properties.architecture = 80;
  CHECK(CheckGpuDevice(properties).ok());
}

TEST_CASE("errors of the port become statuses with their sentence") {
  const EmulatedGpu gpu("memory_bytes=1000");
  void* memory = nullptr;
  const GpResult result = gpu.runtime().device_allocate(4096, &memory);
  const absl::Status status = GpuError(gpu.port(), result, "allocating the gradients");
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(status.message()), Contains("allocating the gradients: 4096 bytes: out of memory"));
  CHECK(GpuError(gpu.port(), kGpDeviceLost, "x").code() == absl::StatusCode::kInternal);
  CHECK(GpuError(gpu.port(), kGpUnsupported, "x").code() == absl::StatusCode::kUnimplemented);
  CHECK(GpuError(gpu.port(), kGpInvalid, "x").code() == absl::StatusCode::kInternal);
}

TEST_CASE("the library is looked for beside the program first") {
  const std::filesystem::path beside =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libgeopipe_cuda.so";
  CHECK(DefaultGpuLibrary() == (std::filesystem::exists(beside) ? beside.string() : "libgeopipe_cuda.so"));
}

TEST_CASE("the library of CUDA opens, or says what this host lacks") {
#ifdef GEOPIPE_CUDA_LIBRARY
  const absl::StatusOr<const GpPort*> port = OpenGpuPort(GEOPIPE_CUDA_LIBRARY);
  void* library = dlopen(GEOPIPE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    CHECK_THAT(std::string(port.status().message()), Contains("which is not on the library path"));
    return;
  }
  const auto* table = static_cast<const GpPort*>(dlsym(library, GP_PORT_SYMBOL));
  REQUIRE(table != nullptr);
  GpVersions versions = {};
  REQUIRE(table->runtime.versions(&versions) == kGpOk);
  CHECK(versions.runtime >= 12040);
  CHECK(versions.toolkit >= 12040);
  CHECK(versions.products >= 120400);
  CHECK(std::string(versions.kernels).size() == 64);
  if (versions.driver == 0) {
    CHECK(std::string(port.status().message()) ==
          "GPUs cannot be used: no NVIDIA driver is installed; install one, or run the job with backend cpu");
    int32_t devices = -1;
    CHECK(table->runtime.device_count(&devices) == kGpUnsupported);
    CHECK_THAT(table->runtime.last_error(), Contains("cudaErrorInsufficientDriver"));
    CHECK(table->runtime.use_device(0) != kGpOk);
    // cuBLASLt takes the whole description of a product; only its choice needs a device.
    const GpProductShape shape = ShapeOf(kGpBf16, kGpFp32, true, true, 8, 24, 16, 1, With::kAddendAndRow);
    const GpProductShape batch = ShapeOf(kGpBf16, kGpBf16, false, false, 8, 24, 16, 5, With::kAddend);
    for (const GpProductShape& described : {shape, batch}) {
      GpProductPlan* plan = nullptr;
      CHECK(table->products.make(&described, &plan) != kGpOk);
      CHECK(plan == nullptr);
      CHECK_THAT(table->runtime.last_error(), StartsWith("cudaGetDevice") || StartsWith("cublasLtCreate"));
    }
  }
  CHECK(table->runtime.stream_synchronize(nullptr) == kGpInvalid);
  CHECK(table->runtime.use_device(64) == kGpInvalid);
  CHECK(table->runtime.launch_result(0) == kGpOk);
  CHECK(table->runtime.launch_result(700) == kGpDeviceLost);
  CHECK_THAT(table->runtime.last_error(), Contains("kernel launch") && Contains("cudaErrorIllegalAddress"));
#else
  Skip("built without CUDA's toolkit");
#endif
}

}  // namespace
}  // namespace geopipe
