// Command lines: long flags `--name value` and `--name=value`, one-letter aliases `-o json` and `-ojson`, booleans
// (`--pace`, `--pace=false`), repeated flags, positional arguments, and a help text made from the declarations.
//
//   FlagSet flags("geopipe-agent", "Runs the devices of one node.");
//   flags.Add("config", &config_path, "FILE", "Configuration file.");
//   GP_RETURN_IF_ERROR(flags.Parse(argc - 1, argv + 1));
//   if (flags.help_requested()) { PrintOut("{}", flags.Help()); return 0; }
#pragma once

#include <absl/status/status.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace geopipe {

class FlagSet {
 public:
  // Turns a flag's text into a value. The error completes "--name: ...".
  using Setter = std::function<absl::Status(std::string_view text)>;

  // `usage_name` as people type it ("geopipectl plan"); `summary` is one sentence.
  FlagSet(std::string usage_name, std::string summary);

  // Declarations. `name` is long ("config") or long and short ("output,o"). The target's value at declaration is the
  // default that the help shows. Targets must outlive Parse.
  void Add(std::string_view name, std::string* value, std::string_view metavar, std::string_view help);
  void Add(std::string_view name, std::optional<std::string>* value, std::string_view metavar, std::string_view help);
  // A path: `~/` is $HOME (home_path.h).
  void AddPath(std::string_view name, std::string* value, std::string_view metavar, std::string_view help);
  // Integers of 32 or 64 bits.
  template <std::integral Number>
  void Add(std::string_view name, Number* value, std::string_view metavar, std::string_view help);
  template <std::integral Number>
  void Add(std::string_view name, std::optional<Number>* value, std::string_view metavar, std::string_view help);
  // Adds a flag that takes no value, but understands --name=true and --name=false.
  void Add(std::string_view name, bool* value, std::string_view help);
  // Adds a flag that may be given several times; every use adds one value.
  void Add(std::string_view name, std::vector<std::string>* values, std::string_view metavar, std::string_view help);
  // A duration with its unit ("30s"), in nanoseconds.
  void AddDuration(std::string_view name, int64_t* value_ns, std::string_view help);
  // Anything else. `default_text` is for the help; empty: none is shown.
  void AddParsed(std::string_view name, std::string_view metavar, std::string_view default_text, std::string_view help,
                 Setter set);
  // Positional arguments come in the order of declaration; `metavar` names one in the usage line and in errors.
  void AddPositional(std::string_view metavar, std::string* value, bool required, std::string_view help);
  // Takes all remaining positional arguments; the last declaration.
  void AddPositionals(std::string_view metavar, std::vector<std::string>* values, std::string_view help);

  // `arguments` without the program's name. InvalidArgument: one sentence that names the flag, its value and the
  // remedy (a flag that is not known: the nearest one). Stops at --help, whatever else there is. `--` ends the flags.
  absl::Status Parse(std::span<const std::string> arguments);
  absl::Status Parse(int argc, const char* const* argv);

  bool help_requested() const { return help_requested_; }
  // True when the flag of this long name was on the command line.
  bool given(std::string_view name) const;
  std::string Help(int32_t columns = 80) const;
  // "usage: geopipectl plan [flags] ..."
  std::string Usage() const;

 private:
  struct Flag {
    std::string name;
    std::string short_name;  // one letter or empty
    std::string metavar;
    std::string default_text;
    std::string help;
    bool takes_value = true;
    bool repeats = false;
    bool given = false;
    Setter set;
  };
  struct Positional {
    std::string metavar;
    std::string help;
    bool required = false;
    std::string* value = nullptr;                // one of the two
    std::vector<std::string>* values = nullptr;  // all that remain
  };

  // The flag with this name or short name; nullptr: there is none.
  Flag* Find(std::string Flag::*key, std::string_view name);
  absl::Status UnknownFlag(std::string_view argument, std::string_view name) const;
  absl::Status SetFlag(Flag& flag, std::string_view shown, const std::optional<std::string_view>& attached,
                       std::span<const std::string> arguments, size_t* position);
  absl::Status SetPositionals(std::span<const std::string> arguments);

  std::string usage_name_;
  std::string summary_;
  std::vector<Flag> flags_;
  std::vector<Positional> positionals_;
  bool help_requested_ = false;
};

}  // namespace geopipe
