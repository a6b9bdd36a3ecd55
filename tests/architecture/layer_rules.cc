#include "tests/architecture/layer_rules.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "tests/architecture/layer_table.h"

namespace geopipe::architecture {
namespace {

bool StartsWithOneOf(std::string_view text, const std::vector<std::string_view>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view p) { return text.starts_with(p); });
}

std::string FolderOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? "" : path.substr(0, slash));
}

// The folder as the table names it: generated files ("build/proto/geopipe/v1/x.pb.h") are "proto"; empty for files that
// belong to no layer.
std::string LayerOf(const std::string& path) {
  if (path.ends_with(".pb.h")) {
    return "proto";
  }
  const std::string top = path.substr(0, path.find('/'));
  const bool product =
      top == "optimizer" || top == "proto" || top == "runtime" || top == "agent" || top == "coordinator";
  return product ? FolderOf(path) : "";
}

bool Names(const std::vector<std::string>& folders, std::string_view folder) {
  return std::ranges::find(folders, folder) != folders.end();
}

bool MayInclude(const Layer& layer, std::string_view folder) {
  return folder == layer.folder || Names(layer.may_include, folder);
}

bool MaySee(const Layer& layer, std::string_view folder) {
  return MayInclude(layer, folder) || Names(layer.come_along, folder);
}

// The name by which a system header is included: "/usr/include/x86_64-linux-gnu/grpcpp/x.h" is "grpcpp/x.h".
std::string_view BelowIncludeDir(std::string_view path) {
  for (const std::string_view dir : {"/usr/include/x86_64-linux-gnu/", "/usr/include/aarch64-linux-gnu/",
                                     "/usr/local/cuda/include/", "/usr/local/include/", "/usr/include/"}) {
    if (path.starts_with(dir)) {
      return path.substr(dir.size());
    }
  }
  return {};
}

// The folder of a project header, as the table names it.
std::string FolderIncluded(const Include& include) {
  return include.name.ends_with(".pb.h") ? "proto" : FolderOf(include.name);
}

// Folders that the sources of a folder include, and those that they open, however indirectly.
struct Use {
  std::set<std::string> included;
  std::set<std::string> opened;
};

std::map<std::string, Use> UseByFolder(const std::vector<SourceFile>& sources) {
  std::map<std::string, std::vector<Include>> includes;  // of the project, by file
  for (const SourceFile& file : sources) {
    std::ranges::copy_if(DirectIncludes(file.content), std::back_inserter(includes[file.path]),
                         [](const Include& include) { return !include.angled; });
  }
  std::map<std::string, Use> uses;
  for (const auto& [path, direct] : includes) {
    Use& use = uses[FolderOf(path)];
    std::vector<std::string> to_open;
    for (const Include& include : direct) {
      use.included.insert(FolderIncluded(include));
      to_open.push_back(include.name);
    }
    std::set<std::string> seen;
    while (!to_open.empty()) {
      const std::string name = std::move(to_open.back());
      to_open.pop_back();
      if (!seen.insert(name).second) {
        continue;
      }
      use.opened.insert(FolderIncluded({.name = name}));
      if (const auto found = includes.find(name); found != includes.end()) {
        std::ranges::transform(found->second, std::back_inserter(to_open), &Include::name);
      }
    }
  }
  return uses;
}

Findings CheckQuotedInclude(const SourceFile& file, const Include& include, const Layer& layer) {
  if (include.name.find("../") != std::string::npos || include.name.starts_with("./")) {
    return {{file.path, include.line, "includes \"" + include.name + "\": use the path from the source root"}};
  }
  if (!MayInclude(layer, FolderIncluded(include))) {
    return {{file.path, include.line, layer.folder + " may not include \"" + include.name + '"'}};
  }
  return {};
}

Findings CheckAngledInclude(const SourceFile& file, const Include& include, bool pure) {
  Findings findings;
  const auto& allowed = PureHeaders();
  // The one abort of a failed check prints to stderr first.
  const bool check_failure = file.path == "optimizer/base/check.cc" && include.name == "cstdio";
  if (pure && !check_failure && std::find(allowed.begin(), allowed.end(), include.name) == allowed.end()) {
    findings.push_back({file.path, include.line, "optimizer/ is pure: <" + include.name + "> is not on its list"});
  }
  for (const HeaderUse& use : Libraries()) {
    if (StartsWithOneOf(include.name, use.headers) && !StartsWithOneOf(file.path, use.users)) {
      findings.push_back({file.path, include.line, "may not use " + std::string(use.name) + " (" + include.name + ")"});
    }
  }
  for (const HeaderUse& use : SystemHeaders()) {
    const bool is_one = std::any_of(use.headers.begin(), use.headers.end(), [&](std::string_view header) {
      return header.ends_with('/') ? include.name.starts_with(header) : include.name == header;
    });
    if (is_one && !StartsWithOneOf(file.path, use.users)) {
      findings.push_back(
          {file.path, include.line, '<' + include.name + "> (" + std::string(use.name) + ") may not be used here"});
    }
  }
  return findings;
}

}  // namespace

std::vector<Include> DirectIncludes(std::string_view content) {
  std::vector<Include> includes;
  std::istringstream lines{std::string(content)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::erase_if(line, [](char c) { return c == ' ' || c == '\t'; });
    if (!line.starts_with("#include")) {
      continue;
    }
    const size_t open = line.find_first_of("<\"");
    const size_t close = line.find_last_of(">\"");
    if (open != std::string::npos && close > open) {
      includes.push_back({line.substr(open + 1, close - open - 1), line[open] == '<', number});
    }
  }
  return includes;
}

Findings CheckObject(const ObjectDeps& object) {
  const std::string folder = LayerOf(object.source);
  if (folder.empty() || object.source.starts_with("build/")) {
    return {};
  }
  const Layer* layer = FindLayer(folder);
  if (layer == nullptr) {
    return {{object.source, 0, "folder " + folder + " is not in the table of layers"}};
  }
  Findings findings;
  std::vector<std::string_view> reported;
  for (const std::string& header : object.headers) {
    const std::string header_folder = LayerOf(header);
    if (!header_folder.empty() && !MaySee(*layer, header_folder)) {
      findings.push_back({object.source, 0, folder + " may not depend on " + header});
    }
    const bool foreign = header_folder.empty() && !header.starts_with('/') && !header.starts_with("build/");
    if (foreign) {
      findings.push_back({object.source, 0, "depends on " + header + ", which is in no layer"});
    }
    const std::string_view name = BelowIncludeDir(header);
    for (const HeaderUse& use : Libraries()) {
      const bool seen = std::find(reported.begin(), reported.end(), use.name) != reported.end();
      if (!name.empty() && !seen && StartsWithOneOf(name, use.headers) && !StartsWithOneOf(object.source, use.users)) {
        findings.push_back({object.source, 0, "may not use " + std::string(use.name) + " (" + header + ")"});
        reported.push_back(use.name);
      }
    }
  }
  return findings;
}

Findings CheckGrants(const std::vector<Layer>& layers, const std::vector<SourceFile>& sources) {
  const std::map<std::string, Use> uses = UseByFolder(sources);
  Findings findings;
  for (const Layer& layer : layers) {
    const auto found = uses.find(layer.folder);
    const Use use = found == uses.end() ? Use() : found->second;
    const auto report = [&](const std::string& folder, std::string_view what) {
      findings.push_back({"CMakeLists.txt", 0, "layers: " + layer.folder + std::string(what) + folder});
    };
    for (const std::string& folder : layer.may_include) {
      if (!use.included.contains(folder)) {
        report(folder,
               use.opened.contains(folder) ? " includes no header of, so name it after THROUGH: " : " has no use for ");
      }
    }
    for (const std::string& folder : layer.come_along) {
      if (use.included.contains(folder)) {
        report(folder, " includes headers of, so name it before THROUGH: ");
      } else if (!use.opened.contains(folder)) {
        report(folder, " has no use for ");
      }
    }
  }
  return findings;
}

Findings CheckIncludes(const SourceFile& file) {
  const bool is_test = file.path.starts_with("tests/");
  const std::string folder = LayerOf(file.path);
  const Layer* layer = FindLayer(folder);
  if (layer == nullptr && !is_test) {
    return {{file.path, 0, "folder " + folder + " is not in the table of layers"}};
  }
  Findings findings;
  for (const Include& include : DirectIncludes(file.content)) {
    if (is_test) {
      if (include.name.find("../") != std::string::npos) {
        findings.push_back(
            {file.path, include.line, "includes \"" + include.name + "\": use the path from the source root"});
      }
      continue;
    }
    Append(include.angled ? CheckAngledInclude(file, include, folder.starts_with("optimizer/"))
                          : CheckQuotedInclude(file, include, *layer),
           findings);
  }
  return findings;
}

Findings CheckUndefinedSymbols(std::string_view archive, std::string_view nm_output) {
  Findings findings;
  std::istringstream lines{std::string(nm_output)};
  for (std::string line; std::getline(lines, line);) {
    for (const std::string_view impure : ImpureSymbols()) {
      if (line.find(impure) != std::string::npos) {
        findings.push_back({std::string(archive), 0, "optimizer/ is pure, but needs" + line});
      }
    }
  }
  return findings;
}

}  // namespace geopipe::architecture
