// Layers, on the tree as it is and on planted faults.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/architecture/layer_rules.h"
#include "tests/architecture/layer_table.h"
#include "tests/architecture/source_tree.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"

namespace geopipe::architecture {
namespace {

namespace fs = std::filesystem;

std::vector<SourceFile> ProductSources() {
  std::vector<SourceFile> files = ReadTree({".h", ".cc"});
  std::erase_if(files, [](const SourceFile& f) { return f.path.starts_with("tests/"); });
  return files;
}

TEST_CASE("what the compiler opened for every object obeys the layers") {
  if (!BuildIsNinja()) {
    Skip("the compiler's dependency lists are read from a Ninja build, and this one is not");
    return;
  }
  const std::vector<ObjectDeps> objects = ReadObjectDeps();
  std::set<std::string> compiled;
  Findings findings;
  for (const ObjectDeps& object : objects) {
    compiled.insert(object.source);
    Append(CheckObject(object), findings);
  }
  CAPTURE(objects.size());
  CHECK(ToString(findings) == "");
  CHECK(compiled.contains("optimizer/base/check.cc"));  // the lists were read
}

TEST_CASE("direct includes of every source obey the layers") {
  Findings findings;
  for (const SourceFile& file : ReadTree({".h", ".cc"})) {
    Append(CheckIncludes(file), findings);
  }
  CHECK(ToString(findings) == "");
}

TEST_CASE("every grant in the table of layers is used") {
  CHECK(ToString(CheckGrants(Layers(), ProductSources())) == "");
}

TEST_CASE("what ThreadSanitizer does not look at has no threads") {
  const auto threads = std::ranges::find(SystemHeaders(), "threads", &HeaderUse::name);
  REQUIRE(threads != SystemHeaders().end());
  std::istringstream folders(ReadFile(BinaryDir() / "without_threads.txt"));
  std::set<std::string> found;
  for (std::string folder; std::getline(folders, folder);) {
    for (const SourceFile& file : ProductSources()) {
      if (!file.path.starts_with(folder + '/')) {
        continue;
      }
      found.insert(folder);
      for (const Include& include : DirectIncludes(file.content)) {
        CAPTURE(file.path, include.name);
        CHECK(std::ranges::find(threads->headers, include.name) == threads->headers.end());
      }
    }
  }
  CHECK(found.contains("optimizer"));  // the list was read
}

TEST_CASE("every compiled folder is in the table of layers, and the table has no others") {
  std::set<std::string> folders;
  for (const SourceFile& file : ProductSources()) {
    folders.insert(fs::path(file.path).parent_path().string());
  }
  for (const std::string& folder : folders) {
    CAPTURE(folder);
    CHECK(FindLayer(folder) != nullptr);
  }
  for (const Layer& layer : Layers()) {
    CAPTURE(layer.folder);
    CHECK((layer.folder == "proto" || folders.contains(layer.folder)));
  }
}

TEST_CASE("planted: an object that depends on what its layer forbids") {
  struct Case {
    std::string source;
    std::string header;
    std::string message;  // empty: allowed
  };
  const auto [source, header, message] = GENERATE(table<std::string, std::string, std::string>({
      {"optimizer/schedule/gpipe.cc", "optimizer/base/check.h", ""},
      {"optimizer/schedule/gpipe.cc", "optimizer/search/genome.h", "optimizer/schedule may not depend on"},
      {"optimizer/model/x.cc", "/usr/include/grpcpp/grpcpp.h", "may not use gRPC"},
      {"optimizer/model/x.cc", "build/proto/generated/geopipe/v1/run.pb.h", "optimizer/model may not depend on"},
      {"agent/agent.cc", "build/proto/generated/geopipe/v1/run.pb.h", ""},
      {"agent/agent.cc", "optimizer/search/genome.h", "agent may not depend on"},
      {"agent/agent.cc", "runtime/model/stage_engine.h", "agent may not depend on"},
      {"coordinator/coordinator.cc", "runtime/executor/executor.h", "coordinator may not depend on"},
      {"coordinator/coordinator.cc", "/usr/include/sqlite3.h", "may not use SQLite"},
      {"coordinator/job_store.cc", "/usr/include/sqlite3.h", ""},
      {"runtime/transport/stream/reliable_stream.cc", "/usr/include/ucp/api/ucp.h", "may not use UCX"},
      {"runtime/transport/ucx/ucx_transport.cc", "/usr/include/ucp/api/ucp.h", ""},
      {"runtime/executor/executor.cc", "/usr/include/x86_64-linux-gnu/dnnl.h", "may not use oneDNN"},
      {"runtime/executor/executor.cc", "/usr/include/yaml-cpp/yaml.h", "may not use yaml-cpp"},
      {"runtime/unheard_of/x.cc", "optimizer/base/check.h", "not in the table of layers"},
      {"agent/agent.cc", "tests/support/seed.h", "in no layer"},
  }));
  CAPTURE(source, header);
  CheckFound(CheckObject({source, {header}}), message);
}

TEST_CASE("planted: a direct include that its layer forbids") {
  const auto [path, content, message] = GENERATE(table<std::string, std::string, std::string>({
      {"optimizer/schedule/x.cc", "#include \"optimizer/base/check.h\"\n#include <vector>\n", ""},
      {"optimizer/schedule/x.cc", "\n#include \"optimizer/search/genome.h\"\n",
       "x.cc:2: optimizer/schedule may not include"},
      {"optimizer/plan/x.cc", "#include \"optimizer/simulator/engine.h\"\n",  // which comes along
       "x.cc:1: optimizer/plan may not include"},
      {"optimizer/schedule/x.cc", "#include \"../base/check.h\"\n", "use the path from the source root"},
      {"tests/optimizer/x.cc", "#include \"../support/seed.h\"\n", "use the path from the source root"},
      {"optimizer/search/x.cc", "#include <chrono>\n", "optimizer/ is pure: <chrono>"},
      {"optimizer/search/x.cc", "#  include <random>\n", "optimizer/ is pure: <random>"},
      {"optimizer/search/x.cc", "#include <thread>\n", "optimizer/ is pure: <thread>"},
      {"optimizer/search/x.cc", "#include <fstream>\n", "optimizer/ is pure: <fstream>"},
      {"optimizer/search/x.cc", "#include <cstdio>\n", "optimizer/ is pure: <cstdio>"},
      {"optimizer/base/check.cc", "#include <cstdio>\n", ""},
      {"proto/wire/job_wire.cc", "#include <thread>\n", "(threads) may not be used"},
      {"runtime/model/adamw.cc", "#include <mutex>\n", "(threads) may not be used"},
      {"runtime/executor/executor.cc", "#include <mutex>\n", ""},
      {"runtime/executor/executor.cc", "#include <fstream>\n", "(files) may not be used"},
      {"agent/agent.cc", "#include <random>\n", "(randomness"},
      {"coordinator/coordinator.cc", "#include <sqlite3.h>\n", "may not use SQLite"},
      {"coordinator/job_store.cc", "#include <sqlite3.h>\n", ""},
  }));
  CAPTURE(path, content);
  CheckFound(CheckIncludes({path, content}), message);
}

TEST_CASE("planted: grants that nothing uses") {
  const std::vector<SourceFile> sources = {
      {"a/a.h", ""},
      {"b/b.h", "#include \"a/a.h\"\n#include \"geopipe/v1/run.pb.h\"\n"},
      {"c/c.cc", "#include \"b/b.h\"\n#include <vector>\n"},
  };
  const auto [may_include, come_along, message] =
      GENERATE(table<std::vector<std::string>, std::vector<std::string>, std::string>({
          {{"b"}, {"a", "proto"}, ""},
          {{"b"}, {}, ""},
          {{"b", "d"}, {}, "layers: c has no use for d"},
          {{"b"}, {"d"}, "layers: c has no use for d"},
          {{"b", "a"}, {}, "layers: c includes no header of, so name it after THROUGH: a"},
          {{"b", "proto"}, {}, "layers: c includes no header of, so name it after THROUGH: proto"},
          {{}, {"b"}, "layers: c includes headers of, so name it before THROUGH: b"},
      }));
  CAPTURE(may_include, come_along);
  CheckFound(CheckGrants({{.folder = "c", .may_include = may_include, .come_along = come_along}}, sources), message);
}

TEST_CASE("ninja's dependency lists are parsed") {
  const TempDir scratch;
  const std::string source = scratch.Write("x.cc", "");
  const fs::path root = fs::path(source).parent_path();
  const std::string text = "a/x.cc.o: #deps 3, deps mtime 1 (VALID)\n    " + source +
                           "\n    gen/y.h\n    /usr/include/z.h\n\n"
                           "a/old.cc.o: #deps 1, deps mtime 1 (STALE)\n    old.cc\n\n"
                           "a/stamp: #deps 1, deps mtime 1 (VALID)\n    q.cc\n";
  const std::vector<ObjectDeps> objects = ParseNinjaDeps(text, root, root / "build");
  REQUIRE(objects.size() == 1);
  CHECK(objects[0].source == "x.cc");
  CHECK(objects[0].headers == std::vector<std::string>{"build/gen/y.h", "/usr/include/z.h"});

  const std::string joined =
      "a/Unity/unity_0_cxx.cxx.o: #deps 5, deps mtime 1 (VALID)\n    a/Unity/unity_0_cxx.cxx\n    " + source +
      "\n    /usr/include/z.h\n    " + scratch.Write("y.cc", "") + "\n    gen/y.h\n";
  const std::vector<ObjectDeps> sources = ParseNinjaDeps(joined, root, root / "build");
  REQUIRE(sources.size() == 3);
  CHECK(sources[1].source == "x.cc");
  CHECK(sources[1].headers == std::vector<std::string>{"/usr/include/z.h"});
  CHECK(sources[2].source == "y.cc");
  CHECK(sources[2].headers == std::vector<std::string>{"build/gen/y.h"});
}

}  // namespace
}  // namespace geopipe::architecture
