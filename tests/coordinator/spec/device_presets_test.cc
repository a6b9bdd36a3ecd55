#include "coordinator/spec/device_presets.h"

#include <catch2/catch.hpp>
#include <set>

#include "optimizer/model/cluster.h"

namespace geopipe {
namespace {

TEST_CASE("every preset has all figures, a source and a name that says its memory") {
  std::set<std::string_view> names;
  for (const DevicePreset& preset : DevicePresets()) {
    INFO(preset.name);
    CHECK(names.insert(preset.name).second);
    CHECK(preset.name != kHostDevice);
    CHECK(preset.name.ends_with(std::to_string(preset.memory_bytes / 1'000'000'000) + "gb"));
    CHECK(preset.peak_flops > 3e14);
    CHECK(preset.peak_flops < 3e15);
    // Real devices all do between 100 and 1,000 floating-point operations a byte.
    CHECK(preset.peak_flops / preset.memory_bandwidth_bytes_per_s > 100);
    CHECK(preset.peak_flops / preset.memory_bandwidth_bytes_per_s < 1000);
    CHECK(preset.intra_node_bandwidth_bytes_per_s > 0);
    CHECK(preset.intra_node_bandwidth_bytes_per_s < preset.memory_bandwidth_bytes_per_s);
    CHECK(preset.host_bandwidth_bytes_per_s >= 32e9);
    CHECK(preset.host_bandwidth_bytes_per_s <= preset.intra_node_bandwidth_bytes_per_s);
    CHECK((preset.source.starts_with("NVIDIA ") || preset.source.starts_with("AMD ")));
    CHECK(FindDevicePreset(preset.name) == &preset);
  }
  CHECK(names.size() == 8);
}

TEST_CASE("an H100 is what its datasheet says, per direction and without sparsity") {
  const DevicePreset* h100 = FindDevicePreset("h100-sxm-80gb");
  REQUIRE(h100 != nullptr);
  CHECK(h100->memory_bytes == 80'000'000'000);
  CHECK(h100->peak_flops == 989e12);
  CHECK(h100->memory_bandwidth_bytes_per_s == 3.35e12);
  CHECK(h100->intra_node_bandwidth_bytes_per_s == 450e9);
  CHECK(FindDevicePreset("h100") == nullptr);
  CHECK(DevicePresetNames().starts_with("a100-sxm-40gb, a100-sxm-80gb, "));
}

}  // namespace
}  // namespace geopipe
