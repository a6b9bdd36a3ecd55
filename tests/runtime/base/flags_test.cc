#include "runtime/base/flags.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

struct Flags {
  std::string config;
  std::string output = "table";
  int64_t iterations = 7;
  std::optional<uint64_t> seed;
  bool pace = false;
  std::vector<std::string> links;
  int64_t grace_ns = 30'000'000'000;
  std::string file;
  std::vector<std::string> rest;
  FlagSet set{"geopipectl test", "Tests flags."};

  Flags() {
    set.Add("config", &config, "FILE", "Configuration file.");
    set.Add("output,o", &output, "FORMAT", "How to print.");
    set.Add("iterations", &iterations, "N", "How many.");
    set.Add("seed", &seed, "N", "Seed.");
    set.Add("pace", &pace, "Paces.");
    set.Add("link", &links, "LINK", "A link; may be repeated.");
    set.AddDuration("orphan-grace", &grace_ns, "How long.");
    set.AddPositional("FILE", &file, /*required=*/true, "The file.");
    set.AddPositionals("NAME", &rest, "Names.");
  }
  absl::Status Parse(std::vector<std::string> arguments) { return set.Parse(arguments); }
  std::string Error(std::vector<std::string> arguments) { return std::string(Parse(std::move(arguments)).message()); }
};

TEST_CASE("Every form of a flag is understood") {
  Flags flags;
  REQUIRE(flags
              .Parse({"--config", "a b", "-o", "json", "--iterations=-3", "f.yaml", "--seed", "18446744073709551615",
                      "--pace", "--link", "x", "--link=y=1", "--orphan-grace", "500ms", "--", "--name", "-"})
              .ok());
  CHECK(flags.config == "a b");
  CHECK(flags.output == "json");
  CHECK(flags.iterations == -3);
  CHECK(flags.seed == 18446744073709551615U);
  CHECK(flags.pace);
  CHECK(flags.links == std::vector<std::string>{"x", "y=1"});
  CHECK(flags.grace_ns == 500'000'000);
  CHECK(flags.file == "f.yaml");
  CHECK(flags.rest == std::vector<std::string>{"--name", "-"});
  CHECK(flags.set.given("pace"));
}

TEST_CASE("What is not given keeps its default") {
  Flags flags;
  const char* const argv[] = {"f", "--pace=false", "-o=wide"};
  REQUIRE(flags.set.Parse(3, argv).ok());
  CHECK(flags.iterations == 7);
  CHECK_FALSE(flags.pace);
  CHECK(flags.output == "wide");
  CHECK_FALSE(flags.seed.has_value());
  CHECK_FALSE(flags.set.given("iterations"));
}

TEST_CASE("a letter takes its value with or without a blank") {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"f", "-o", "json"}, {"f", "-ojson"}, {"f", "-o=json"}, {"-ojson", "f"}}) {
    Flags flags;
    REQUIRE(flags.Parse(arguments).ok());
    CHECK(flags.output == "json");
    CHECK(flags.file == "f");
  }
  CHECK(Flags().Error({"f", "-oa", "-ob"}) == "-o is given twice; give it once");
  CHECK(Flags().Error({"f", "-output", "json"}) == "unknown flag -output; did you mean --output?");
  CHECK(Flags().Error({"f", "-ha"}) == "unknown flag -ha; see geopipectl test --help");
}

TEST_CASE("Each mistake on a command line is one sentence") {
  CHECK(Flags().Error({"f", "--iteration", "3"}) == "unknown flag --iteration; did you mean --iterations?");
  CHECK(Flags().Error({"f", "--xyzzy"}) == "unknown flag --xyzzy; see geopipectl test --help");
  CHECK(Flags().Error({"f", "-x"}) == "unknown flag -x; see geopipectl test --help");
  CHECK(Flags().Error({"f", "--iterations", "three"}) == "--iterations: 'three' is not a whole number");
  CHECK(Flags().Error({"f", "--iterations", "99999999999999999999"}) ==
        "--iterations: '99999999999999999999' is not a whole number");
  CHECK(Flags().Error({"f", "--seed=-1"}) == "--seed: '-1' is not a whole number from 0 on");
  CHECK(Flags().Error({"f", "--pace=maybe"}) == "--pace: 'maybe' is neither true nor false");
  CHECK(Flags().Error({"f", "--config"}) == "--config needs a value: --config FILE");
  CHECK(Flags().Error({"f", "-o", "json", "-o", "wide"}) == "-o is given twice; give it once");
  CHECK(Flags().Error({"f", "--orphan-grace", "30"}) ==
        "--orphan-grace: '30' has no unit; write it like 20ms, 1.5s or 10min");
  CHECK(Flags().Error({}) == "FILE is missing; usage: geopipectl test [flags] FILE [NAME...]");
  FlagSet bare("p", "s");
  const std::vector<std::string> argument{"x"};
  CHECK(bare.Parse(argument).message() == "unexpected argument 'x'; usage: p [flags]");
}

TEST_CASE("The help is made from the declarations and stops the parsing") {
  Flags flags;
  REQUIRE(flags.Parse({"--help", "--nonsense"}).ok());
  CHECK(flags.set.help_requested());
  CHECK(flags.set.Help() ==
        "Tests flags.\n"
        "\n"
        "usage: geopipectl test [flags] FILE [NAME...]\n"
        "\n"
        "  FILE                         The file.\n"
        "  NAME                         Names.\n"
        "  -h, --help                   Prints this text.\n"
        "      --config FILE            Configuration file.\n"
        "  -o, --output FORMAT          How to print. [default: table]\n"
        "      --iterations N           How many. [default: 7]\n"
        "      --seed N                 Seed.\n"
        "      --pace                   Paces.\n"
        "      --link LINK              A link; may be repeated.\n"
        "      --orphan-grace DURATION  How long. [default: 30s]\n");
}

}  // namespace
}  // namespace geopipe
