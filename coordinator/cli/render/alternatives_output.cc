#include "coordinator/cli/render/alternatives_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/cli/render/format.h"

namespace geopipe {
namespace {

std::vector<std::string> SitesOf(const Plan& plan) {
  std::vector<std::string> sites;
  for (const PipelineRankPlan& rank : plan.pipeline_ranks) {
    if (std::ranges::find(sites, rank.site) == sites.end()) {
      sites.push_back(rank.site);
    }
  }
  return sites;
}

std::string SitesCell(const Alternative& alternative, const Plan& plan) {
  constexpr size_t kMaxSpelledOut = 3;
  if (!alternative.is_plan) {
    return alternative.SitesText();
  }
  const std::vector<std::string> sites = SitesOf(plan);
  return sites.size() > kMaxSpelledOut ? fmt::format("{} sites", sites.size())
                                       : fmt::format("{}", fmt::join(sites, ","));
}

std::string NameCell(const Alternative& alternative) {
  return fmt::format("{}{}", AlternativeTitle(alternative.kind),
                     alternative.is_plan              ? " (this plan)"
                     : alternative.changes_training() ? " (changes the training)"
                                                      : "");
}

constexpr size_t kMaxShares = 6;  // spelled out

// "tokens: north 37.5 %, east 25.0 %"; "2,048 tokens at each of 2 sites"; of many sites those with equal shares
// together: "tokens: 1.6 % at each of 48 sites, 0.8 % at s09".
std::string SharesText(const Alternative& alternative) {
  int64_t tokens = 0;
  for (const SiteShare& share : alternative.shares) {
    tokens += share.tokens;
  }
  const int64_t first = alternative.shares.front().tokens;
  if (std::ranges::all_of(alternative.shares, [&](const SiteShare& share) { return share.tokens == first; })) {
    return fmt::format("{} tokens at each of {} sites", HumanCount(first), alternative.shares.size());
  }
  std::vector<std::string> texts;
  if (alternative.shares.size() <= kMaxShares) {
    for (const SiteShare& share : alternative.shares) {
      texts.push_back(fmt::format("{} {}", share.site, HumanPercent(Ratio(share.tokens, tokens))));
    }
    return fmt::format("tokens: {}", fmt::join(texts, ", "));
  }
  std::map<int64_t, std::vector<std::string_view>, std::greater<>> sites;  // by tokens
  for (const SiteShare& share : alternative.shares) {
    sites[share.tokens].push_back(share.site);
  }
  for (const auto& [each, names] : sites) {
    texts.push_back(
        fmt::format("{} at {}", HumanPercent(Ratio(each, tokens)),
                    names.size() == 1 ? std::string(names.front()) : fmt::format("each of {} sites", names.size())));
  }
  return fmt::format("tokens: {}", fmt::join(texts, ", "));
}

std::string WayText(const SiteReduction& reduction) {
  return reduction.way == ReductionWay::kExchange ? "exchanged by every two sites"
                                                  : fmt::format("over a tree of links from {}", reduction.root);
}

std::string Note(const Alternative& alternative, const Alternatives& all) {
  if (!alternative.found()) {
    // Local steps need replicas, so the reason for their absence was already given.
    const bool told = alternative.kind == AlternativeKind::kLocalSteps &&
                      alternative.missing == all.Of(AlternativeKind::kSiteReplicas).missing;
    return told ? "" : fmt::format("no {}: {}\n", AlternativeTitle(alternative.kind), alternative.missing);
  }
  if (alternative.kind == AlternativeKind::kSiteReplicas) {
    return fmt::format("replicas      {}\n              {} of gradients {}: {}, {} of it exposed\n",
                       SharesText(alternative), HumanBytes(alternative.reduced_bytes), WayText(*alternative.reduction),
                       HumanDuration(alternative.reduction_ns), HumanDuration(alternative.exposed_ns));
  }
  if (alternative.kind == AlternativeKind::kLocalSteps) {
    return fmt::format(
        "local steps   changes of the weights ({}; fp32), averaged every {} iterations in {};\n"
        "              this changes the training and is never chosen\n",
        HumanBytes(alternative.reduced_bytes), kLocalSteps, HumanDuration(alternative.reduction_ns));
  }
  return "";
}

// Says that `faster` is faster, and what to do about it.
std::string FasterText(const Alternative& faster, int64_t plan_iteration_ns) {
  const bool is_single = faster.kind == AlternativeKind::kSingleSite;
  std::vector<std::string> sites;
  for (const SiteShare& share : faster.shares) {
    sites.push_back(share.site);
  }
  return fmt::format(
      "faster        {} takes {}, {} less; equivalent training, {}\n",
      is_single ? fmt::format("{} alone", sites.front())
                : fmt::format("a replica at each of {}",
                              sites.size() > 3 ? faster.SitesText() : fmt::format("{}", fmt::join(sites, ", "))),
      HumanDuration(faster.iteration_ns), HumanPercent(1 - Ratio(faster.iteration_ns, plan_iteration_ns)),
      is_single ? fmt::format("planned with placement: {{sites: [{}]}} and pipeline: auto", sites.front())
                : "not supported by the runtime yet");
}

Json ReductionToJson(const Alternative& alternative) {
  const SiteReduction& reduction = *alternative.reduction;
  Json links = Json::array();
  for (const auto& [a, b] : reduction.links) {
    links.push_back({a, b});
  }
  Json json{{"way", ReductionWayName(reduction.way)}};
  if (reduction.way == ReductionWay::kTree) {
    json["root"] = reduction.root;
  }
  json["links"] = std::move(links);
  json["bandwidth_Bps"] = reduction.bandwidth_bytes_per_s;
  json["latency_s"] = Seconds(reduction.latency_ns);
  json["bytes"] = alternative.reduced_bytes;
  json["alone_s"] = Seconds(alternative.reduction_ns);
  json["exposed_s"] = Seconds(alternative.exposed_ns);
  if (alternative.kind == AlternativeKind::kLocalSteps) {
    json["every"] = kLocalSteps;
  }
  return json;
}

}  // namespace

std::string_view AlternativeTitle(AlternativeKind kind) {
  static constexpr std::array<std::string_view, 4> kTitles{"single site", "pipeline over sites", "replica per site",
                                                           "local steps"};
  return kTitles[static_cast<size_t>(kind)];
}

std::string AlternativesText(const Alternatives& alternatives, const PlanResult& plan, View view) {
  Table table({"ALTERNATIVE", "SITES", "ITERATION", "TOKENS/S", "AGAINST", "WAN", "DEVICES"});
  std::string notes;
  const int64_t plan_ns = plan.prediction.iteration_ns;
  for (const Alternative& each : alternatives.all) {
    notes += Note(each, alternatives);
    if (!each.found()) {
      table.AddRow({NameCell(each), "-", "-", "-", "-", "-", "-"});
      continue;
    }
    table.AddRow({NameCell(each), SitesCell(each, plan.plan), HumanDuration(each.iteration_ns),
                  HumanCount(static_cast<int64_t>(each.tokens_per_s)),
                  fmt::format("{:.2f} ×", Ratio(each.iteration_ns, plan_ns)), HumanBytes(each.wan_bytes_per_iteration),
                  HumanCount(each.devices)});
  }
  std::string text = table.Render(view.columns) + notes;
  const Alternative* fastest = alternatives.Fastest();
  if (fastest != nullptr && fastest->iteration_ns < plan_ns) {
    text += FasterText(*fastest, plan_ns);
  }
  for (const Alternative& each : alternatives.all) {
    const bool shows = view.rows == Rows::kAll && !each.changes_training();  // local steps have the plans of replicas
    for (size_t i = 0; shows && i < each.shares.size(); ++i) {
      const SiteShare& share = each.shares[i];
      text += fmt::format(
          "\n{} at {}: {} tokens in {}\n{}\ntensor {}, pipeline {}, data {}\n{}", AlternativeTitle(each.kind),
          share.site, HumanCount(share.tokens), HumanDuration(share.prediction.iteration_ns), PlanHeadline(share.plan),
          share.plan.grid.tensor, share.plan.grid.pipeline, share.plan.grid.data, StageTable(share.plan, view));
    }
  }
  return text;
}

Json AlternativesToJson(const Alternatives& alternatives, const PlanResult& plan) {
  Json all = Json::array();
  for (const Alternative& each : alternatives.all) {
    Json json{{"kind", AlternativeName(each.kind)},
              {"found", each.found()},
              {"is_plan", each.is_plan},
              {"changes_training", each.changes_training()}};
    if (!each.found()) {
      json["missing"] = each.missing;
      all.push_back(std::move(json));
      continue;
    }
    json["iteration_s"] = Seconds(each.iteration_ns);
    json["tokens_per_s"] = each.tokens_per_s;
    json["against_plan"] = Ratio(each.iteration_ns, plan.prediction.iteration_ns);
    json["wan_bytes_per_iteration"] = each.wan_bytes_per_iteration;
    json["devices"] = each.devices;
    json["sites"] = Json::array();
    for (const SiteShare& share : each.shares) {
      json["sites"].push_back({{"site", share.site},
                               {"tokens", share.tokens},
                               {"pipeline", share.plan.grid.pipeline},
                               {"plan", PlanToJson(share.plan)},
                               {"predicted", PredictionToJson(share.prediction)}});
    }
    if (each.reduction.has_value()) {
      json["reduction"] = ReductionToJson(each);
    }
    all.push_back(std::move(json));
  }
  return all;
}

}  // namespace geopipe
