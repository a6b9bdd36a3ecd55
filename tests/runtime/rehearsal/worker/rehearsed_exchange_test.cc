#include "runtime/rehearsal/worker/rehearsed_exchange.h"

#include <catch2/catch.hpp>

#include "runtime/rehearsal/link/link_pacer.h"
#include "runtime/worker/rank_preparation.h"
#include "tests/runtime/worker/fake_cluster.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

v1::LinkShape Shape(const std::string& from, const std::string& to, const std::string& pacer_path) {
  v1::LinkShape shape;
  shape.set_from_site(from);
  shape.set_to_site(to);
  shape.set_latency_ns(5000);
  shape.set_bandwidth_bytes_per_s(1e6);
  shape.set_pacer_path(pacer_path);
  return shape;
}

TEST_CASE("checkpoint files share a rehearsed link with all that goes over it") {
  const TempDir dir;
  const std::string path = dir.path() + "/pacer";
  RankPreparation preparation =
      DecodePreparation(1, PrepareCommandFor(SmallJob("/nowhere"), {}, 2, 1).prepare()).value();
  CHECK(RehearseExchange(preparation) == nullptr);
  preparation.shapes = {Shape("site0", "site1", "/nowhere")};  // the other direction
  CHECK(RehearseExchange(preparation) == nullptr);
  preparation.shapes.push_back(Shape("site1", "site0", path));
  const PaceOfSite pace_of = RehearseExchange(preparation);
  REQUIRE(pace_of != nullptr);
  CHECK(*pace_of("site1") == nullptr);  // inside the site
  const auto pace = pace_of("site0");
  REQUIRE(pace.ok());
  CHECK((*pace)->latency_ns() == 5000);
  const auto messages = LinkPacer::Open(path);
  REQUIRE(messages.ok());
  const int64_t now_ns = Clock::Real().NowNs();
  CHECK((*pace)->Depart(now_ns, 1000) == now_ns + 1'000'000);
  CHECK((*messages)->Occupy(now_ns, 7) == now_ns + 1'000'007);
  CHECK((*pace)->Depart(now_ns, 1) == now_ns + 1'001'007);
  preparation.shapes = {Shape("site1", "site0", dir.path() + "/none/pacer")};
  CHECK(absl::IsUnavailable(RehearseExchange(preparation)("site0").status()));
}

}  // namespace
}  // namespace geopipe
