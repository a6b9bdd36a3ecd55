// The phase `speed` of device_check on an emulated GPU, whose figures mean nothing: that all is measured, or said not
// to be.
#include <absl/strings/str_split.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <set>

#include "runtime/gpu/port/gpu_kernels.h"
#include "tests/device/speed_figures.h"
#include "tests/support/command.h"

namespace geopipe {
namespace {

using Cells = std::vector<std::string>;

constexpr auto kEmulatedLibrary = GEOPIPE_BINARY_DIR "/bin/libgeopipe_cuda_emulated.so";

std::vector<Cells> ReadTable(const std::filesystem::path& path) {
  std::vector<Cells> rows;
  for (const absl::string_view line : absl::StrSplit(*ReadFile(path, 1 << 20), '\n', absl::SkipEmpty())) {
    rows.push_back(absl::StrSplit(line, '\t'));
  }
  return rows;
}

struct SpeedRunResult {
  CommandResult command;
  std::vector<Cells> rows;  // of speed.tsv, below the columns' names
};

SpeedRunResult RunSpeed(int64_t budget_s, const std::string& gpu_settings = "") {
  constexpr int64_t kTimeoutNs = 120'000'000'000;
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  Command command("device_check",
                  {"speed", "--small", "--library", kEmulatedLibrary, "--out", folder.path().string(), "--budget",
                   std::to_string(budget_s)},
                  {{"GEOPIPE_EMULATED_GPU", gpu_settings}});
  SpeedRunResult run = {.command = command.Finish(kTimeoutNs), .rows = ReadTable(folder.path() / "speed.tsv")};
  INFO(run.command.err);
  REQUIRE(run.command.exit_status.success());
  REQUIRE(run.rows.size() > 1);
  REQUIRE(run.rows.front() == SpeedColumns());
  run.rows.erase(run.rows.begin());
  REQUIRE(run.rows.front() == CellsOf("title", "emulated: no figure of a GPU"));
  CHECK_THAT(run.command.out, Catch::StartsWith("speed: emulated: no figure of a GPU"));
  run.rows.erase(run.rows.begin());
  return run;
}

bool IsLeftOut(const Cells& row) { return row.back().starts_with("left out: "); }

TEST_CASE("the phase speed measures everything where there is time") {
  const SpeedRunResult run = RunSpeed(/*budget_s=*/100);
  std::map<std::string, int> rows;  // by the first word of the name
  std::set<std::string> kernels;
  for (const Cells& row : run.rows) {
    INFO(row[0] << " " << row[1] << ": " << row.back());
    REQUIRE(row.size() == SpeedColumns().size());
    CHECK_FALSE(IsLeftOut(row));
    CHECK(std::atof(row[3].c_str()) > 0);
    ++rows[row[0].substr(0, row[0].find(' '))];
    if (row[0].starts_with("kernel ")) {
      kernels.insert(row[0]);
    }
    if (row[0].starts_with("layer ")) {
      CHECK_THAT(row.back(), Catch::Contains("of its own parts"));
    }
    if (row[0] == "iteration") {
      CHECK_THAT(row.back(), Catch::Contains("tokens/s"));
    }
  }
  constexpr int kShapes = 3;
  constexpr size_t kKernels = sizeof(GpKernels) / sizeof(GpKernels::rms_norm);
  CHECK(kernels.size() == kKernels);
  CHECK(rows == std::map<std::string, int>{{"ceiling", 7},
                                           {"callback", 1},
                                           {"product", kShapes * (12 + 3)},
                                           {"attention", kShapes * 2},
                                           {"layer", kShapes * 4},
                                           {"kernel", kShapes * static_cast<int>(kKernels)},
                                           {"iteration", 2}});
}

// With the emulated GPU's modelled clock, a copy takes 2 us and its bytes at 1.5 TB/s on the device and 50 GB/s from
// and to the host; a kernel takes 5 us.
TEST_CASE("the phase speed measures what the device's clock tells, the sum of its parts in every action") {
  constexpr double kRounding = 0.1;  // of a sum of rounded figures
  const SpeedRunResult run = RunSpeed(/*budget_s=*/100, "clock=modelled,seed=5");
  std::map<std::string, double> us;                            // by name, of ceilings
  std::map<std::string, std::map<std::string, double>> us_of;  // by the shape's name, and name
  std::map<std::string, double> products_us;                   // by the shape's name and pass, of a layer
  for (const Cells& row : run.rows) {
    INFO(row[0] << " " << row[1]);
    const double figure = std::atof(row[3].c_str());
    const std::string shape = row[1].substr(0, row[1].find(' '));
    us[row[0]] = figure;
    us_of[shape][row[0]] = figure;
    if (row[0].starts_with("product ") && !row[0].starts_with("product head")) {
      products_us[shape + row[0].back()] += figure;
    }
    if (row[0] != "callback") {
      CHECK(row[4] == "0.00");
    }
    if (row[0] == "layer W") {
      CHECK(row.back() == "1.000 of its own parts");
    }
    if (row[0] == "iteration") {
      CHECK_THAT(row.back(), Catch::EndsWith("the queue idle 0.00 %"));
    }
  }
  CHECK(us["ceiling copy"] == 2.04);
  CHECK(us["ceiling copy out"] == 3.31);
  CHECK(us["ceiling copy in"] == 3.31);
  CHECK(us["ceiling copies both ways"] == 3.31);
  CHECK(us["ceiling product"] == 5.00);
  for (const std::string shape : {"small-7B", "small-13B", "small-70B"}) {
    INFO(shape);
    std::map<std::string, double>& of = us_of[shape];
    CHECK(of["kernel rope"] == 5.00);
    const double messages = 2 * of["kernel sums_of_squares"];  // of F, which comes and goes
    CHECK(of["layer F"] == Approx(products_us[shape + "F"] + of["attention F"] + 2 * of["kernel rms_norm"] +
                                  of["kernel rope"] + of["kernel swiglu"] + messages)
                               .margin(kRounding));
    CHECK(of["layer I"] == Approx(products_us[shape + "I"] + of["attention I"] + 2 * of["kernel rms_norm_grad"] +
                                  of["kernel rope"] + of["kernel swiglu_grad"])
                               .margin(kRounding));
    CHECK(of["layer W"] == Approx(products_us[shape + "W"]).margin(kRounding));
    CHECK(of["layer F+I+W"] == Approx(of["layer F"] + of["layer I"] + of["layer W"]).margin(kRounding));
  }
}

TEST_CASE("the phase speed leaves out what there is no time for, and says so") {
  const SpeedRunResult run = RunSpeed(/*budget_s=*/0);
  CHECK(run.rows.size() == 18);
  CHECK(std::ranges::all_of(run.rows, IsLeftOut));
  CHECK_THAT(run.command.out, Catch::Contains("left out: ceilings, products small-7B"));
}

TEST_CASE("the phase speed leaves out what does not fit into the device's memory, and measures the rest") {
  const SpeedRunResult run = RunSpeed(/*budget_s=*/100, "memory_bytes=36554432");  // 32 MiB are for products
  std::set<std::string> left_out;
  for (const Cells& row : run.rows) {
    if (IsLeftOut(row)) {
      INFO(row.back());
      CHECK_THAT(row.back(), Catch::Contains("36554432"));
      left_out.insert(row[0]);
    }
  }
  CHECK(left_out.contains("layer small-70B"));
  CHECK(left_out.contains("iteration small-7B m=2"));
  CHECK_FALSE(left_out.contains("layer small-7B"));
  CHECK(std::ranges::any_of(run.rows, [](const Cells& row) { return row[0] == "kernel rms_norm"; }));
}

}  // namespace
}  // namespace geopipe
