#include "coordinator/cli/render/rank_memory_output.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

#include "coordinator/cli/render/format.h"

namespace geopipe {
namespace {

constexpr int64_t kMiBytes = int64_t{1} << 20;

RankMemory Planned(int64_t in_flight) {
  return {.weights = 8 * kMiBytes,
          .gradients = 8 * kMiBytes,
          .optimizer = 16 * kMiBytes,
          .activations = in_flight * 4 * kMiBytes,
          .workspace = kMiBytes,
          .transport = 2 * kMiBytes,
          .recovery = 0,
          .peak = (35 + in_flight * 4) * kMiBytes};
}

// Tensor 2 x data 2 on each of so many pipeline ranks, with one micro-batch in flight less on each.
std::vector<StageRanksMemory> Grid(int32_t pipeline, bool measured = true) {
  std::vector<StageRanksMemory> all;
  for (int32_t rank = 0; rank < pipeline; ++rank) {
    StageRanksMemory& stage = all.emplace_back();
    stage = {.site = "oslo", .first_rank = 4 * rank, .ranks = 4, .planned = Planned(pipeline - rank), .measured = {}};
    for (int32_t each = 0; measured && each < 4; ++each) {
      stage.measured.push_back({.rank = stage.first_rank + each, .peaks = stage.planned});
      stage.measured.back().peaks.activations -= each * kMiBytes;
    }
  }
  return all;
}

TEST_CASE("people see what is planned of each pipeline rank's devices and the greatest that they have measured") {
  CHECK(RankMemoryText(Grid(2)) ==
        "memory of a device at its peak in MiB: planned at most, and the greatest measured\n"
        "RANKS            WEIGHTS  GRADS  ADAM  ACTIVATIONS  WORK  BUFFERS  KEPT  TOTAL\n"
        "0-3    planned      8.00   8.00  16.0         8.00  1.00     2.00     0   43.0\n"
        "       measured     8.00   8.00  16.0         8.00  1.00     2.00     0   43.0\n"
        "4-7    planned      8.00   8.00  16.0         4.00  1.00     2.00     0   39.0\n"
        "       measured     8.00   8.00  16.0         4.00  1.00     2.00     0   39.0\n");
  CHECK(RankMemoryText({}).empty());
}

TEST_CASE("what is not measured yet, or by some ranks only, is said") {
  std::vector<StageRanksMemory> all = Grid(2, false);
  CHECK_THAT(RankMemoryText(all), Catch::StartsWith("memory of a device at its peak in MiB: planned at most; nothing "
                                                    "is measured yet\n"));
  CHECK(RankMemoryText(all).find("measured  ") == std::string::npos);
  all[0].measured = {{.rank = 1, .peaks = all[0].planned}};
  CHECK(RankMemoryText(all).find("and the greatest measured, of 1 of 8 ranks\n") != std::string::npos);
}

TEST_CASE("what exceeds its plan is marked, and the worst is told") {
  std::vector<StageRanksMemory> all = Grid(2);
  all[1].measured[2].peaks.transport = 3 * kMiBytes;
  all[1].measured[2].peaks.weights = 9 * kMiBytes - kMiBytes / 2;
  const std::string text = RankMemoryText(all);
  INFO(text);
  CHECK(text.find("       measured    8.50!  8.00   16.0         4.00   1.00     3.00!    0   39.0\n") !=
        std::string::npos);
  CHECK(std::ranges::count(text, '!') == 3);
  CHECK_THAT(text, Catch::EndsWith("! measured exceeds planned: transport of rank 6 by 1.00 MiB, 3.00 MiB where 2.00 "
                                   "MiB are planned; 1 more\n"));
  // A rank with less to hold exceeds its own plan, not that of the rank before it.
  all = Grid(2);
  all[1].measured[0].peaks.activations = 6 * kMiBytes;
  CHECK(RankMemoryText(all).find("activations of rank 4 by 2.00 MiB") != std::string::npos);
}

TEST_CASE("ranks that are planned alike share a row, and many ranks fit on a screen of 100 columns") {
  std::vector<StageRanksMemory> alike = Grid(2);
  alike[1].planned = alike[0].planned;
  CHECK(RankMemoryText(alike).find("\n0-7    planned ") != std::string::npos);
  std::vector<StageRanksMemory> all = Grid(64);
  all[40].measured[3].peaks.activations = 100 * kMiBytes;  // of 96 planned, and below those of the ranks before
  const std::string text = RankMemoryText(all);
  INFO(text);
  CHECK(text.find("\n0-255  planned     8.00   8.00   16.0          256 ") != std::string::npos);
  CHECK(std::ranges::count(text, '\n') == 5);
  CHECK(text.find("activations of rank 163 by 4.00 MiB") != std::string::npos);
  CHECK(std::ranges::count(RankMemoryText(all, Rows::kAll), '\n') == 2 + 2 * 64 + 1);
  std::istringstream lines(RankMemoryText(all, Rows::kAll));
  for (std::string line; std::getline(lines, line);) {
    CHECK(DisplayWidth(line) <= 100);
  }
}

TEST_CASE("states that the host keeps have a column of their own, where there are any") {
  std::vector<StageRanksMemory> all = Grid(1);
  CHECK(RankMemoryText(all).find("HOST") == std::string::npos);
  all[0].planned.host = 24 * kMiBytes;
  for (StageRanksMemory::Measured& rank : all[0].measured) {
    rank.peaks.host = 24 * kMiBytes;
  }
  const std::string text = RankMemoryText(all);
  CHECK(text.find("TOTAL  HOST\n") != std::string::npos);
  CHECK(text.find("  24.0\n") != std::string::npos);
  CHECK(RankMemoryToJson(all)[0]["planned"]["host_bytes"] == 24 * kMiBytes);
}

TEST_CASE("programs see every rank, every category and what exceeds its plan") {
  std::vector<StageRanksMemory> all = Grid(2);
  all[1].measured[2].peaks.recovery = 1;
  const Json json = RankMemoryToJson(all);
  REQUIRE(json.size() == 2);
  CHECK(json[1]["pipeline_rank"] == 1);
  CHECK(json[1]["site"] == "oslo");
  CHECK(json[1]["first_rank"] == 4);
  CHECK(json[1]["ranks"] == 4);
  CHECK(json[1]["planned"]["activation_bytes"] == 4 * kMiBytes);
  CHECK(json[1]["planned"].size() == 9);
  CHECK(json[1]["measured"][3]["rank"] == 7);
  CHECK(json[1]["measured"][3]["activation_bytes"] == kMiBytes);
  CHECK(json[1]["exceeded"] == Json::array({"recovery_bytes"}));
  CHECK(json[0]["exceeded"].empty());
}

}  // namespace
}  // namespace geopipe
