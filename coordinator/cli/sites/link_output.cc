#include "coordinator/cli/sites/link_output.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace geopipe {
namespace {

// Values as text; "-" for what was not measured.
std::string SpreadOfLatency(const v1::LinkMeasurement& measured) {
  return measured.latency_samples() > 1 && measured.latency_spread_ns() > 0
             ? HumanDuration(measured.latency_spread_ns())
             : "-";
}

std::string SpreadOfBandwidth(const v1::LinkMeasurement& measured) {
  return measured.bandwidth_samples() > 1 && measured.bandwidth_spread_bytes_per_s() > 0
             ? HumanBandwidth(measured.bandwidth_spread_bytes_per_s())
             : "-";
}

// "-" where nothing is known or declared.
std::string Latency(int64_t latency_ns, double bandwidth_bytes_per_s) {
  return bandwidth_bytes_per_s > 0 ? HumanDuration(latency_ns) : "-";
}

std::string Bandwidth(double bytes_per_s) { return bytes_per_s > 0 ? HumanBandwidth(bytes_per_s) : "-"; }

std::string Declared(const v1::LinkStatus& link) {
  const double bytes_per_s = link.declared_bandwidth_bytes_per_s();
  return bytes_per_s > 0 ? fmt::format("{}, {}", HumanDuration(link.declared_latency_ns()), HumanBandwidth(bytes_per_s))
                         : "-";
}

// null where nothing is known or declared.
Json FiguresJson(int64_t latency_ns, double bandwidth_bytes_per_s) {
  return bandwidth_bytes_per_s > 0 ? Json{{"latency_s", Seconds(latency_ns)}, {"bandwidth_Bps", bandwidth_bytes_per_s}}
                                   : Json(nullptr);
}

std::string Age(const v1::LinkStatus& link) { return link.has_measured() ? HumanAge(link.age_ns()) + " ago" : "-"; }

}  // namespace

Table LinkTableOf(const v1::ListLinksResponse& response, bool wide) {
  std::vector<std::string> headings{"FROM", "TO", "LATENCY", "±", "BANDWIDTH", "±", "SOURCE", "AGE", "DECLARED"};
  if (wide) {
    headings.insert(headings.end(), {"MEDIAN LATENCY", "ROUND TRIPS", "TRAINS", "MEASURED", "SHAPED", "TROUBLE"});
  }
  Table table(headings);
  for (const v1::LinkStatus& link : response.links()) {
    const v1::LinkMeasurement& measured = link.measured();
    std::vector<std::string> row{link.from_site(),
                                 link.to_site(),
                                 Latency(link.latency_ns(), link.bandwidth_bytes_per_s()),
                                 SpreadOfLatency(measured),
                                 Bandwidth(link.bandwidth_bytes_per_s()),
                                 SpreadOfBandwidth(measured),
                                 link.source(),
                                 Age(link),
                                 Declared(link)};
    if (wide) {
      row.insert(row.end(), {link.has_measured() ? HumanDuration(measured.latency_median_ns()) : "-",
                             fmt::format("{}", measured.latency_samples()),
                             fmt::format("{}", measured.bandwidth_samples()), fmt::format("{}", link.measurements()),
                             link.shaped() ? "yes" : "no", link.trouble().empty() ? "-" : link.trouble()});
    }
    table.AddRow(std::move(row));
  }
  return table;
}

Json LinksToJson(const v1::ListLinksResponse& response) {
  Json json = Json::array();
  for (const v1::LinkStatus& link : response.links()) {
    Json item{{"from", link.from_site()},
              {"to", link.to_site()},
              {"latency_s", nullptr},
              {"bandwidth_Bps", nullptr},
              {"source", link.source()},
              {"shaped", link.shaped()},
              {"declared", FiguresJson(link.declared_latency_ns(), link.declared_bandwidth_bytes_per_s())},
              {"measured", nullptr},
              {"trouble", nullptr}};
    if (link.bandwidth_bytes_per_s() > 0) {
      item.update(FiguresJson(link.latency_ns(), link.bandwidth_bytes_per_s()));
    }
    if (link.has_measured()) {
      const v1::LinkMeasurement& measured = link.measured();
      item["measured"] = {{"age_s", Seconds(link.age_ns())},
                          {"measurements", link.measurements()},
                          {"latency_s", Seconds(measured.latency_ns())},
                          {"latency_median_s", Seconds(measured.latency_median_ns())},
                          {"latency_spread_s", Seconds(measured.latency_spread_ns())},
                          {"round_trips", measured.latency_samples()},
                          {"bandwidth_Bps", nullptr},
                          {"bandwidth_spread_Bps", nullptr},
                          {"trains", measured.bandwidth_samples()}};
      if (measured.bandwidth_bytes_per_s() > 0) {
        item["measured"]["bandwidth_Bps"] = measured.bandwidth_bytes_per_s();
        item["measured"]["bandwidth_spread_Bps"] = measured.bandwidth_spread_bytes_per_s();
      }
    }
    if (!link.trouble().empty()) {
      item["trouble"] = link.trouble();
    }
    json.push_back(std::move(item));
  }
  return json;
}

}  // namespace geopipe
