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

TEST_CASE("what other programs take for a path is none") {
  for (const char* path : {"/x/y", "x", "", "a:b", "a:/b", "://x", "x$", "$1", "/$ x", "/data/a$", "C:/x"}) {
    CAPTURE(path);
    CHECK(CheckIsPath(path).ok());
  }
  for (const char* path : {"s3://bucket/x", "https://example.org", "file:///tmp/x", "hdfs+v2://x"}) {
    CHECK(CheckIsPath(path).message() ==
          "'" + std::string(path) +
              "' is an address, and only files are read and written; mount or copy what is there, and write its path");
  }
  for (const char* path : {"$HOME/x", "/scratch/$USER", "${DATA}/x", "x/$_y"}) {
    CHECK(CheckIsPath(path).message() ==
          "'" + std::string(path) + "' has a variable, and variables are not expanded in a file; write the whole path");
  }
}

TEST_CASE("a daemon takes whole paths alone") {
  CHECK(RefuseHome("/x/~").ok());
  CHECK(RefuseHome("~/x").message() == "'~/x' begins with ~, which means nothing to a daemon; write the whole path");
  CHECK_FALSE(RefuseHome("~x").ok());
}

}  // namespace
}  // namespace geopipe
