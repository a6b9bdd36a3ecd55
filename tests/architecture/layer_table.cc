#include "tests/architecture/layer_table.h"

#include <algorithm>

namespace geopipe::architecture {

const std::vector<Layer>& Layers() {
  static const std::vector<Layer> layers = {
      {"optimizer/base", {}},
      {"optimizer/schedule", {"optimizer/base"}},
      {"optimizer/model", {"optimizer/base", "optimizer/schedule"}},
      {"optimizer/simulator", {"optimizer/base", "optimizer/schedule", "optimizer/model"}},
      {"optimizer/search", {"optimizer/base", "optimizer/schedule", "optimizer/model", "optimizer/simulator"}},
      {"optimizer/scheduler",
       {"optimizer/base", "optimizer/schedule", "optimizer/model", "optimizer/simulator", "optimizer/search"}},
      {"optimizer/plan",
       {"optimizer/base", "optimizer/schedule", "optimizer/model", "optimizer/simulator", "optimizer/search",
        "optimizer/scheduler"}},

      {"proto", {}},
      {"proto/wire", {"proto", "optimizer/base", "optimizer/schedule", "optimizer/model", "optimizer/plan"}},

      {"runtime/base", {"optimizer/base"}},
      {"runtime/file", {"optimizer/base"}},
      {"runtime/tensor", {"optimizer/base"}},
      {"runtime/backend",
       {"optimizer/base", "optimizer/schedule", "optimizer/model", "runtime/base", "runtime/tensor"}},
      {"runtime/weights",
       {"optimizer/base", "optimizer/schedule", "optimizer/model", "runtime/file", "runtime/tensor"}},
      {"runtime/data", {"optimizer/base", "optimizer/schedule", "optimizer/model", "runtime/file", "runtime/model"}},
      {"runtime/model",
       {"optimizer/base", "optimizer/schedule", "optimizer/model", "runtime/base", "runtime/tensor", "runtime/backend",
        "runtime/weights", "runtime/file"}},
      {"runtime/transport/stream", {"optimizer/base", "runtime/base", "runtime/tensor"}},
      {"runtime/rehearsal",
       {"optimizer/base", "optimizer/schedule", "optimizer/model", "runtime/base", "runtime/tensor", "runtime/model",
        "runtime/transport/stream"}},
      {"runtime/transport/ucx",
       {"optimizer/base", "runtime/base", "runtime/tensor", "runtime/rehearsal", "runtime/transport/stream"}},
      {"runtime/transport/probe",
       {"optimizer/base", "runtime/base", "runtime/tensor", "runtime/rehearsal", "runtime/transport/stream",
        "runtime/transport/ucx"}},
      {"runtime/executor",
       {"optimizer/base", "optimizer/schedule", "optimizer/model", "runtime/base", "runtime/tensor", "runtime/backend",
        "runtime/model", "runtime/transport/stream"}},
      {"runtime/worker",
       {"optimizer/base", "optimizer/schedule", "optimizer/model", "proto", "proto/wire", "runtime/base",
        "runtime/file", "runtime/tensor", "runtime/backend", "runtime/data", "runtime/weights", "runtime/model",
        "runtime/rehearsal", "runtime/transport/stream", "runtime/transport/ucx", "runtime/executor"}},

      {"agent",
       {"optimizer/base", "optimizer/schedule", "optimizer/model", "proto", "proto/wire", "runtime/base",
        "runtime/rehearsal", "runtime/transport/stream", "runtime/transport/probe"}},

      {"coordinator/spec",
       {"optimizer/base", "optimizer/schedule", "optimizer/model", "optimizer/plan", "runtime/base"}},
      {"coordinator/core",
       {"optimizer/base", "optimizer/schedule", "optimizer/model", "optimizer/simulator", "optimizer/search",
        "optimizer/scheduler", "optimizer/plan", "proto", "proto/wire", "runtime/base"}},
      {"coordinator",
       {"optimizer/base", "optimizer/schedule", "optimizer/model", "optimizer/simulator", "optimizer/search",
        "optimizer/plan", "proto", "proto/wire", "runtime/base", "coordinator/spec", "coordinator/core"}},
      {"coordinator/cli",
       {"optimizer/base", "optimizer/schedule", "optimizer/model", "optimizer/simulator", "optimizer/search",
        "optimizer/scheduler", "optimizer/plan", "proto", "proto/wire", "runtime/base", "runtime/rehearsal",
        "runtime/file", "runtime/weights", "coordinator/spec"}},
  };
  return layers;
}

const Layer* FindLayer(std::string_view folder) {
  const auto& layers = Layers();
  const auto it = std::find_if(layers.begin(), layers.end(), [&](const Layer& l) { return l.folder == folder; });
  return it == layers.end() ? nullptr : &*it;
}

const std::vector<HeaderUse>& Libraries() {
  static const std::vector<HeaderUse> libraries = {
      {"gRPC", {"grpcpp/", "grpc/", "grpc++/"}, {"proto/", "agent/", "coordinator/", "runtime/worker/"}},
      {"protobuf", {"google/protobuf/"}, {"proto/", "agent/", "coordinator/", "runtime/worker/"}},
      {"UCX", {"ucp/", "ucs/", "uct/"}, {"runtime/transport/ucx/", "runtime/transport/probe/ucx_"}},
      {"oneDNN", {"dnnl", "oneapi/"}, {"runtime/backend/cpu_"}},
      {"SQLite", {"sqlite3"}, {"coordinator/job_store"}},
      {"yaml-cpp", {"yaml-cpp/"}, {"runtime/base/", "agent/", "coordinator/"}},
      {"nlohmann/json", {"nlohmann/"}, {"proto/wire/", "runtime/weights/", "runtime/base/", "coordinator/"}},
      {"spdlog", {"spdlog/"}, {"runtime/base/", "runtime/worker/", "agent/", "coordinator/"}},
      {"OpenSSL", {"openssl/"}, {"runtime/base/", "runtime/transport/"}},
      {"prometheus-cpp", {"prometheus/"}, {"runtime/base/metrics"}},
      {"Catch2", {"catch2/"}, {}},
      {"CUDA", {"cuda", "cublas", "nccl"}, {}},
  };
  return libraries;
}

const std::vector<HeaderUse>& SystemHeaders() {
  static const std::vector<HeaderUse> headers = {
      {"threads",
       {"thread", "mutex", "shared_mutex", "condition_variable", "future", "semaphore", "latch", "barrier",
        "stop_token", "pthread.h"},
       {"runtime/base/", "runtime/tensor/allocator", "runtime/tensor/completion", "runtime/transport/",
        "runtime/executor/", "runtime/worker/", "agent/", "coordinator/"}},
      {"clocks",
       {"chrono", "ctime", "time.h", "sys/time.h"},
       {"runtime/base/", "runtime/transport/", "runtime/executor/", "runtime/worker/", "agent/", "coordinator/"}},
      {"files",
       {"fstream", "filesystem", "fcntl.h", "sys/stat.h", "sys/mman.h", "sys/file.h", "dirent.h", "glob.h"},
       {"runtime/base/", "runtime/file/", "runtime/data/", "runtime/weights/", "runtime/transport/",
        "runtime/rehearsal/", "runtime/worker/", "agent/", "coordinator/"}},
      {"sockets",
       {"sys/socket.h", "sys/un.h", "netinet/", "arpa/", "netdb.h"},
       {"runtime/transport/", "runtime/base/", "agent/config"}},
      {"processes",
       {"spawn.h", "sys/wait.h", "sys/prctl.h", "csignal", "signal.h"},
       {"runtime/base/", "runtime/rehearsal/", "runtime/worker/", "agent/", "coordinator/"}},
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
