// The program that checks GPUs, on the emulated one: its phases hold there, and tell what is planted.
#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "tests/support/command.h"

namespace geopipe {
namespace {

using Catch::Matchers::Contains;

const std::string kLibrary = GEOPIPE_BINARY_DIR "/bin/libgeopipe_cuda_emulated.so";
constexpr int64_t kPatienceNs = 300'000'000'000;

struct Checked {
  CommandResult end;
  std::map<std::string, int> verdicts;  // rows of the phase's table, by the last column
  std::map<std::string, int> kinds;     // by the thing's first word
};

// Runs a phase on an emulated GPU of these settings.
Checked Check(const std::string& phase, const std::string& file, const std::string& settings = "") {
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  Command command("device_check", {phase, "--library", kLibrary, "--out", folder.path().string(), "--small"},
                  {{"GEOPIPE_EMULATED_GPU", settings}});
  Checked checked{.end = command.Finish(kPatienceNs), .verdicts = {}, .kinds = {}};
  const absl::StatusOr<std::string> table = ReadFile(folder.path() / file, 1 << 24);
  REQUIRE(table.ok());
  for (const absl::string_view line : absl::StrSplit(*table, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> cells = absl::StrSplit(line, '\t');
    ++checked.verdicts[cells.back()];
    ++checked.kinds[cells.front().substr(0, cells.front().find_first_of(" ,:"))];
  }
  return checked;
}

TEST_CASE("device_check tells the versions of the emulated GPU") {
  const Checked checked = Check("versions", "versions.tsv");
  CHECK(checked.end.exit_status.success());
  CHECK_THAT(checked.end.out, Contains("versions: Emulated GPU, sm_90, 132 SMs"));
  CHECK(checked.verdicts.contains("sm_90"));
}

TEST_CASE("each phase of device_check holds on the emulated GPU, and does what it is there for") {
  struct Case {
    std::string phase;
    std::string file;
    std::map<std::string, int> kinds;  // and the least number of rows of each
  };
  const auto& [phase, file, kinds] = GENERATE(Case{"kernels",
                                                   "correctness.tsv",
                                                   {{"product", 3000},
                                                    {"embedding", 96},
                                                    {"norm", 144},
                                                    {"rope", 144},
                                                    {"softmax", 144},
                                                    {"attention", 144},
                                                    {"swiglu", 120},
                                                    {"loss", 240},
                                                    {"vectors", 216},
                                                    {"adamw", 156}}},
                                              Case{"training", "losses.tsv", {{"fp32", 90}, {"bf16", 90}}},
                                              Case{"groups", "groups.tsv", {{"fp32", 28}, {"bf16", 8}}});
  const Checked checked = Check(phase, file);
  INFO(checked.end.err);
  CHECK(checked.end.exit_status.success());
  CHECK(checked.end.err == "");
  CHECK_THAT(checked.end.out, Contains(fmt::format("{} checks, 0 failed", checked.verdicts.at("ok"))));
  CHECK(!checked.verdicts.contains("FAILED"));
  CHECK(!checked.verdicts.contains("left out"));
  for (const auto& [kind, rows] : kinds) {
    INFO(kind);
    CHECK(checked.kinds.at(kind) >= rows);
  }
}

TEST_CASE("device_check finds one wrong product, and names it") {
  const auto& [phase, file, sentence] = GENERATE(table<std::string, std::string, std::string>(
      {{"kernels", "correctness.tsv", "FAILED product"}, {"training", "losses.tsv", "FAILED fp32"}}));
  const Checked checked = Check(phase, file, "wrong_product_at=100");
  INFO(checked.end.out << checked.end.err);
  CHECK(checked.end.exit_status == ExitStatus{.exit_code = 1});
  CHECK_THAT(checked.end.err, Contains(sentence));
  CHECK(checked.verdicts.at("FAILED") >= 1);
}

TEST_CASE("device_check ends with one sentence when the GPU is lost, or is none") {
  const auto& [settings, sentence] = GENERATE(table<std::string, std::string>(
      {{"lost_at=40", "an illegal memory access was encountered"}, {"driver=0.0", "no NVIDIA driver is installed"}}));
  for (const auto& [phase, file] : std::map<std::string, std::string>{{"kernels", "correctness.tsv"},
                                                                      {"training", "losses.tsv"},
                                                                      {"groups", "groups.tsv"},
                                                                      {"speed", "speed.tsv"}}) {
    const Checked checked = Check(phase, file, settings);
    INFO(checked.end.err);
    CHECK(checked.end.exit_status == ExitStatus{.exit_code = 1});
    CHECK_THAT(checked.end.err, Contains(phase + ": ") && Contains(sentence));
    CHECK(std::ranges::count(checked.end.err, '\n') == 1);
  }
}

TEST_CASE("device_check's phase that has no time left says what it leaves out") {
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  const CommandResult end = RunCommand(
      "device_check", {"kernels", "--library", kLibrary, "--out", folder.path().string(), "--small", "--budget", "0"});
  CHECK(end.exit_status.success());
  CHECK_THAT(end.out, Contains("0 checks, 0 failed") && Contains("left out for want of time"));
}

}  // namespace
}  // namespace geopipe
