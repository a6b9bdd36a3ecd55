#include "runtime/rehearsal/worker/rehearsed_exchange.h"

#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/rehearsal/link/link_pacer.h"
#include "runtime/worker/rank_preparation.h"

namespace geopipe {
namespace {

class LinkPace final : public SendPace {
 public:
  LinkPace(std::unique_ptr<LinkPacer> pacer, const v1::LinkShape& shape)
      : pacer_(std::move(pacer)),
        latency_ns_(shape.latency_ns()),
        bandwidth_bytes_per_s_(shape.bandwidth_bytes_per_s()) {}

  int64_t latency_ns() const override { return latency_ns_; }
  int64_t Depart(int64_t now_ns, int64_t bytes) override {
    const double duration_ns =
        bandwidth_bytes_per_s_ > 0 ? static_cast<double>(bytes) * 1e9 / bandwidth_bytes_per_s_ : 0;
    return pacer_->Occupy(now_ns, std::llround(duration_ns));
  }

 private:
  const std::unique_ptr<LinkPacer> pacer_;
  const int64_t latency_ns_;
  const double bandwidth_bytes_per_s_;
};

}  // namespace

PaceOfSite RehearseExchange(const RankPreparation& preparation) {
  std::vector<v1::LinkShape> shapes;  // of links from here to other sites
  const std::string& own = preparation.plan.SiteOfRank(preparation.rank);
  for (const v1::LinkShape& shape : preparation.shapes) {
    if (shape.from_site() == own && shape.to_site() != own) {
      shapes.push_back(shape);
    }
  }
  if (shapes.empty()) {
    return nullptr;
  }
  return [shapes = std::move(shapes)](std::string_view site) -> absl::StatusOr<std::unique_ptr<SendPace>> {
    for (const v1::LinkShape& shape : shapes) {
      if (shape.to_site() == site) {
        GP_ASSIGN_OR_RETURN(std::unique_ptr<LinkPacer> pacer, LinkPacer::Open(shape.pacer_path()));
        return std::make_unique<LinkPace>(std::move(pacer), shape);
      }
    }
    return nullptr;
  };
}

}  // namespace geopipe
