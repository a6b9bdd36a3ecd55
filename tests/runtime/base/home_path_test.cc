#include "runtime/base/home_path.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

namespace geopipe {
namespace {

// Sets $HOME for the length of a test.
class Home {
 public:
  explicit Home(const char* value) : old_(std::getenv("HOME") == nullptr ? "" : std::getenv("HOME")) {
    value == nullptr ? unsetenv("HOME") : setenv("HOME", value, 1);
  }
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;
  ~Home() { setenv("HOME", old_.c_str(), 1); }

 private:
  std::string old_;
};

TEST_CASE("a leading ~ is the home of whoever types") {
  const Home home("/home/ada");
  const auto [path, expanded] = GENERATE(table<std::string, std::string>({
      {"~", "/home/ada"},
      {"~/", "/home/ada/"},
      {"~/x/y", "/home/ada/x/y"},
      {"~/~", "/home/ada/~"},
      {"x/~", "x/~"},
      {"./~", "./~"},
      {"/~/x", "/~/x"},
      {"", ""},
  }));
  CHECK(ExpandHome(path).value() == expanded);
}

TEST_CASE("another's home is not looked up, and none is made up") {
  {
    const Home home("/home/ada");
    CHECK(
        ExpandHome("~root/x").status().message() ==
        "'~root/x' begins with ~ and a name, which is not looked up; write the whole path, or ./~root/x for a file of "
        "that name");
  }
  for (const char* value : {static_cast<const char*>(nullptr), "", "here"}) {
    const Home home(value);
    CHECK(ExpandHome("~/x").status().message() ==
          "'~/x' begins with ~, and HOME names no folder; write the whole path");
  }
}

TEST_CASE("a daemon takes whole paths alone") {
  CHECK(RefuseHome("/x/~").ok());
  CHECK(RefuseHome("~/x").message() == "'~/x' begins with ~, which means nothing to a daemon; write the whole path");
  CHECK_FALSE(RefuseHome("~x").ok());
}

}  // namespace
}  // namespace geopipe
