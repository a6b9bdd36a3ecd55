#include "agent/worker_backends.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "runtime/base/files.h"
#include "tests/agent/agent_harness.h"

namespace geopipe::agent {
namespace {

constexpr int64_t kAskLimitNs = 30 * kS;

// A node whose worker program is a shell script.
class ScriptedNode {
 public:
  explicit ScriptedNode(const std::string& script) {
    config.state_dir = folder_.path();
    config.worker_binary = (folder_.path() / "worker").string();
    std::ofstream(config.worker_binary) << "#!/bin/sh\n" << script << "\n";
    chmod(config.worker_binary.c_str(), 0700);
  }

  AgentConfig config = TestConfig();

 private:
  TempFolder folder_ = *TempFolder::Create("geopipe-backends");
};

TEST_CASE("a node's backends are what its worker program says, each time anew") {
  ScriptedNode node("echo cpu; echo 'cuda: no library; install it'; echo modelled");
  node.config.device.kind = "cuda";
  const std::vector<RefusedBackend> refused{{BackendKind::kCuda, "no library; install it"}};
  CHECK(AskBackends(node.config, kAskLimitNs) == refused);
  CHECK(AskBackends(node.config, kAskLimitNs) == refused);
}

TEST_CASE("the worker program is asked of each GPU of the devices once") {
  ScriptedNode node("echo cpu; echo \"cuda: $* $CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES\"; echo modelled");
  node.config.devices = 3;
  node.config.device.kind = "cuda";
  node.config.gpu_ordinals = {4, 2, 4};
  node.config.gpu_library = "/tests/libgpu.so";
  CHECK(AskBackends(node.config, kAskLimitNs) ==
        std::vector<RefusedBackend>{
            {BackendKind::kCuda, "--backends --gpus 2 --gpu-library /tests/libgpu.so PCI_BUS_ID 4,2"}});
}

TEST_CASE("devices of another kind do not run cuda, whatever the worker program says") {
  ScriptedNode node("test \"$*\" = '--backends --gpus 0' && echo cpu && echo cuda && echo modelled");
  node.config.device.kind = "h100";
  CHECK(AskBackends(node.config, kAskLimitNs) ==
        std::vector<RefusedBackend>{{BackendKind::kCuda,
                                     "devices.kind is 'h100'; set devices.kind: cuda in the agent's configuration, so "
                                     "that each worker gets a GPU"}});
}

TEST_CASE("a worker program that does not answer refuses every backend, with the reason") {
  const auto [script, reason] = GENERATE(table<std::string, std::string>({
      {"exit 3", "it exited with code 3"},
      {"echo cpu", "backend cuda is not told of"},
      {"exec sleep 600", "it did not end within 50ms"},
  }));
  ScriptedNode node(script);
  const std::vector<RefusedBackend> refused =
      AskBackends(node.config, script.starts_with("exec") ? 50 * kMs : kAskLimitNs);
  REQUIRE(refused.size() == kBackendKinds.size());
  for (const RefusedBackend& each : refused) {
    CHECK(each.reason ==
          node.config.worker_binary + " --backends was asked what it can run: " + reason +
              "; see that it runs on this host and is of the agent's version, then start the agent again");
  }
}

}  // namespace
}  // namespace geopipe::agent
