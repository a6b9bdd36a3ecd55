#include "tests/architecture/layer_table.h"

#include <algorithm>
#include <iterator>
#include <sstream>

#include "tests/architecture/source_tree.h"

namespace geopipe::architecture {

namespace {

Layer ParseLayer(const std::string& line) {
  const auto folders = [](const std::string& text) {
    std::istringstream words(text);
    return std::vector<std::string>(std::istream_iterator<std::string>(words), {});
  };
  const size_t colon = line.find(':');
  const size_t bar = line.find('|');
  return {.folder = line.substr(0, colon),
          .may_include = folders(line.substr(colon + 1, bar - colon - 1)),
          .come_along = folders(line.substr(bar + 1))};
}

}  // namespace

const std::vector<Layer>& Layers() {
  static const std::vector<Layer> layers = [] {
    std::vector<Layer> rows;
    std::istringstream lines(ReadFile(BinaryDir() / "layers.txt"));
    for (std::string line; std::getline(lines, line);) {  // "runtime/data: runtime/base runtime/model | optimizer/base"
      rows.push_back(ParseLayer(line));
    }
    return rows;
  }();
  return layers;
}

const Layer* FindLayer(std::string_view folder) {
  const auto& layers = Layers();
  const auto it = std::find_if(layers.begin(), layers.end(), [&](const Layer& l) { return l.folder == folder; });
  return it == layers.end() ? nullptr : &*it;
}

const std::vector<HeaderUse>& Libraries() {
  static const std::vector<HeaderUse> libraries = {
      {"gRPC",
       {"grpcpp/", "grpc/", "grpc++/"},
       {"proto/", "runtime/base/grpc/", "agent/", "coordinator/", "runtime/worker/", "runtime/rehearsal/worker/",
        "runtime/main/"}},
      {"protobuf",
       {"google/protobuf/"},
       {"proto/", "agent/", "coordinator/", "runtime/worker/", "runtime/rehearsal/worker/", "runtime/main/"}},
      {"UCX", {"ucp/", "ucs/", "uct/"}, {"runtime/transport/ucx/", "runtime/transport/probe/ucx_"}},
      {"oneDNN", {"dnnl", "oneapi/"}, {"runtime/backend/cpu_"}},
      {"SQLite", {"sqlite3"}, {"coordinator/job_store"}},
      {"yaml-cpp", {"yaml-cpp/"}, {"runtime/base/config/"}},
      {"nlohmann/json",
       {"nlohmann/"},
       {"proto/wire/", "runtime/weights/", "runtime/checkpoint/", "runtime/base/", "runtime/tokenizer/",
        "coordinator/"}},
      {"PCRE2", {"pcre2"}, {"runtime/tokenizer/split_pattern"}},
      {"utf8proc", {"utf8proc"}, {"runtime/tokenizer/nfc"}},
      {"SentencePiece", {"sentencepiece"}, {"runtime/tokenizer/sentencepiece_model"}},
      {"spdlog", {"spdlog/"}, {"runtime/base/", "runtime/worker/", "agent/", "coordinator/"}},
      {"OpenSSL", {"openssl/"}, {"runtime/base/", "runtime/transport/"}},
      {"prometheus-cpp", {"prometheus/"}, {"runtime/base/metrics"}},
      {"Catch2", {"catch2/"}, {}},
      {"CUDA", {"cuda", "cublas", "nccl"}, {"runtime/gpu/cuda/", "runtime/gpu/kernels/"}},
  };
  return libraries;
}

const std::vector<HeaderUse>& SystemHeaders() {
  static const std::vector<HeaderUse> headers = {
      {"threads",
       {"thread", "mutex", "shared_mutex", "condition_variable", "future", "semaphore", "latch", "barrier",
        "stop_token", "pthread.h"},
       {"runtime/base/", "runtime/backend/cpu_matmul", "runtime/gpu/cuda/cublaslt_products", "runtime/gpu/gpu_device",
        "runtime/gpu/gpu_events", "runtime/tensor/", "runtime/transport/", "runtime/collective/",
        "runtime/checkpoint/exchange/", "runtime/executor/", "runtime/tokenizer/files/", "runtime/worker/", "agent/",
        "coordinator/"}},
      {"clocks",
       {"chrono", "ctime", "time.h", "sys/time.h"},
       {"runtime/base/", "runtime/tensor/completion", "runtime/collective/", "runtime/transport/", "runtime/executor/",
        "runtime/worker/", "agent/", "coordinator/"}},
      {"files",
       {"fstream", "filesystem", "fcntl.h", "sys/stat.h", "sys/mman.h", "sys/file.h", "dirent.h", "glob.h"},
       {"runtime/manifest/", "runtime/base/", "runtime/tensor/device", "runtime/data/", "runtime/weights/",
        "runtime/tokenizer/", "runtime/checkpoint/", "runtime/collective/", "runtime/transport/", "runtime/rehearsal/",
        "runtime/worker/", "agent/", "coordinator/"}},
      {"sockets",
       {"sys/socket.h", "sys/un.h", "netinet/", "arpa/", "netdb.h"},
       {"runtime/transport/", "runtime/base/", "agent/config"}},
      {"processes",
       {"spawn.h", "sys/wait.h", "sys/prctl.h", "csignal", "signal.h"},
       {"runtime/base/", "runtime/backend/cpu_amx", "runtime/rehearsal/", "runtime/main/", "runtime/tokenizer/main/",
        "agent/", "coordinator/"}},
      {"randomness that differs between machines or runs", {"random", "sys/random.h"}, {"runtime/base/ids"}},
  };
  return headers;
}

const std::vector<std::string_view>& PureHeaders() {
  static const std::vector<std::string_view> headers = {"absl/status/status.h",
                                                        "absl/status/statusor.h",
                                                        "absl/strings/numbers.h",
                                                        "absl/strings/str_split.h",
                                                        "absl/strings/string_view.h",
                                                        "fmt/format.h",
                                                        "fmt/ranges.h",
                                                        "algorithm",
                                                        "array",
                                                        "bit",
                                                        "cctype",
                                                        "charconv",
                                                        "climits",
                                                        "cmath",
                                                        "compare",
                                                        "concepts",
                                                        "cstddef",
                                                        "cstdint",
                                                        "cstdlib",
                                                        "cstring",
                                                        "deque",
                                                        "functional",
                                                        "initializer_list",
                                                        "iterator",
                                                        "limits",
                                                        "map",
                                                        "memory",
                                                        "numbers",
                                                        "numeric",
                                                        "optional",
                                                        "queue",
                                                        "set",
                                                        "span",
                                                        "string",
                                                        "string_view",
                                                        "system_error",
                                                        "tuple",
                                                        "type_traits",
                                                        "unordered_map",
                                                        "unordered_set",
                                                        "utility",
                                                        "variant",
                                                        "vector"};
  return headers;
}

const std::vector<std::string_view>& ImpureSymbols() {
  static const std::vector<std::string_view> symbols = {"grpc",
                                                        "google::protobuf",
                                                        "std::thread",
                                                        "std::chrono",
                                                        "std::random_device",
                                                        "basic_filebuf",
                                                        "basic_ifstream",
                                                        "basic_ofstream",
                                                        "basic_fstream",
                                                        "std::filesystem",
                                                        "std::condition_variable",
                                                        "pthread_create",
                                                        "pthread_mutex_lock",
                                                        "clock_gettime",
                                                        "gettimeofday",
                                                        "nanosleep",
                                                        "getrandom",
                                                        "getenv",
                                                        "fopen",
                                                        "socket"};
  return symbols;
}

}  // namespace geopipe::architecture
