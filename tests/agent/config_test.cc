#include "agent/config.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "runtime/base/files.h"

namespace geopipe::agent {
namespace {

constexpr std::string_view kFile = R"(site: east
coordinator: 127.0.0.1:7070
state_dir: /run/geopipe
worker_binary: /bin/true
devices: {count: 2, kind: a100, memory: 2GiB, threads: 4, peak_flops: 1e12, memory_bandwidth: 1.6TB/s, efficiency: 0.4}
ucx: {tls: rc, net_devices: lo}
network: {bandwidth: 400Gbps, latency: 5us, per: node, shape: true}
links:
  - {to: west, latency: 20ms, bandwidth: 1Gbps, shape: true, pacer_path: /tmp/pacer}
  - {to: north, latency: 5ms, bandwidth: 2Gbps}
orphan_grace: 10s
die_with_parent: true
)";

absl::StatusOr<AgentConfig> Read(const std::string& text, const std::vector<std::string>& settings = {}) {
  const TempFolder folder = *TempFolder::Create("geopipe-agent-config");
  const std::string path = folder.path() / "agent.yaml";
  std::ofstream(path) << text;
  return ReadAgentConfig(path, settings);
}

TEST_CASE("every key of the agent's configuration is read") {
  const absl::StatusOr<AgentConfig> config = Read(std::string(kFile));
  INFO(config.status().ToString());
  REQUIRE(config.ok());
  CHECK(config->site == "east");
  CHECK(config->node == "east-0");
  CHECK(config->coordinator == "127.0.0.1:7070");
  CHECK(config->state_dir == "/run/geopipe");
  CHECK(config->worker_binary == "/bin/true");
  CHECK(config->devices == 2);
  CHECK(config->threads == 4);
  CHECK(config->device.kind == "a100");
  CHECK(config->device.memory_bytes == int64_t{2} << 30);
  CHECK(config->device.peak_flops == 1e12);
  CHECK(config->device.memory_bandwidth_bytes_per_s == 1.6e12);
  CHECK(config->device.efficiency == 0.4);
  CHECK(config->ucx_tls == "rc");
  CHECK(config->ucx_net_devices == "lo");
  CHECK(config->network.spec ==
        NetworkSpec{.bandwidth_bytes_per_s = 5e10, .latency_ns = 5'000, .per = NetworkSpec::Per::kNode});
  CHECK(config->network.shape);
  REQUIRE(config->links.size() == 2);
  CHECK(config->links[0].latency_ns == 20'000'000);
  CHECK(config->links[0].bandwidth_bytes_per_s == 1.25e8);
  CHECK(config->links[0].shape);
  CHECK_FALSE(config->links[1].shape);
  CHECK(config->orphan_grace_ns == int64_t{10'000'000'000});
  CHECK(config->die_with_parent);
  CHECK(config->SocketPath() == "/run/geopipe/agent.sock");
  CHECK(config->PacerPath("west") == "/tmp/pacer");
  CHECK(config->PacerPath("north") == "/run/geopipe/pacer-east-north");
}

TEST_CASE("settings come over the file") {
  const auto config = Read(std::string(kFile), {"devices.count=3", "node=n7"});
  REQUIRE(config.ok());
  CHECK(config->devices == 3);
  CHECK(config->node == "n7");
  CHECK(Read(std::string(kFile), {"devices.count=0"}).status().message() ==
        "--set devices.count=0: devices.count: is 0; it must be from 1 to 256");
}

TEST_CASE("a data plane beyond the loopback device has to be allowed") {
  const auto refused = Read(std::string(kFile), {"ucx.net_devices=eth1"});
  CHECK(refused.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(refused.status().message()), Catch::Contains("ucx.allow_unprotected"));
  const auto undeclared = Read(std::string(kFile), {"ucx.net_devices=eth1", "ucx.allow_unprotected=true"});
  CHECK_THAT(std::string(undeclared.status().message()),
             Catch::StartsWith("--set ucx.allow_unprotected=true: is true, and UCX obeys whoever connects: declare"));
  const auto config = Read(std::string(kFile), {"ucx.net_devices=eth1", "ucx.allow_unprotected=true",
                                                "ucx.private_network=10.20.0.0/16", "ucx.ports=47000-47063"});
  REQUIRE(config.ok());
  CHECK(config->ucx_net_devices == "eth1");
  CHECK(config->ucx_private_network == "10.20.0.0/16");
  CHECK(config->ucx_ports == "47000-47063");
}

TEST_CASE("networks and ports that cannot be are refused") {
  const auto [setting, message] = GENERATE(table<std::string, std::string>({
      {"ucx.private_network=10.20.0.0/16", "has no effect without ucx.allow_unprotected"},
      {"ucx.ports=47000", "'47000' is not a range of ports from 1024 to 65535; write it like 47000-47063"},
      {"ucx.ports=47000-47003", "'47000-47003' are 4 ports; 2 devices and a probe need 14"},
  }));
  CHECK_THAT(std::string(Read(std::string(kFile), {setting}).status().message()), Catch::Contains(message));
  const auto broad = Read(std::string(kFile), {"ucx.allow_unprotected=true", "ucx.private_network=0.0.0.0/0"});
  CHECK_THAT(std::string(broad.status().message()),
             Catch::Contains("is not an IPv4 network with a prefix of 8 to 32 bits"));
}

TEST_CASE("mistakes in the configuration are named with their place") {
  const auto [change, to, message] = GENERATE(table<std::string, std::string, std::string>({
      {"site: east", "sitee: east", "agent.yaml:1:1"},
      {"site: east\n", "", "site"},
      {"coordinator: 127.0.0.1:7070", "coordinator: 127.0.0.1", "is not host:port"},
      {"coordinator: 127.0.0.1:7070", "coordinator: ::1:7070", "IPv6 in brackets, like [::1]:7070"},
      {"memory: 2GiB", "memory: 2GiB, reserve: 2GiB", "devices.reserve: is 2GiB of devices.memory 2GiB; it must leave"},
      {"latency: 5ms, ", "latency: 5ms, slowdown: 2, shape: false, ",
       "slows down what is shaped, and this link is not"},
      {"coordinator: 127.0.0.1:7070", "coordinator: 10.0.0.1:7070", "agent.yaml:2:14"},
      {"coordinator: 127.0.0.1:7070", "coordinator: 10.0.0.1:7070", "without certificates"},
      {"count: 2", "count: 0", "it must be from 1 to"},
      {"threads: 4", "threads: -1", "it must be from 1 to"},
      {"memory: 2GiB", "memory: 2", "unit"},
      {"efficiency: 0.4", "efficiency: 1.5", "at most 1"},
      {"orphan_grace: 10s", "orphan_grace: 0s", "it must be from 6s to 720h"},
      {"to: north", "to: west", "agent.yaml:10:10"},
      {"to: north", "to: east", "name each other site once"},
      {"latency: 5ms, ", "", "latency"},
      {"bandwidth: 400Gbps, ", "", "network.bandwidth"},
      {"state_dir: /run/geopipe", "state_dir: /" + std::string(120, 'x'), "choose a shorter folder"},
  }));
  std::string text(kFile);
  text.replace(text.find(change), change.size(), to);
  const auto config = Read(text);
  CAPTURE(text, config.status().ToString());
  CHECK(config.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(config.status().message()), Catch::Contains(message));
}

TEST_CASE("devices of kind cuda are GPUs, one for each") {
  const auto with = [](const std::string& keys) {
    std::string text(kFile);
    const std::string kind = "kind: a100";
    return Read(text.replace(text.find(kind), kind.size(), keys));
  };
  CHECK(with("kind: a100")->GpuOf(1).empty());
  CHECK(with("kind: cuda")->GpuOf(1) == "1");
  const auto by_ordinal = with("kind: cuda, ordinals: [3, 0]");
  REQUIRE(by_ordinal.ok());
  CHECK(by_ordinal->GpuOf(0) == "3");
  CHECK(by_ordinal->GpuOf(1) == "0");
  const auto by_uuid = with("kind: cuda, uuids: [GPU-0a-1b, MIG-2c]");
  REQUIRE(by_uuid.ok());
  CHECK(by_uuid->GpuOf(1) == "MIG-2c");
  const auto shared = with("kind: cuda, ordinals: [0, 0], share_gpus: true");
  REQUIRE(shared.ok());
  CHECK(shared->GpuOf(1) == "0");

  const auto [keys, message] = GENERATE(table<std::string, std::string>({
      {"ordinals: [0, 1]", "devices.ordinals: names GPUs, and devices.kind is 'cpu'; set devices.kind: cuda, or leave"},
      {"kind: cuda, ordinals: 0", "devices.ordinals: names 1 GPU, and devices.count is 2; name one for each device"},
      {"kind: cuda, ordinals: [1, 1]", "devices.ordinals: names GPU 1 twice; give each device a GPU of its own, or"},
      {"kind: cuda, uuids: [GPU-0a, GPU-0a]", "devices.uuids: names GPU GPU-0a twice"},
      {"kind: cuda, uuids: [GPU-0a, 1]", "devices.uuids: [1] is '1'; write it as `nvidia-smi -L` does"},
      {"kind: cuda, ordinals: [0, 1], uuids: [GPU-0a, GPU-0b]", "is given, and devices.ordinals too"},
      {"kind: cuda, share_gpus: true", "devices.share_gpus: has no effect without devices.ordinals or devices.uuids"},
      {"kind: cuda, ordinals: [0, 256]", "it must be from 0 to 255"},
  }));
  CAPTURE(keys);
  CHECK_THAT(std::string(with(keys).status().message()), Catch::Contains(message));
}

TEST_CASE("a setting without a value and a missing file are errors") {
  CHECK_THAT(std::string(Read(std::string(kFile), {"site"}).status().message()), Catch::Contains("--set site"));
  CHECK(ReadAgentConfig("/nowhere/agent.yaml", {}).status().code() == absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace geopipe::agent
