#include "coordinator/cli/render/memory_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <utility>

#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/memory_unit.h"

namespace geopipe {
namespace {

MemoryUnit UnitOf(const std::vector<MemoryBreakdown>& ranks) {
  int64_t greatest_bytes = 0;
  for (const MemoryBreakdown& rank : ranks) {
    greatest_bytes = std::max(greatest_bytes, rank.peak_bytes());
  }
  return MemoryUnit(greatest_bytes);
}

bool AreAlike(const MemoryBreakdown& a, const MemoryBreakdown& b) {
  const auto states = [](const MemoryBreakdown& rank) {
    return std::tuple(std::string_view(rank.site), rank.weight_bytes, rank.gradient_bytes, rank.optimizer_bytes,
                      rank.host_bytes, rank.capacity_bytes, rank.logits_bytes > 0);
  };
  return states(a) == states(b);
}

// "47.8 (25 × 1.91)".
std::string ActivationsText(const MemoryBreakdown& rank, const MemoryUnit& unit) {
  return rank.in_flight == 0 ? unit.Of(rank.activation_bytes)
                             : fmt::format("{} ({} × {})", unit.Of(rank.activation_bytes), rank.in_flight,
                                           unit.Of(rank.activation_bytes / rank.in_flight));
}

// Columns that few jobs use: each is shown only if some value is not 0.
struct Shown {
  explicit Shown(const std::vector<MemoryBreakdown>& ranks) {
    for (const MemoryBreakdown& rank : ranks) {
      recovery = recovery || rank.recovery_bytes > 0;
      host = host || rank.host_bytes > 0;
      weight_grads = weight_grads || rank.weight_grad_bytes > 0;
    }
  }

  std::vector<std::string> Headings() const {
    std::vector<std::string> headings{"RANK", "WEIGHTS", "GRADS", "ADAM"};
    if (recovery) {
      headings.emplace_back("KEPT");
    }
    headings.emplace_back("ACTIVATIONS");
    if (weight_grads) {
      headings.emplace_back("FOR W");
    }
    headings.insert(headings.end(), {"LOGITS", "BUFFERS", "WORK", "PEAK", "FREE"});
    if (host) {
      headings.emplace_back("HOST");
    }
    headings.emplace_back("");
    return headings;
  }

  std::vector<std::string> Row(std::string name, const MemoryBreakdown& rank, bool several, bool tightest,
                               const MemoryUnit& unit) const {
    std::vector<std::string> row{std::move(name), unit.Of(rank.weight_bytes), unit.Of(rank.gradient_bytes),
                                 unit.Of(rank.optimizer_bytes)};
    if (recovery) {
      row.push_back(unit.Of(rank.recovery_bytes));
    }
    row.push_back(ActivationsText(rank, unit));
    if (weight_grads) {
      row.push_back(unit.Of(rank.weight_grad_bytes));
    }
    row.insert(row.end(), {unit.Of(rank.logits_bytes), unit.Of(rank.message_bytes), unit.Of(rank.workspace_bytes),
                           (several ? "≤ " : "") + unit.Of(rank.peak_bytes()),
                           fmt::format("{}, {}", unit.Of(rank.free_bytes()),
                                       HumanPercent(Ratio(rank.free_bytes(), rank.capacity_bytes)))});
    if (host) {
      row.push_back(unit.Of(rank.host_bytes));
    }
    row.emplace_back(tightest ? "←" : "");
    return row;
  }

  bool recovery = false;      // states kept for it
  bool host = false;          // optimizer states that it has
  bool weight_grads = false;  // of split backwards
};

std::string CapacityText(const std::vector<MemoryBreakdown>& ranks) {
  const MemoryBreakdown& first = ranks.front();
  const bool same = std::ranges::all_of(ranks, [&](const MemoryBreakdown& rank) {
    return rank.capacity_bytes == first.capacity_bytes && rank.reserve_bytes == first.reserve_bytes;
  });
  if (!same) {
    return "what each site's devices have, less their reserve";
  }
  return first.reserve_bytes == 0
             ? HumanBytes(first.capacity_bytes)
             : fmt::format("{}, which is {} less a reserve of {}", HumanBytes(first.capacity_bytes),
                           HumanBytes(first.capacity_bytes + first.reserve_bytes), HumanBytes(first.reserve_bytes));
}

std::string RoomText(const MemoryBreakdown& rank) {
  const int64_t more = rank.more_bytes == 0 ? 0 : std::max<int64_t>(0, rank.free_bytes()) / rank.more_bytes;
  return more == 0 ? fmt::format("one more micro-batch in flight takes {}", HumanBytes(rank.more_bytes))
                   : fmt::format("room for {} more {} in flight", HumanCount(more),
                                 more == 1 ? "micro-batch" : "micro-batches");
}

}  // namespace

std::string MemoryText(const std::vector<MemoryBreakdown>& ranks, View view) {
  constexpr size_t kMaxSpelledOut = 12;
  if (ranks.empty()) {
    return "";
  }
  const MemoryUnit unit = UnitOf(ranks);
  const Shown shown(ranks);
  const size_t tightest = TightestRank(ranks);
  Table table(shown.Headings());
  const bool folds = view.rows == Rows::kFolded && ranks.size() > kMaxSpelledOut;
  for (size_t first = 0, end = 0; first < ranks.size(); first = end) {
    end = first + 1;
    while (folds && end < ranks.size() && AreAlike(ranks[first], ranks[end])) {
      ++end;
    }
    const bool several = end - first > 1;
    const auto greatest = std::max_element(
        ranks.begin() + static_cast<std::ptrdiff_t>(first), ranks.begin() + static_cast<std::ptrdiff_t>(end),
        [](const MemoryBreakdown& a, const MemoryBreakdown& b) { return a.peak_bytes() < b.peak_bytes(); });
    table.AddRow(shown.Row(several ? fmt::format("{}-{}", first, end - 1) : fmt::format("{}", first), *greatest,
                           several, first <= tightest && tightest < end, unit));
  }
  const MemoryBreakdown& least = ranks[tightest];
  return fmt::format("memory of a device at its peak in {}, of {}\n{}tightest: rank {} at {}, {} to spare: {}\n",
                     unit.name, CapacityText(ranks), table.Render(view.columns), tightest, least.site,
                     HumanBytes(least.free_bytes()), RoomText(least));
}

Json MemoryToJson(const std::vector<MemoryBreakdown>& ranks) {
  Json rows = Json::array();
  for (const MemoryBreakdown& rank : ranks) {
    rows.push_back({{"pipeline_rank", rows.size()},
                    {"site", rank.site},
                    {"weight_bytes", rank.weight_bytes},
                    {"gradient_bytes", rank.gradient_bytes},
                    {"optimizer_bytes", rank.optimizer_bytes},
                    {"host_bytes", rank.host_bytes},
                    {"recovery_bytes", rank.recovery_bytes},
                    {"activation_bytes", rank.activation_bytes},
                    {"in_flight", rank.in_flight},
                    {"weight_grad_bytes", rank.weight_grad_bytes},
                    {"logits_bytes", rank.logits_bytes},
                    {"message_bytes", rank.message_bytes},
                    {"workspace_bytes", rank.workspace_bytes},
                    {"peak_bytes", rank.peak_bytes()},
                    {"capacity_bytes", rank.capacity_bytes},
                    {"free_bytes", rank.free_bytes()},
                    {"reserve_bytes", rank.reserve_bytes}});
  }
  return rows;
}

}  // namespace geopipe
