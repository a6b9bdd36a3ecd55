// Scrapes the metrics of a playground's run while it goes on.
#pragma once

#include <string>
#include <vector>

#include "tests/support/command.h"

namespace geopipe {

struct Scraped {
  std::string program;
  std::string address;
  std::string text;  // of its metrics
};

// Waits, for a minute at most, until the run has so many processes with metrics and so many iterations are done, and
// scrapes them all. REQUIREs that the run is not over by then.
std::vector<Scraped> ScrapeInMidRun(Command& playground, size_t processes, double iterations);

}  // namespace geopipe
