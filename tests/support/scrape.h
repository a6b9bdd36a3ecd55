// Asks an endpoint for its metrics the way Prometheus does, and finds series in the answer.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace geopipe {

// GET http://<host:port><path> over a plain socket. REQUIREs an answer within ten seconds. With status line and
// headers.
std::string HttpGet(const std::string& address, const std::string& path);

// The body of GET /metrics. REQUIREs status 200.
std::string Scrape(const std::string& address);

// The value of the one series of this name that bears these labels among others, in a text exposition; nullopt when
// there is none. REQUIREs that there are not two.
std::optional<double> SeriesValue(const std::string& text, const std::string& name,
                                  const std::vector<std::pair<std::string, std::string>>& labels = {});

// Complaints of `promtool check metrics` about the text; empty: none. nullopt when there is no promtool here.
std::optional<std::string> PromtoolFindings(const std::string& text);

}  // namespace geopipe
