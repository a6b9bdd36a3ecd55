#include "runtime/base/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <type_traits>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/home_path.h"
#include "runtime/base/suggest.h"
#include "runtime/base/utf8.h"
#include "runtime/base/wrap.h"

namespace geopipe {
namespace {

template <class Number>
absl::Status SetNumber(std::string_view text, Number* value) {
  Number parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size()) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is not {}", Excerpt(text), std::is_signed_v<Number> ? "a whole number" : "a whole number from 0 on"));
  }
  *value = parsed;
  return absl::OkStatus();
}

}  // namespace

FlagSet::FlagSet(std::string usage_name, std::string summary)
    : usage_name_(std::move(usage_name)), summary_(std::move(summary)) {
  Add("help,h", &help_requested_, "Prints this text.");
}

void FlagSet::AddParsed(std::string_view name, std::string_view metavar, std::string_view default_text,
                        std::string_view help, Setter set) {
  const size_t comma = name.find(',');
  Flag flag;
  flag.name = name.substr(0, comma);
  flag.short_name = comma == std::string_view::npos ? "" : name.substr(comma + 1);
  GP_CHECK(!flag.name.empty() && flag.short_name.size() <= 1, "flag \"{}\" is misdeclared", name);
  GP_CHECK(Find(&Flag::name, flag.name) == nullptr, "flag --{} is declared twice", flag.name);
  flag.metavar = metavar;
  flag.default_text = default_text;
  flag.help = help;
  flag.set = std::move(set);
  flags_.push_back(std::move(flag));
}

void FlagSet::Add(std::string_view name, std::string* value, std::string_view metavar, std::string_view help) {
  AddParsed(name, metavar, *value, help, [value](std::string_view text) {
    *value = text;
    return absl::OkStatus();
  });
}

void FlagSet::AddPath(std::string_view name, std::string* value, std::string_view metavar, std::string_view help) {
  AddParsed(name, metavar, *value, help, [value](std::string_view text) {
    GP_ASSIGN_OR_RETURN(*value, ExpandHome(text));
    return absl::OkStatus();
  });
}

template <std::integral Number>
void FlagSet::Add(std::string_view name, Number* value, std::string_view metavar, std::string_view help) {
  AddParsed(name, metavar, fmt::format("{}", *value), help,
            [value](std::string_view text) { return SetNumber(text, value); });
}

template <std::integral Number>
void FlagSet::Add(std::string_view name, std::optional<Number>* value, std::string_view metavar,
                  std::string_view help) {
  AddParsed(name, metavar, "", help, [value](std::string_view text) { return SetNumber(text, &value->emplace()); });
}

template void FlagSet::Add(std::string_view, int32_t*, std::string_view, std::string_view);
template void FlagSet::Add(std::string_view, int64_t*, std::string_view, std::string_view);
template void FlagSet::Add(std::string_view, uint64_t*, std::string_view, std::string_view);
template void FlagSet::Add(std::string_view, std::optional<int64_t>*, std::string_view, std::string_view);
template void FlagSet::Add(std::string_view, std::optional<uint64_t>*, std::string_view, std::string_view);

void FlagSet::Add(std::string_view name, std::optional<std::string>* value, std::string_view metavar,
                  std::string_view help) {
  AddParsed(name, metavar, value->value_or(""), help, [value](std::string_view text) {
    *value = std::string(text);
    return absl::OkStatus();
  });
}

void FlagSet::Add(std::string_view name, bool* value, std::string_view help) {
  AddParsed(name, "", *value ? "true" : "", help, [value](std::string_view text) {
    if (text != "true" && text != "false") {
      return absl::InvalidArgumentError(fmt::format("'{}' is neither true nor false", Excerpt(text)));
    }
    *value = text == "true";
    return absl::OkStatus();
  });
  flags_.back().takes_value = false;
}

void FlagSet::Add(std::string_view name, std::vector<std::string>* values, std::string_view metavar,
                  std::string_view help) {
  AddParsed(name, metavar, "", help, [values](std::string_view text) {
    values->emplace_back(text);
    return absl::OkStatus();
  });
  flags_.back().repeats = true;
}

void FlagSet::AddDuration(std::string_view name, int64_t* value_ns, std::string_view help) {
  AddParsed(name, "DURATION", FormatDuration(*value_ns), help, [value_ns](std::string_view text) {
    GP_ASSIGN_OR_RETURN(*value_ns, ParseDuration(text));
    return absl::OkStatus();
  });
}

void FlagSet::AddPositional(std::string_view metavar, std::string* value, bool required, std::string_view help) {
  positionals_.push_back({std::string(metavar), std::string(help), required, value, nullptr});
}

void FlagSet::AddPositionals(std::string_view metavar, std::vector<std::string>* values, std::string_view help) {
  positionals_.push_back({std::string(metavar), std::string(help), false, nullptr, values});
}

FlagSet::Flag* FlagSet::Find(std::string Flag::*key, std::string_view name) {
  const auto found = std::ranges::find(flags_, name, key);
  return found == flags_.end() || name.empty() ? nullptr : &*found;
}

bool FlagSet::given(std::string_view name) const {
  return std::any_of(flags_.begin(), flags_.end(), [&](const Flag& flag) { return flag.name == name && flag.given; });
}

absl::Status FlagSet::UnknownFlag(std::string_view argument, std::string_view name) const {
  std::vector<std::string> names;
  names.reserve(flags_.size());
  for (const Flag& flag : flags_) {
    names.push_back(flag.name);
  }
  const std::string hint = DidYouMean(name, names, "--");
  return absl::InvalidArgumentError(fmt::format("unknown flag {}{}", Excerpt(argument),
                                                hint.empty() ? fmt::format("; see {} --help", usage_name_) : hint));
}

absl::Status FlagSet::SetFlag(Flag& flag, std::string_view shown, const std::optional<std::string_view>& attached,
                              std::span<const std::string> arguments, size_t* position) {
  if (flag.given && !flag.repeats) {
    return absl::InvalidArgumentError(fmt::format("{} is given twice; give it once", shown));
  }
  std::string_view text = "true";
  if (attached.has_value()) {
    text = *attached;
  } else if (flag.takes_value) {
    if (*position + 1 >= arguments.size()) {
      return absl::InvalidArgumentError(fmt::format("{} needs a value: {} {}", shown, shown, flag.metavar));
    }
    text = arguments[++*position];
  }
  if (text.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: the value is empty; give {}, or leave the flag out", shown, flag.metavar));
  }
  const absl::Status status = flag.set(text);
  if (!status.ok()) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", shown, std::string(status.message())));
  }
  flag.given = true;
  return absl::OkStatus();
}

absl::Status FlagSet::SetPositionals(std::span<const std::string> arguments) {
  size_t next = 0;
  for (const Positional& positional : positionals_) {
    if (positional.values != nullptr) {
      positional.values->assign(arguments.begin() + static_cast<std::ptrdiff_t>(next), arguments.end());
      next = arguments.size();
    } else if (next < arguments.size()) {
      *positional.value = arguments[next++];
    } else if (positional.required) {
      return absl::InvalidArgumentError(fmt::format("{} is missing; {}", positional.metavar, Usage()));
    }
  }
  if (next < arguments.size()) {
    return absl::InvalidArgumentError(fmt::format("unexpected argument '{}'; {}", Excerpt(arguments[next]), Usage()));
  }
  return absl::OkStatus();
}

absl::Status FlagSet::Parse(int argc, const char* const* argv) {
  return Parse(std::vector<std::string>(argv, argv + std::max(argc, 0)));
}

absl::Status FlagSet::Parse(std::span<const std::string> arguments) {
  std::vector<std::string> positional;
  bool flags_ended = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (flags_ended || argument.size() < 2 || argument[0] != '-') {
      positional.emplace_back(argument);
      continue;
    }
    if (argument == "--") {
      flags_ended = true;
      continue;
    }
    const bool is_long = argument[1] == '-';
    const size_t equals = argument.find('=');
    const std::string_view shown = argument.substr(0, equals);
    const std::string_view name = shown.substr(is_long ? 2 : 1);
    std::optional<std::string_view> attached;
    if (equals != std::string_view::npos) {
      attached = argument.substr(equals + 1);
    }
    Flag* flag = Find(is_long ? &Flag::name : &Flag::short_name, name);
    if (flag == nullptr && !is_long && Find(&Flag::name, name) == nullptr) {  // -ojson
      flag = Find(&Flag::short_name, name.substr(0, 1));
      flag = flag != nullptr && flag->takes_value ? flag : nullptr;
      attached = argument.substr(2);
    }
    if (flag == nullptr) {
      return UnknownFlag(shown, name);
    }
    const std::string_view as = is_long ? shown : shown.substr(0, 2);
    GP_RETURN_IF_ERROR(SetFlag(*flag, as, attached, arguments, &i));
    if (help_requested_) {
      return absl::OkStatus();
    }
  }
  return SetPositionals(positional);
}

std::string FlagSet::Usage() const {
  std::string usage = fmt::format("usage: {} [flags]", usage_name_);
  for (const Positional& positional : positionals_) {
    usage += positional.values != nullptr ? fmt::format(" [{}...]", positional.metavar)
             : positional.required        ? fmt::format(" {}", positional.metavar)
                                          : fmt::format(" [{}]", positional.metavar);
  }
  return usage;
}

std::string FlagSet::Help(int32_t columns) const {
  constexpr int32_t kMaxColumn = 32;
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Positional& positional : positionals_) {
    rows.emplace_back("  " + positional.metavar, positional.help);
  }
  for (const Flag& flag : flags_) {
    const std::string short_name = flag.short_name.empty() ? "    " : fmt::format("-{}, ", flag.short_name);
    const std::string value = flag.metavar.empty() ? "" : " " + flag.metavar;
    const std::string suffix = flag.default_text.empty() ? "" : fmt::format(" [default: {}]", flag.default_text);
    rows.emplace_back(fmt::format("  {}--{}{}", short_name, flag.name, value), flag.help + suffix);
  }
  int32_t column = 0;
  for (const auto& row : rows) {
    column = std::max(column, std::min(DisplayWidth(row.first) + 2, std::min(kMaxColumn, columns / 2)));
  }
  const std::string margin(static_cast<size_t>(column), ' ');
  std::string help = fmt::format("{}\n\n{}\n\n", WrapLines(summary_, columns), WrapLines(Usage(), columns));
  for (const auto& [left, right] : rows) {
    help += left;
    std::string gap = DisplayWidth(left) + 2 > column ? "\n" + margin : margin.substr(left.size());
    for (const std::string& line : Wrap(right, columns - column)) {
      help += std::exchange(gap, "\n" + margin) + line;
    }
    help += '\n';
  }
  return help;
}

}  // namespace geopipe
