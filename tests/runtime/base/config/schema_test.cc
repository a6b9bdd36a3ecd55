#include "runtime/base/config/schema.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/config/environment.h"

namespace geopipe {
namespace {

struct Heartbeat {
  int64_t interval_ns = 500'000'000;
  int32_t misses = 4;
};

struct Link {
  std::string to;
  double bandwidth_bytes_per_s = 0;
};

struct Config {
  std::string site;
  bool die = false;
  Heartbeat heartbeat;
  std::optional<Heartbeat> backup;
  std::vector<Link> links;
  std::vector<int64_t> ports{1, 2};
};

Schema<Heartbeat> HeartbeatSchema() {
  return Schema<Heartbeat>()
      .Key("interval", DurationValue(), &Heartbeat::interval_ns, "Between two heartbeats.")
      .Key("misses", WordOr<int32_t>("never", 0, Integer32Value()), &Heartbeat::misses, "Until failed.");
}

Schema<Config> ConfigSchema() {
  return Schema<Config>()
      .Key("site", StringValue(), &Config::site, "Name.", Need::kRequired)
      .Key("die_with_parent", BooleanValue(), &Config::die, "Dies.")
      .Map("heartbeat", HeartbeatSchema(), &Config::heartbeat, "Liveness.", Need::kOptional, "off")
      .Map("backup", HeartbeatSchema(), &Config::backup, "Second.")
      .List("links",
            Schema<Link>()
                .Key("to", StringValue(), &Link::to, "Other end.", Need::kRequired)
                .Key("bandwidth", BandwidthValue(), &Link::bandwidth_bytes_per_s, "Per direction."),
            &Config::links, "Links.")
      .Key("ports", ListValue(IntegerValue()), &Config::ports, "Ports.");
}

absl::StatusOr<Config> Read(const std::string& text) {
  const auto document = ParseYaml(text, "f");
  return document.ok() ? ConfigSchema().Read(*document) : document.status();
}

std::string ErrorOf(const std::string& text) { return std::string(Read(text).status().message()); }

TEST_CASE("A table reads a struct") {
  const auto config = Read(
      "site: north\nheartbeat: {interval: 2s}\nlinks:\n- {to: a, bandwidth: 8bps}\n- {to: b}\nports: 7\n"
      "die_with_parent: true\n");
  REQUIRE(config.ok());
  CHECK(config->site == "north");
  CHECK(config->die);
  CHECK(config->heartbeat.interval_ns == 2'000'000'000);
  CHECK(config->heartbeat.misses == 4);
  CHECK_FALSE(config->backup.has_value());
  REQUIRE(config->links.size() == 2);
  CHECK(config->links[0].bandwidth_bytes_per_s == 1);
  CHECK(config->ports == std::vector<int64_t>{7});
  CHECK(Read("site: a\nheartbeat: off\nbackup: {misses: never}\n")->backup->misses == 0);
}

TEST_CASE("Each mistake is found at its place") {
  CHECK(ErrorOf("sit: a\n") == "f:1:1: sit: unknown key; did you mean site?");
  CHECK(ErrorOf("die_with_parent: true\n") == "f:1:1: site: missing; add `site: <text>`");
  CHECK(ErrorOf("site: [a]\n") == "f:1:7: site: a list stands where one value (text) is needed");
  CHECK(ErrorOf("site:\n") == "f:1:1: site: nothing stands where one value (text) is needed");
  CHECK(ErrorOf("site: a\nheartbeat: 5\n") == "f:2:12: heartbeat: '5' stands where a map of keys is needed");
  CHECK(ErrorOf("site: a\nheartbeat: {interval: 5}\n") ==
        "f:2:23: heartbeat.interval: '5' has no unit; write it like 20ms, 1.5s or 10min");
  CHECK(ErrorOf("site: a\nlinks: {to: b}\n") == "f:2:8: links: a map stands where a list is needed");
  CHECK(ErrorOf("site: a\nlinks: [{to: b}, {bandwidth: 1Gbps}]\n") == "f:2:18: links[1].to: missing; add `to: <text>`");
  CHECK(ErrorOf("site: a\nports: [1, x]\n") == "f:2:12: ports[1]: 'x' is not a whole number; write it like 1048576");
  CHECK(ErrorOf("- a\n") == "f:1:1: a list stands where a map of keys is needed");
}

TEST_CASE("Overlays come from text and from the environment, and name their source") {
  Config config;
  const Schema<Config> schema = ConfigSchema();
  CHECK(schema.OverlayText("heartbeat.interval", "3s", "--heartbeat", &config).ok());
  CHECK(config.heartbeat.interval_ns == 3'000'000'000);
  CHECK(schema.OverlayText("heartbeat.interval", "3", "--heartbeat", &config).message() ==
        "--heartbeat: heartbeat.interval: '3' has no unit; write it like 20ms, 1.5s or 10min");
  setenv("GEOPIPE_SCHEMA_TEST_HEARTBEAT_MISSES", "9", 1);
  setenv("GEOPIPE_SCHEMA_TEST_SITE", "", 1);
  setenv("GEOPIPE_SCHEMA_TEST_PORTS", "[3, 4]", 1);
  config.site = "before";
  CHECK(schema.OverlayEnvironment("GEOPIPE_SCHEMA_TEST_", &config).ok());
  CHECK(config.heartbeat.misses == 9);
  CHECK(config.site.empty());
  CHECK(config.ports == std::vector<int64_t>{3, 4});
  setenv("GEOPIPE_SCHEMA_TEST_DIE_WITH_PARENT", "yes", 1);
  CHECK(schema.OverlayEnvironment("GEOPIPE_SCHEMA_TEST_", &config).message() ==
        "environment variable GEOPIPE_SCHEMA_TEST_DIE_WITH_PARENT: die_with_parent: 'yes' is neither true nor false");
  for (const char* key : {"HEARTBEAT_MISSES", "SITE", "PORTS", "DIE_WITH_PARENT"}) {
    unsetenv((std::string("GEOPIPE_SCHEMA_TEST_") + key).c_str());
  }
}

TEST_CASE("A variable that is no key's is refused with the one that is meant") {
  const std::vector<std::string> keys = ConfigSchema().KeyPaths();
  constexpr std::string_view kPrefix = "GEOPIPE_SCHEMA_TEST_";
  CHECK(CheckEnvironmentNames(kPrefix, keys).ok());
  setenv("GEOPIPE_SCHEMA_TEST_HEARTBEAT_MISES", "9", 1);
  CHECK(CheckEnvironmentNames(kPrefix, keys).message() ==
        "environment variable GEOPIPE_SCHEMA_TEST_HEARTBEAT_MISES: no key of the configuration; did you mean "
        "GEOPIPE_SCHEMA_TEST_HEARTBEAT_MISSES?");
  unsetenv("GEOPIPE_SCHEMA_TEST_HEARTBEAT_MISES");
  setenv("GEOPIPE_SCHEMA_TEST_HEARTBEAT", "9", 1);
  CHECK_THAT(std::string(CheckEnvironmentNames(kPrefix, keys).message()),
             Catch::StartsWith("environment variable GEOPIPE_SCHEMA_TEST_HEARTBEAT: is a map; set its keys, such as "
                               "GEOPIPE_SCHEMA_TEST_HEARTBEAT_"));
  unsetenv("GEOPIPE_SCHEMA_TEST_HEARTBEAT");
  setenv("GEOPIPE_SCHEMA_TEST_SITE", "x", 1);
  CHECK(CheckEnvironmentNames(kPrefix, keys).ok());
  unsetenv("GEOPIPE_SCHEMA_TEST_SITE");
}

TEST_CASE("The reference is made from the table") {
  CHECK(ConfigSchema().Reference() ==
        "KEY              TYPE             DEFAULT   DESCRIPTION\n"
        "site             text             required  Name.\n"
        "die_with_parent  true | false     false     Dies.\n"
        "heartbeat        map | off                  Liveness.\n"
        "  interval       duration         500ms     Between two heartbeats.\n"
        "  misses         integer | never  4         Until failed.\n"
        "backup           map                        Second.\n"
        "  interval       duration         500ms     Between two heartbeats.\n"
        "  misses         integer | never  4         Until failed.\n"
        "links            list of maps               Links.\n"
        "  - to           text             required  Other end.\n"
        "    bandwidth    bandwidth                  Per direction.\n"
        "ports            list of integer  [1, 2]    Ports.\n");
}

TEST_CASE("where it would be too wide, the reference has the description below the value") {
  CHECK(RenderReference(std::vector<SchemaRow>{{0, "search", "map", "", "", "What is searched."},
                                               {1, "max_delta_n", "integer", "from 0 to 1024", "8", "At most."}},
                        60) ==
        "KEY            VALUE\n"
        "search         map\n"
        "               What is searched.\n"
        "  max_delta_n  integer, from 0 to 1024; default 8\n"
        "               At most.\n");
}

TEST_CASE("keys are found by the end of their path, with all that is below them") {
  const std::vector<SchemaRow> rows = ConfigSchema().Rows();
  const auto paths = [&](std::string_view name) {
    std::vector<std::string> found;
    for (const SchemaBranch& branch : FindBranches(rows, name)) {
      found.push_back(branch.path);
    }
    return found;
  };
  using Paths = std::vector<std::string>;
  CHECK(paths("interval") == Paths{"heartbeat.interval", "backup.interval"});
  CHECK(paths("backup.interval") == Paths{"backup.interval"});
  CHECK(paths("links.to") == Paths{"links.to"});
  CHECK(paths("links.bandwidth") == Paths{"links.bandwidth"});
  CHECK(paths("terval").empty());
  REQUIRE(FindBranches(rows, "heartbeat").size() == 1);
  CHECK(FindBranches(rows, "heartbeat").front().rows.size() == 3);
  CHECK(FindBranches(rows, "links").front().rows.size() == 3);
  CHECK(FindBranches(rows, "heartbeat.misses").front().rows.front().depth == 0);
  const std::vector<std::string> names = BranchNames(rows);
  CHECK(std::ranges::count(names, "backup.interval") == 1);
  CHECK(std::ranges::count(names, "interval") == 2);
}

}  // namespace
}  // namespace geopipe
