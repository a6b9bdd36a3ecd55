#include "coordinator/cli/render/memory_output.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

#include "coordinator/cli/render/format.h"

namespace geopipe {
namespace {

constexpr int64_t kGiBytes = int64_t{1} << 30;

MemoryBreakdown RankAt(std::string site, int64_t in_flight) {
  return {.site = std::move(site),
          .weight_bytes = 8 * kGiBytes,
          .gradient_bytes = 8 * kGiBytes,
          .optimizer_bytes = 3 * kGiBytes,
          .workspace_bytes = kGiBytes / 4,
          .message_bytes = kGiBytes / 2,
          .in_flight = in_flight,
          .activation_bytes = in_flight * 5 * kGiBytes,
          .more_bytes = 6 * kGiBytes,
          .capacity_bytes = 70 * kGiBytes,
          .reserve_bytes = 4 * kGiBytes};
}

TEST_CASE("people see what fills a device, and which has the least to spare") {
  const std::vector<MemoryBreakdown> ranks{RankAt("oslo", 10), RankAt("oslo", 9), RankAt("dublin", 8)};
  CHECK(MemoryText(ranks) ==
        "memory of a device at its peak in GiB, of 70.0 GiB, which is 74.0 GiB less a reserve of 4.00 GiB\n"
        "RANK  WEIGHTS  GRADS  ADAM       ACTIVATIONS  LOGITS  BUFFERS  WORK  PEAK          FREE\n"
        "   0     8.00   8.00  3.00  50.0 (10 × 5.00)       0     0.50  0.25  69.8   0.25, 0.4 %  ←\n"
        "   1     8.00   8.00  3.00   45.0 (9 × 5.00)       0     0.50  0.25  64.8   5.25, 7.5 %\n"
        "   2     8.00   8.00  3.00   40.0 (8 × 5.00)       0     0.50  0.25  59.8  10.2, 14.6 %\n"
        "tightest: rank 0 at oslo, 256 MiB to spare: one more micro-batch in flight takes 6.00 GiB\n");
  CHECK(MemoryText({}).empty());
}

TEST_CASE("ranks of several stages, split backwards, states kept and small models have what they need") {
  std::vector<MemoryBreakdown> ranks{RankAt("oslo", 2)};
  ranks[0].recovery_bytes = kGiBytes;
  ranks[0].weight_grad_bytes = 2 * kGiBytes;
  ranks[0].reserve_bytes = 0;
  const std::string text = MemoryText(ranks);
  CHECK(text.find("of 70.0 GiB\nRANK  WEIGHTS  GRADS  ADAM  KEPT      ACTIVATIONS  FOR W  LOGITS") !=
        std::string::npos);
  CHECK(text.find(" to spare: room for 6 more micro-batches in flight\n") != std::string::npos);
  ranks[0].host_bytes = 12 * kGiBytes;
  CHECK(MemoryText(ranks).find("PEAK          FREE  HOST\n") != std::string::npos);
  CHECK(ranks[0].peak_bytes() == 31 * kGiBytes + kGiBytes * 3 / 4 + kGiBytes * 1);
  ranks[0] = {.site = "oslo", .weight_bytes = kGiBytes / 2, .capacity_bytes = kGiBytes};
  CHECK(MemoryText(ranks).find("at its peak in MiB") != std::string::npos);
}

TEST_CASE("many ranks alike share a row, that of the greatest peak, within 100 columns") {
  std::vector<MemoryBreakdown> ranks;
  for (int64_t rank = 0; rank < 16; ++rank) {
    ranks.push_back(RankAt(rank < 8 ? "oslo" : "dublin", 10 - rank / 4));
  }
  ranks.back().logits_bytes = kGiBytes;
  const std::string text = MemoryText(ranks, Rows::kFolded);
  CHECK(text.find("\n 0-7     8.00   8.00  3.00  50.0 (10 × 5.00)       0     0.50  0.25  ≤ 69.8") !=
        std::string::npos);
  CHECK(text.find("\n8-14     8.00   8.00  3.00   40.0 (8 × 5.00)       0     0.50  0.25  ≤ 59.8") !=
        std::string::npos);  // another site
  CHECK(std::ranges::count(text, '\n') == 6);
  std::istringstream lines(MemoryText(ranks));
  for (std::string line; std::getline(lines, line);) {
    CHECK(DisplayWidth(line) <= 100);
  }
}

TEST_CASE("programs see every category, and the sum") {
  const Json rows = MemoryToJson({RankAt("oslo", 10), RankAt("dublin", 9)});
  CHECK(rows[1]["pipeline_rank"] == 1);
  CHECK(rows[0]["peak_bytes"] == 69 * kGiBytes + kGiBytes * 3 / 4);
  int64_t sum = 0;
  for (const char* part : {"weight_bytes", "gradient_bytes", "optimizer_bytes", "recovery_bytes", "activation_bytes",
                           "weight_grad_bytes", "logits_bytes", "message_bytes", "workspace_bytes"}) {
    sum += rows[0][part].get<int64_t>();
  }
  CHECK(rows[0]["peak_bytes"] == sum);
  CHECK(rows[0]["free_bytes"].get<int64_t>() + sum == rows[0]["capacity_bytes"].get<int64_t>());
}

}  // namespace
}  // namespace geopipe
