#include "coordinator/spec/case_file.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

namespace geopipe {
namespace {

// A case with the lines of `more`, one device count less than usual so that lists stay short.
std::string Case(const std::string& more) {
  return "devices: 3\nmicro_batches: 6\nforward_s: 0.01\nbackward_s: 0.02\n" + more;
}

std::string CaseError(const std::string& text) {
  const absl::StatusOr<PipelineCosts> costs = ParseCaseFile(text, "c.yaml");
  return costs.ok() ? "" : std::string(costs.status().message());
}

TEST_CASE("The cases of the golden folder parse and validate") {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GEOPIPE_SOURCE_DIR "/tests/golden/cases")) {
    if (entry.path().extension() != ".yaml") {
      continue;
    }
    INFO(entry.path());
    const absl::StatusOr<PipelineCosts> costs = ReadCaseFile(entry.path());
    INFO(costs.status().ToString());
    REQUIRE(costs.ok());
    CHECK(ValidateCosts(*costs).ok());
    ++count;
  }
  CHECK(count >= 8);
}

TEST_CASE("A case becomes whole nanoseconds, rounded half-up once") {
  const auto costs = ParseCaseFile(
      "devices: 2\nmicro_batches: 4\nforward_s: [1.5e-9, 2.4e-9]\nbackward_s: 0.25\nweight_grad_s: 0.5e-9\n"
      "message_bytes: 3\nepilogue_s: 1\ncomm: blocking\n"
      "links: [{from_chunk: 0, latency_s: 0.02, bandwidth_Bps: 2.0e9, link: wan0}]\n"
      "memory: {capacity_bytes: [64e9, 32e9], activation_bytes: 1e9}\n",
      "c.yaml");
  REQUIRE(costs.ok());
  CHECK(costs->shape == PipelineShape::Linear(2, 4));
  CHECK(costs->forward_ns == std::vector<int64_t>{2, 2});
  CHECK(costs->input_grad_ns == std::vector<int64_t>{250'000'000, 250'000'000});
  CHECK(costs->weight_grad_ns == std::vector<int64_t>{1, 1});
  CHECK(costs->boundaries == std::vector<BoundaryCost>{{true, "wan0", 3, 20'000'000, 2}});
  CHECK(costs->comm == CommMode::kBlocking);
  CHECK(costs->epilogue_ns == 1'000'000'000);
  CHECK(costs->memory->capacity_bytes == std::vector<int64_t>{64'000'000'000, 32'000'000'000});
  CHECK(costs->memory->static_bytes == std::vector<int64_t>{0, 0});
  CHECK(costs->memory->activation_bytes == std::vector<int64_t>{1'000'000'000, 1'000'000'000});
  CHECK(costs->memory->wgrad_bytes == std::vector<int64_t>{0, 0});
}

TEST_CASE("Chunks beyond the devices go round them") {
  const auto costs = ParseCaseFile(Case("chunks: 6\n"), "c.yaml");
  REQUIRE(costs.ok());
  CHECK(costs->shape.placement == std::vector<int32_t>{0, 1, 2, 0, 1, 2});
  CHECK(costs->forward_ns.size() == 6);
  CHECK(costs->boundaries.size() == 5);
}

TEST_CASE("Each mistake in a case is one sentence at its place") {
  CHECK(CaseError(Case("forward: 1\n")) == "c.yaml:5:1: forward: unknown key; did you mean forward_s?");
  CHECK(CaseError(Case("comm: fast\n")) == "c.yaml:5:7: comm: 'fast' is not one of nonblocking, blocking, rendezvous");
  CHECK(CaseError("micro_batches: 6\nforward_s: 1\nbackward_s: 1\n") ==
        "c.yaml:1:1: devices: missing; add `devices: <integer>`");
  CHECK(CaseError("devices: 3\nmicro_batches: 1000000000\nforward_s: 1\nbackward_s: 1\n") ==
        "c.yaml:2:16: micro_batches: is 1000000000; it must be from 1 to 22369621");
  CHECK(CaseError("devices: 0\nmicro_batches: 1\nforward_s: 1\nbackward_s: 1\n") ==
        "c.yaml:1:10: devices: is 0; it must be from 1 to 65536");
  CHECK(CaseError("devices: 1\nmicro_batches: 1\nforward_s: .nan\nbackward_s: 1\n") ==
        "c.yaml:3:12: forward_s: '.nan' is not a number; write it like 3.0e-4");
  CHECK(CaseError("devices: 1\nmicro_batches: 1\nforward_s: nan\nbackward_s: 1\n") ==
        "c.yaml:3:12: forward_s: 'nan' is not a number; write it like 3.0e-4");
  CHECK(CaseError("devices: 2\nmicro_batches: 1\nforward_s: [0.1, -0.1]\nbackward_s: 1\n") ==
        "c.yaml:3:18: forward_s[1]: is -0.1; it must be from 1e-09 to 1000000000");
  CHECK(CaseError("devices: 2\nmicro_batches: 1\nforward_s: 0\nbackward_s: 1\n") ==
        "c.yaml:3:12: forward_s: is 0; it must be from 1e-09 to 1000000000");
  CHECK(CaseError("devices: 2\nmicro_batches: 1\nforward_s: 1\nbackward_s: [1, 1e300]\n") ==
        "c.yaml:4:17: backward_s[1]: is 1e+300; it must be from 1e-09 to 1000000000");
  CHECK(CaseError(Case("weight_grad_s: -1\n")) == "c.yaml:5:16: weight_grad_s: is -1; it must be from 0 to 1000000000");
  CHECK(CaseError(Case("memory: {capacity_bytes: 0}\n")) ==
        "c.yaml:5:26: memory.capacity_bytes: is 0; it must be from 1 to 1e+18");
  CHECK(CaseError("devices: 3\nmicro_batches: 1\nforward_s: [0.1, 0.1]\nbackward_s: 1\n") ==
        "c.yaml:3:1: forward_s: has 2 entries; give one number, or a list of 3");
  CHECK(CaseError(Case("weight_grad_s: []\n")) ==
        "c.yaml:5:1: weight_grad_s: has 0 entries; give one number, or a list of 3");
  CHECK(CaseError(Case("placement: [0, 1]\n")) ==
        "c.yaml:5:1: placement: has 2 entries; give the device of each of the 3 chunks");
  CHECK(CaseError(Case("placement: [0, 1, 3]\n")) == "c.yaml:5:19: placement[2]: is 3; it must be from 0 to 2");
  CHECK(CaseError(Case("placement: [0, 2, 2]\n")) ==
        "c.yaml:5:1: placement: gives device 1 nothing to do; place a chunk on every device");
  CHECK(CaseError(Case("chunks: 2\n")) == "c.yaml:5:9: chunks: is 2; it must be from 3 to 65536");
  CHECK(CaseError(Case("chunks: 0\n")) == "c.yaml:5:9: chunks: is 0; it must be from 3 to 65536");
}

TEST_CASE("Each mistake in a link is one sentence at its place") {
  const auto link = [](const std::string& fields) { return Case("message_bytes: 1e6\nlinks:\n- {" + fields + "}\n"); };
  CHECK(CaseError(link("from_chunk: 2, latency_s: 0.1, bandwidth_Bps: 1e9")) ==
        "c.yaml:7:16: links[0].from_chunk: is 2; no boundary follows that chunk, it must be from 0 to 1");
  CHECK(CaseError(link("from_chunk: 1, latency_s: -1, bandwidth_Bps: 1e9")) ==
        "c.yaml:7:30: links[0].latency_s: is -1; it must be from 0 to 1000000000");
  CHECK(CaseError(link("from_chunk: 1, latency_s: 0.1, bandwidth_Bps: 0")) ==
        "c.yaml:7:50: links[0].bandwidth_Bps: is 0; it must be above 0 and at most 1e+18");
  CHECK(CaseError(link("from_chunk: 1, latency_s: 0.1, bandwidth_Bps: 1e300")) ==
        "c.yaml:7:50: links[0].bandwidth_Bps: is 1e+300; it must be above 0 and at most 1e+18");
  CHECK(
      CaseError(link("from_chunk: 1, latency_s: 0.1, bandwidth_Bps: 1e-300")) ==
      "c.yaml:7:50: links[0].bandwidth_Bps: is 1e-300; a message of 1000000 bytes would take 1e+306 s, at most 1e+09 s "
      "can be counted");
  CHECK(CaseError(link("from_chunk: 1, bandwidth_Bps: 1e9")) ==
        "c.yaml:7:3: links[0].latency_s: missing; add `latency_s: <number>`");
  const std::string first = "from_chunk: 0, latency_s: 0.1, bandwidth_Bps: 1e9, link: w}\n- {";
  CHECK(CaseError(link(first + "from_chunk: 0, latency_s: 0.1, bandwidth_Bps: 1e9")) ==
        "c.yaml:8:16: links[1].from_chunk: is 0 a second time; give each boundary one link");
  CHECK(CaseError(link(first + "from_chunk: 1, latency_s: 0.2, bandwidth_Bps: 1e9, link: w")) ==
        "c.yaml:8:3: links[1]: link w has latency_s 0.2 and bandwidth_Bps 1000000000 here, 0.1 and 1000000000 above; a "
        "shared link has one latency and one bandwidth");
  CHECK(CaseError(Case("links: [{from_chunk: 0, latency_s: 0, bandwidth_Bps: 1}]\n")) ==
        "c.yaml:1:1: message_bytes: missing; links need to know what a message carries");
}

TEST_CASE("The reference names every key of a case") {
  const std::string text = ExplainCase().Text();
  for (const char* key : {"devices", "placement", "bandwidth_Bps", "  capacity_bytes", "epilogue_s", "- from_chunk"}) {
    CHECK(text.find(key) != std::string::npos);
  }
}

}  // namespace
}  // namespace geopipe
