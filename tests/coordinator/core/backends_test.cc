// The backend of a job: which nodes can run it, and what it makes of their devices.
#include <algorithm>
#include <catch2/catch.hpp>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/cluster/allocation.h"
#include "tests/coordinator/core/federation.h"

namespace geopipe {
namespace {

TEST_CASE("a job whose backend a site cannot run is refused with site, node and reason") {
  Federation f;
  f.Register("north");
  f.no_cuda = "no library; install it";
  f.Register("east");
  RunOptions cuda;
  cuda.backend = BackendKind::kCuda;
  const auto apply = [&](const JobSpec& job, const RunOptions& run) {
    f.Step(ApplyJob{f.next_call++, job, run});
    return f.Last<ReplyToCall>().at(0).reply.status();
  };
  const std::string refusal = "site east cannot run backend cuda: node east/n0: no library; install it";
  CHECK(apply(Federation::TinyJob({"north", "east"}), cuda) == absl::FailedPreconditionError(refusal));
  CHECK(apply(Federation::TinyJob({"north"}), cuda).ok());
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);

  // One of several nodes is enough, and one that registers later keeps the job waiting.
  JobSpec second = Federation::TinyJob({"west"});
  second.name = "second";
  CHECK(apply(second, cuda).ok());
  f.Register("west");
  CHECK(f.CauseOf("second") == "waiting: site west cannot run backend cuda: node west/n0: no library; install it");
  f.no_cuda.clear();
  f.Register("west/n1");
  CHECK(f.StateOf("second") == v1::JOB_STATE_PROFILING);
  CHECK(std::ranges::any_of(f.Last<SendToAgent>(), [&](const SendToAgent& send) {
    return send.session == f.sessions["west/n1"] && send.message.has_start_workers();
  }));
  CHECK(f.broken == "");
}

TEST_CASE("only nodes whose workers can run the backend give devices") {
  const auto offer = [](const std::string& site, const std::string& name, const std::string& refusal) {
    v1::NodeSpec node;
    node.set_site(site);
    node.set_node(name);
    node.set_devices(1);
    if (!refusal.empty()) {
      v1::RefusedBackend& refused = *node.add_refused_backends();
      refused.set_backend(v1::BACKEND_KIND_CUDA);
      refused.set_reason(refusal);
    }
    return NodeOffer{{site, name}, node, {0}, {}};
  };
  const std::vector<NodeOffer> offers{offer("east", "a", "no driver"), offer("east", "b", ""),
                                      offer("west", "a", "no library"), offer("west", "b", "no driver")};
  RunOptions cuda;
  cuda.backend = BackendKind::kCuda;
  const auto nodes = [&](const std::vector<std::string>& sites, const RunOptions& run) {
    return DecideAllocation(Federation::TinyJob(sites), run, offers).allocation->nodes().size();
  };
  CHECK(nodes({}, {}) == 4);
  CHECK(nodes({}, cuda) == 1);
  CHECK(nodes({"east"}, cuda) == 1);
  CHECK(CheckBackend(Federation::TinyJob({"east"}), cuda, offers).ok());
  CHECK(CheckBackend(Federation::TinyJob({}), cuda, offers).ok());
  CHECK(CheckBackend(Federation::TinyJob({"north"}), cuda, offers).ok());  // which has not registered
  CHECK(CheckBackend(Federation::TinyJob({"west"}), {}, offers).ok());
  const std::string refusal = "site west cannot run backend cuda: node west/a: no library";
  CHECK(CheckBackend(Federation::TinyJob({"east", "west"}), cuda, offers).message() == refusal);
  CHECK(DecideAllocation(Federation::TinyJob({"east", "west"}), cuda, offers).reason == "waiting: " + refusal);
  CHECK(CheckBackend(Federation::TinyJob({}), cuda, std::span(offers).last(2)).message() ==
        "no site can run backend cuda: node west/a: no library");
}

}  // namespace
}  // namespace geopipe
