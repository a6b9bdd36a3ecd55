#include "coordinator/cli/render/rank_memory_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/memory_unit.h"

namespace geopipe {
namespace {

struct MemoryColumn {
  std::string_view heading;
  std::string_view word;
  std::string_view key;
  int64_t RankMemory::*bytes = nullptr;
};

// HOST is shown only if some rank has a value.
constexpr std::array<MemoryColumn, 9> kCategories{{
    {"WEIGHTS", "weights", "weight_bytes", &RankMemory::weights},
    {"GRADS", "gradients", "gradient_bytes", &RankMemory::gradients},
    {"ADAM", "optimizer", "optimizer_bytes", &RankMemory::optimizer},
    {"ACTIVATIONS", "activations", "activation_bytes", &RankMemory::activations},
    {"WORK", "workspace", "workspace_bytes", &RankMemory::workspace},
    {"BUFFERS", "transport", "transport_bytes", &RankMemory::transport},
    {"KEPT", "recovery", "recovery_bytes", &RankMemory::recovery},
    {"TOTAL", "total", "total_bytes", &RankMemory::peak},
    {"HOST", "host", "host_bytes", &RankMemory::host},
}};

// The value that exceeds its plan most.
struct Overrun {
  int32_t rank = 0;
  std::string_view word;
  int64_t planned_bytes = 0;
  int64_t measured_bytes = 0;

  int64_t bytes() const { return measured_bytes - planned_bytes; }
};

// One row of the table.
struct MemoryRow {
  int32_t first_rank = 0;
  int32_t ranks = 0;
  RankMemory planned = {};                            // the greatest of each category
  std::optional<RankMemory> measured = std::nullopt;  // the same; nullopt: none has told
  std::array<bool, kCategories.size()> exceeds{};
};

void TakeGreatest(const RankMemory& other, RankMemory& memory) {
  for (const MemoryColumn& category : kCategories) {
    memory.*category.bytes = std::max(memory.*category.bytes, other.*category.bytes);
  }
}

void AddStage(const StageRanksMemory& stage, MemoryRow& row) {
  row.ranks += stage.ranks;
  TakeGreatest(stage.planned, row.planned);
  for (const StageRanksMemory::Measured& each : stage.measured) {
    TakeGreatest(each.peaks, row.measured.has_value() ? *row.measured : row.measured.emplace());
    for (size_t i = 0; i < kCategories.size(); ++i) {
      row.exceeds[i] = row.exceeds[i] || each.peaks.*kCategories[i].bytes > stage.planned.*kCategories[i].bytes;
    }
  }
}

std::vector<MemoryRow> MemoryRowsOf(const std::vector<StageRanksMemory>& all, bool folds) {
  const auto alike = [&](const RankMemory& a, const RankMemory& b) {
    const auto states = [](const RankMemory& memory) {
      return std::tuple(memory.weights, memory.gradients, memory.optimizer, memory.host);
    };
    return a == b || (folds && states(a) == states(b));
  };
  std::vector<MemoryRow> rows;
  const StageRanksMemory* first = nullptr;  // of the row
  for (const StageRanksMemory& stage : all) {
    if (first == nullptr || first->site != stage.site || !alike(first->planned, stage.planned)) {
      first = &stage;
      rows.push_back({.first_rank = stage.first_rank});
    }
    AddStage(stage, rows.back());
  }
  return rows;
}

std::vector<Overrun> OverrunsOf(const std::vector<StageRanksMemory>& all) {
  std::vector<Overrun> found;
  for (const StageRanksMemory& stage : all) {
    for (const StageRanksMemory::Measured& each : stage.measured) {
      for (const MemoryColumn& category : kCategories) {
        const Overrun overrun{.rank = each.rank,
                              .word = category.word,
                              .planned_bytes = stage.planned.*category.bytes,
                              .measured_bytes = each.peaks.*category.bytes};
        if (overrun.bytes() > 0) {
          found.push_back(overrun);
        }
      }
    }
  }
  return found;
}

std::string OverrunText(const std::vector<Overrun>& found) {
  if (found.empty()) {
    return "";
  }
  const Overrun& worst = *std::ranges::max_element(found, {}, &Overrun::bytes);
  const std::string more = found.size() == 1 ? "" : fmt::format("; {} more", found.size() - 1);
  return fmt::format("! measured exceeds planned: {} of rank {} by {}, {} where {} are planned{}\n", worst.word,
                     worst.rank, HumanBytes(worst.bytes()), HumanBytes(worst.measured_bytes),
                     HumanBytes(worst.planned_bytes), more);
}

Json PeaksToJson(const RankMemory& peaks) {
  Json json = Json::object();
  for (const MemoryColumn& category : kCategories) {
    json[std::string(category.key)] = peaks.*category.bytes;
  }
  return json;
}

}  // namespace

std::string RankMemoryText(const std::vector<StageRanksMemory>& all, View view) {
  constexpr size_t kMaxSpelledOut = 12;
  if (all.empty()) {
    return "";
  }
  std::vector<MemoryRow> shown = MemoryRowsOf(all, false);
  if (view.rows == Rows::kFolded && shown.size() > kMaxSpelledOut) {
    shown = MemoryRowsOf(all, true);
  }
  int64_t greatest_bytes = 0;
  size_t told = 0;
  size_t count = 0;
  for (const StageRanksMemory& stage : all) {
    greatest_bytes = std::max(greatest_bytes, stage.planned.peak);
    told += stage.measured.size();
    count += static_cast<size_t>(stage.ranks);
  }
  const std::vector<Overrun> overruns = OverrunsOf(all);
  const MemoryUnit unit(greatest_bytes);
  std::vector<std::string> headings{"RANKS", ""};
  const bool offloads = std::ranges::any_of(all, [](const auto& stage) { return stage.planned.host > 0; });
  const std::span shows = std::span(kCategories).first(offloads ? kCategories.size() : kCategories.size() - 1);
  std::ranges::transform(shows, std::back_inserter(headings),
                         [](const MemoryColumn& category) { return std::string(category.heading); });
  Table table(std::move(headings));
  // Adds a row. Where some value carries a mark, the others end in a blank, so that the digits align.
  const auto add = [&](std::string ranks, std::string what, const RankMemory& memory, const MemoryRow* marked) {
    std::vector<std::string> cells{std::move(ranks), std::move(what)};
    for (size_t i = 0; i < shows.size(); ++i) {
      const std::string_view mark = overruns.empty() ? "" : marked != nullptr && marked->exceeds[i] ? "!" : " ";
      cells.push_back(unit.Of(memory.*kCategories[i].bytes) + std::string(mark));
    }
    table.AddRow(std::move(cells));
  };
  for (const MemoryRow& row : shown) {
    add(row.ranks == 1 ? fmt::format("{}", row.first_rank)
                       : fmt::format("{}-{}", row.first_rank, row.first_rank + row.ranks - 1),
        "planned", row.planned, nullptr);
    if (row.measured.has_value()) {
      add("", "measured", *row.measured, &row);
    }
  }
  const std::string measured = told == 0 ? "; nothing is measured yet"
                               : told == count
                                   ? ", and the greatest measured"
                                   : fmt::format(", and the greatest measured, of {} of {} ranks", told, count);
  return fmt::format("memory of a device at its peak in {}: planned at most{}\n{}{}", unit.name, measured,
                     table.Render(view.columns), OverrunText(overruns));
}

Json RankMemoryToJson(const std::vector<StageRanksMemory>& all) {
  Json json = Json::array();
  for (const StageRanksMemory& stage : all) {
    MemoryRow row;
    AddStage(stage, row);
    Json measured = Json::array();
    for (const StageRanksMemory::Measured& each : stage.measured) {
      Json rank{{"rank", each.rank}};
      rank.update(PeaksToJson(each.peaks));
      measured.push_back(std::move(rank));
    }
    Json exceeded = Json::array();
    for (size_t i = 0; i < kCategories.size(); ++i) {
      if (row.exceeds[i]) {
        exceeded.push_back(kCategories[i].key);
      }
    }
    json.push_back({{"pipeline_rank", json.size()},
                    {"site", stage.site},
                    {"first_rank", stage.first_rank},
                    {"ranks", stage.ranks},
                    {"planned", PeaksToJson(stage.planned)},
                    {"measured", std::move(measured)},
                    {"exceeded", std::move(exceeded)}});
  }
  return json;
}

}  // namespace geopipe
