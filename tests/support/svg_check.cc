#include "tests/support/svg_check.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace geopipe::test {
namespace {

struct Tag {
  std::string name;
  std::map<std::string, std::string> attributes;
  bool closes = false;  // </name>
  bool empty = false;   // <name/>
};

// `text` between < and >.
Tag ParseTag(std::string_view text) {
  Tag tag;
  tag.closes = text.starts_with('/');
  text.remove_prefix(tag.closes ? 1 : 0);
  tag.empty = text.ends_with('/');
  text.remove_suffix(tag.empty ? 1 : 0);
  const size_t name_end = std::min(text.find(' '), text.size());
  tag.name = text.substr(0, name_end);
  text.remove_prefix(name_end);
  while (!text.empty() && text.find_first_not_of(" \n") != std::string_view::npos) {
    text.remove_prefix(text.find_first_not_of(" \n"));
    const size_t equals = text.find("=\"");
    const size_t end = equals == std::string_view::npos ? equals : text.find('"', equals + 2);
    if (end == std::string_view::npos) {
      FAIL("an attribute without quotes: " << text);
    }
    tag.attributes[std::string(text.substr(0, equals))] = text.substr(equals + 2, end - equals - 2);
    text.remove_prefix(end + 1);
  }
  return tag;
}

std::vector<Tag> ParseTags(std::string_view svg) {
  std::vector<Tag> tags;
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string_view::npos; at = svg.find('<', at)) {
    const size_t end = svg.find('>', at);
    REQUIRE(end != std::string_view::npos);
    const std::string_view inside = svg.substr(at + 1, end - at - 1);
    REQUIRE(inside.find('<') == std::string_view::npos);
    Tag tag = ParseTag(inside);
    if (tag.closes) {
      REQUIRE(!open.empty());
      REQUIRE(open.back() == tag.name);
      open.pop_back();
    } else if (!tag.empty) {
      open.push_back(tag.name);
    }
    tags.push_back(std::move(tag));
    at = end;
  }
  CHECK(open.empty());
  return tags;
}

double Number(const Tag& tag, const std::string& name, double missing = 0) {
  const auto found = tag.attributes.find(name);
  return found == tag.attributes.end() ? missing : std::strtod(found->second.c_str(), nullptr);
}

}  // namespace

size_t CountOf(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

void CheckSvg(std::string_view svg) {
  const std::vector<Tag> tags = ParseTags(svg);
  REQUIRE(!tags.empty());
  REQUIRE(tags.front().name == "svg");
  for (size_t at = svg.find('&'); at != std::string_view::npos; at = svg.find('&', at + 1)) {
    const std::string_view entity = svg.substr(at, 6);
    REQUIRE((entity.starts_with("&amp;") || entity.starts_with("&lt;") || entity.starts_with("&gt;") ||
             entity.starts_with("&quot;")));
  }
  CHECK(CountOf(svg, "nan") == 0);
  CHECK(CountOf(svg, "\"inf") + CountOf(svg, "-inf") == 0);
  const double width = Number(tags.front(), "width");
  const double height = Number(tags.front(), "height");
  CHECK(width > 0);
  CHECK(height > 0);
  int outside = 0;
  std::string first;
  for (const Tag& tag : tags) {
    const bool box = tag.name == "rect" || tag.name == "text";
    const double x1 = Number(tag, box ? "x" : "x1");
    const double y1 = Number(tag, box ? "y" : "y1");
    const double x2 = tag.name == "line" ? Number(tag, "x2") : x1 + Number(tag, "width");
    const double y2 = tag.name == "line" ? Number(tag, "y2") : y1 + Number(tag, "height");
    constexpr double kRounding = 0.51;  // the frame is a whole number of pixels
    if ((box || tag.name == "line") && !(x1 >= 0 && y1 >= 0 && x2 >= 0 && y2 >= 0 && x1 <= width + kRounding &&
                                         x2 <= width + kRounding && y1 <= height && y2 <= height)) {
      first = outside++ == 0 ? tag.name + " at " + std::to_string(x1) + ", " + std::to_string(y1) : first;
    }
  }
  INFO(first);
  CHECK(outside == 0);
}

}  // namespace geopipe::test
