#include "optimizer/plan/bound/pipeline_bound.h"

#include <algorithm>
#include <limits>

#include "optimizer/base/check.h"
#include "optimizer/plan/bound/rank_mode.h"

namespace geopipe {
namespace {

using bound::CeilDivide;
using bound::kNever;
using bound::MakeRankMode;
using bound::Part;
using bound::Product;
using bound::RankMode;
using bound::RankTimes;
using bound::Scaled;

constexpr int64_t kUnplaced = -1;
// Looped: number of ranges of layers in first stages that are looked at.
constexpr int64_t kRanges = 8;

// Largest n in [0, most] with holds(n), which is monotone; -1: none.
template <typename Holds>
int64_t Most(int64_t most, const Holds& holds) {
  int64_t low = -1;
  int64_t high = most + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (holds(middle) ? low : high) = middle;
  }
  return low;
}

// The devices of a site.
struct Site {
  int64_t max_ranks = 0;
  std::vector<RankMode> modes;  // of recomputation, of which each rank may have any

  int64_t LayerNs() const {  // at least
    int64_t least_ns = kNever;
    for (const RankMode& mode : modes) {
      least_ns = std::min(least_ns, mode.layer.all_ns());
    }
    return least_ns;
  }
};

class PipelineBound {
 public:
  PipelineBound(const BoundChain& chain, std::span<const StageMemoryModel> memory, int64_t layers,
                int64_t micro_batches, const BoundSchedules& schedules)
      : chain_(chain), schedules_(schedules), layers_(layers), micro_batches_(micro_batches) {
    int64_t embedding_ns = kNever;
    embedding_back_ns_ = kNever;
    for (size_t at = 0; at < chain.sites.size(); ++at) {
      const bool is_alike = at > 0 && chain.sites[at] == chain.sites[at - 1];
      sites_.push_back(is_alike ? sites_.back() : SiteOf(chain.sites[at], memory));
      alike_from_ = is_alike ? alike_from_ : at;
      for (const RankMode& mode : sites_.back().modes) {
        forward_ns_ = std::min(forward_ns_, mode.layer.forward_ns);
        back_ns_ = std::min(back_ns_, mode.layer.back_ns);
        head_ns_ = std::min(head_ns_, mode.head.forward_ns + mode.head.back_ns);
        embedding_ns = std::min(embedding_ns, mode.embedding.forward_ns);
        embedding_back_ns_ = std::min(embedding_back_ns_, mode.embedding.back_ns);
      }
    }
    for (size_t at = 0; at < chain.crossings.size(); ++at) {
      crossings_ns_ += CrossingNs(at);
      serialization_ns_ = std::max(serialization_ns_, chain.crossings[at].serialization_ns);
    }
    for (const BoundCrossing& crossing : chain.elsewhere) {
      elsewhere_ns_ += crossing.latency_ns + crossing.serialization_ns;
      serialization_ns_ = std::max(serialization_ns_, crossing.serialization_ns);
    }
    way_ns_ = embedding_ns + embedding_back_ns_ + layers * (forward_ns_ + back_ns_) + head_ns_ +
              2 * (crossings_ns_ + elsewhere_ns_);
  }

  int64_t Run(int64_t limit_ns) const {
    if (!May(limit_ns - 1)) {
      return limit_ns;
    }
    int64_t low = 0;  // not in this time
    int64_t high = limit_ns - 1;
    while (high - low > std::max<int64_t>(1, high >> 14)) {
      const int64_t middle = low + (high - low) / 2;
      (May(middle) ? high : low) = middle;
    }
    return low + 1;
  }

 private:
  Site SiteOf(const BoundSite& costs, std::span<const StageMemoryModel> memory) const {
    Site site{.max_ranks = std::min(costs.max_ranks, layers_), .modes = {}};
    for (size_t mode = 0; mode < memory.size(); ++mode) {
      const auto& [embedding, block, head] = costs.modes[mode];
      site.modes.push_back(
          MakeRankMode(embedding, block, head, memory[mode], costs.memory_bytes, layers_, schedules_.splits_backward));
    }
    return site;
  }

  int64_t CrossingNs(size_t at) const {
    return chain_.crossings[at].latency_ns + chain_.crossings[at].serialization_ns;
  }
  int64_t TripNs(int64_t layers) const { return layers * (forward_ns_ + back_ns_) + head_ns_; }
  // True when all rounds but one fit, which is part of the way of a micro-batch from end to end.
  static bool RoundsFit(int64_t rounds, int64_t trip_ns, int64_t left_ns) {
    return rounds < kNever && static_cast<__int128>(rounds - 1) * trip_ns <= left_ns;
  }

  bool May(int64_t end_ns) const {
    const bool goes_round = chain_.way_back_ns >= 0;
    return (schedules_.linear && MayLinear(end_ns)) ||
           (schedules_.rounds > 0 && goes_round && MayRounds(Looped(schedules_.rounds), end_ns)) ||
           (schedules_.folded && MayRounds(Folded(), end_ns) && MayFolded(end_ns)) ||
           (schedules_.looped && goes_round && MayRounds(Looped(2), end_ns) && MayLooped(end_ns));
  }

  // --- One stage on each rank -----------------------------------------------------------------------------------

  // Tries the first rank with all layers that it can have and the update of one, then with fewer and fewer.
  bool MayLinear(int64_t end_ns) const {
    const std::vector<int64_t>& update_ns = chain_.sites.front().update_ns;
    if (!Places(end_ns - update_ns.front(), layers_)) {
      return false;
    }
    for (int64_t first = layers_; first >= 1; --first) {
      if (Places(end_ns - update_ns[first - 1], first)) {
        return true;
      }
    }
    return false;
  }

  // The part of the pipeline before a rank, and the time that there is.
  struct Upstream {
    size_t site = 0;
    int64_t layers = 0;
    int64_t crossed_ns = 0;  // one way
    int64_t end_ns = 0;
  };

  bool Places(int64_t end_ns, int64_t max_first) const {
    if (end_ns < way_ns_ + (micro_batches_ - 1) * serialization_ns_) {
      return false;
    }
    Upstream upstream{.end_ns = end_ns};
    for (upstream.site = 0; upstream.site < sites_.size(); ++upstream.site) {
      upstream.crossed_ns += upstream.site == 0 ? 0 : CrossingNs(upstream.site - 1);
      for (int64_t rank = 0; rank < sites_[upstream.site].max_ranks; ++rank) {
        const int64_t left = layers_ - upstream.layers;
        const int64_t most = upstream.layers == 0 ? std::min(left, max_first) : left;
        if (most == left && MayHold(upstream, left, true)) {
          return true;
        }
        upstream.layers +=
            Most(std::min(most, left - 1), [&](int64_t layers) { return MayHold(upstream, layers, false); });
        if (upstream.layers <= 0) {
          return false;
        }
      }
    }
    return false;
  }

  bool MayHold(const Upstream& upstream, int64_t layers, bool has_head) const {
    return std::ranges::any_of(sites_[upstream.site].modes,
                               [&](const RankMode& mode) { return MayHold(mode, upstream, layers, has_head); });
  }

  bool MayHold(const RankMode& site, const Upstream& upstream, int64_t layers, bool has_head) const {
    const int64_t free = site.free_bytes[layers];
    const int64_t trip_ns = TripNs(layers_ - upstream.layers) + 2 * (crossings_ns_ - upstream.crossed_ns);
    if (layers == 0 || !RoundsFit(site.Rounds(free, layers, micro_batches_), trip_ns, upstream.end_ns - way_ns_)) {
      return layers == 0;
    }
    const Part head = has_head ? site.head : Part{};
    const Part embedding = upstream.layers == 0 ? site.embedding : Part{};
    const int64_t held = site.activation_bytes == 0 ? micro_batches_ * layers
                                                    : std::min(micro_batches_ * layers, free / site.activation_bytes);
    const int64_t in_flight = CeilDivide(held, layers);
    const int64_t ends_ns = in_flight * (head.all_ns() + embedding.all_ns());
    RankTimes times;
    times.work_ns = Product(micro_batches_, layers * site.layer.all_ns() + head.all_ns() + embedding.all_ns());
    times.in_ns = upstream.layers * forward_ns_ + upstream.crossed_ns;
    times.out_ns = upstream.layers * back_ns_ + upstream.crossed_ns;
    times.late_ns = site.LateNs(free, layers) + Product(micro_batches_, head.late_ns + embedding.late_ns);
    times.first_back_ns =
        way_ns_ - embedding_back_ns_ - times.out_ns - layers * back_ns_ - head.back_ns - elsewhere_ns_;
    times.fill_ns = held * site.layer.forward_ns + ends_ns;
    times.tail_ns = trip_ns + times.out_ns;
    times.drain_ns = layers * site.layer.forward_ns + head.forward_ns + embedding.forward_ns + ends_ns +
                     std::max(held * (site.layer.back_ns + site.layer.late_ns), site.LateNs(free, layers)) +
                     Product(micro_batches_, head.late_ns + embedding.late_ns);
    times.apart = in_flight < micro_batches_;
    return times.IterationNs() <= upstream.end_ns;
  }

  // --- Two stages on each rank ----------------------------------------------------------------------------------

  // A split up to a rank, and the times that follow for the layers it may have.
  struct Around {
    size_t site = 0;
    bool is_first = false;  // rank of all
    int64_t end_ns = 0;
    int64_t way_ns = 0;               // of one micro-batch, from end to end
    int64_t max_here = 0;             // layers of the rank
    int64_t first_layers = 0;         // u
    int64_t second_layers = 0;        // v
    int64_t second_rest = -1;         // looped: layers from the rank's second stage on, at least
    int64_t crossed_ns = 0;           // to the rank from the first site, one way
    int64_t first_crossings_ns = 0;   // from its first stage to the end, one way
    int64_t second_crossings_ns = 0;  // from its second

    int64_t LayersAfter(int64_t second) const {
      return second_rest >= 0 ? std::max<int64_t>(0, second_rest - second) : second_layers;
    }
  };

  // True when a rank may have `first` and `second` layers. `has_head`: besides the folded pipeline's first rank.
  bool MayHold(const Around& around, int64_t first, int64_t second, bool has_head) const {
    return std::ranges::any_of(sites_[around.site].modes,
                               [&](const RankMode& mode) { return MayHold(mode, around, first, second, has_head); });
  }

  bool MayHold(const RankMode& site, const Around& around, int64_t first, int64_t second, bool has_head) const {
    const int64_t all = first + second;
    const int64_t free = site.free_of_two_bytes[all];
    const int64_t first_trip_ns = TripNs(layers_ - around.first_layers) + 2 * around.first_crossings_ns;
    const int64_t second_trip_ns = TripNs(second + around.LayersAfter(second)) + 2 * around.second_crossings_ns;
    const int64_t left_ns = around.end_ns - around.way_ns;
    if (free < 0 || !RoundsFit(site.Rounds(free, first, micro_batches_), first_trip_ns, left_ns) ||
        !RoundsFit(site.Rounds(free, all, micro_batches_), second_trip_ns, left_ns)) {
      return false;
    }
    const __int128 area =
        static_cast<__int128>(micro_batches_) * site.activation_bytes *
        (static_cast<__int128>(first) * first_trip_ns + static_cast<__int128>(second) * second_trip_ns);
    return area <= static_cast<__int128>(free) * around.end_ns &&
           TimesOf(site, around, first, second, first_trip_ns, has_head).IterationNs() <= around.end_ns;
  }

  RankTimes TimesOf(const RankMode& site, const Around& around, int64_t first, int64_t second, int64_t first_trip_ns,
                    bool has_head) const {
    const int64_t free = site.free_of_two_bytes[first + second];
    const bool is_looped = around.second_rest >= 0;
    // The folded pipeline's ends are both on the first rank.
    const Part embedding = around.is_first ? site.embedding : Part{};
    const Part head = has_head || (around.is_first && !is_looped) ? site.head : Part{};
    const int64_t bytes = first * site.activation_bytes;
    const int64_t in_flight = bytes == 0 ? micro_batches_ : std::min(micro_batches_, free / bytes);
    const int64_t held = site.activation_bytes == 0 ? kNever / site.layer.all_ns() : free / site.activation_bytes;
    const int64_t ends_ns = in_flight * (site.head.all_ns() + site.embedding.all_ns());
    RankTimes times;
    times.work_ns =
        Product(micro_batches_, (first + second) * site.layer.all_ns() + head.all_ns() + embedding.all_ns());
    times.in_ns = around.first_layers * forward_ns_ + around.crossed_ns;
    times.out_ns = around.first_layers * back_ns_ + around.crossed_ns;
    times.late_ns =
        site.LateNs(free, first + second) + Product(micro_batches_, site.head.late_ns + site.embedding.late_ns);
    times.first_back_ns = layers_ * forward_ns_ + around.LayersAfter(second) * back_ns_ + around.first_crossings_ns +
                          around.crossed_ns + around.second_crossings_ns;
    times.fill_ns = held * site.layer.forward_ns + ends_ns;
    times.tail_ns = first_trip_ns + times.out_ns;
    // A micro-batch in flight at the first stage has that backward ahead of it, and maybe all of the second stage.
    const int64_t to_come_ns = first * (site.layer.back_ns + site.layer.late_ns) + second * site.layer.all_ns();
    times.drain_ns = first * site.layer.forward_ns + ends_ns + Product(micro_batches_, site.head.late_ns) +
                     std::max(bytes == 0 ? kNever : Scaled(free, to_come_ns, bytes), site.LateNs(free, first + second));
    times.apart = in_flight < micro_batches_;
    return times;
  }

  bool MayFolded(int64_t end_ns) const {
    return MayTwice(end_ns, way_ns_ + 2 * crossings_ns_,
                    [this](const Around& around) { return PlacesTwice(around, layers_, -1); });
  }

  bool MayLooped(int64_t end_ns) const {
    return MayTwice(end_ns, way_ns_ + 2 * (crossings_ns_ + chain_.way_back_ns), [this](const Around& around) {
      for (int64_t range = 0; range < kRanges; ++range) {
        const int64_t max_first = CeilDivide(layers_ * (range + 1), kRanges);
        if (PlacesTwice(around, max_first, layers_ - max_first)) {
          return true;
        }
      }
      return false;
    });
  }

  // Tries first ranks as MayLinear.
  template <typename Places>
  bool MayTwice(int64_t end_ns, int64_t way_ns, const Places& places) const {
    const std::vector<int64_t>& update_ns = chain_.sites.front().update_ns;
    const auto with = [&](int64_t first_rank, int64_t update_of) {
      const int64_t left_ns = end_ns - update_ns[update_of - 1];
      return left_ns >= std::max(way_ns, Product(2 * micro_batches_, serialization_ns_)) &&
             places({.end_ns = left_ns, .way_ns = way_ns, .max_here = first_rank});
    };
    if (layers_ < 2 || !with(layers_, 2)) {
      return false;
    }
    const int64_t by_work = end_ns / std::max<int64_t>(1, Product(micro_batches_, sites_.front().LayerNs()));
    for (int64_t first_rank = std::min(layers_, by_work); first_rank >= 2; --first_rank) {
      if (with(first_rank, first_rank)) {
        return true;
      }
    }
    return false;
  }

  // True when the sites hold all layers with at most `max_first` in first stages. `second_all`: looped, the least
  // number in second stages.
  bool PlacesTwice(Around around, int64_t max_first, int64_t second_all) const {
    std::vector<int64_t> first_of(static_cast<size_t>(layers_) + 1, -1);  // most u, by v
    first_of[0] = 0;
    around.is_first = true;
    for (around.site = 0; around.site < sites_.size(); ++around.site) {
      around.crossed_ns += around.site == 0 ? 0 : CrossingNs(around.site - 1);
      const int64_t ahead_ns = crossings_ns_ - around.crossed_ns;
      around.first_crossings_ns = ahead_ns + (second_all < 0 ? crossings_ns_ : chain_.way_back_ns + crossings_ns_);
      around.second_crossings_ns = second_all < 0 ? around.crossed_ns : ahead_ns;
      for (int64_t rank = 0; rank < sites_[around.site].max_ranks; ++rank) {
        std::vector<int64_t> next = around.is_first ? std::vector<int64_t>(first_of.size(), -1) : first_of;
        for (int64_t second = 0; second <= layers_; ++second) {
          around.first_layers = first_of[second];
          around.second_layers = second;
          around.second_rest = second_all < 0 ? -1 : std::max<int64_t>(0, second_all - second);
          if (around.first_layers >= 0 && AddRank(around, max_first, next)) {
            return true;
          }
        }
        around.is_first = false;
        around.max_here = layers_;
        if (next == first_of) {
          break;
        }
        first_of = std::move(next);
      }
    }
    return false;
  }

  // Tries every number of layers in the second stage of a rank, each with the most in its first; true when that places
  // all. The last rank has at least two layers, and looped the head; the ranks before it give back layers that it needs
  // for that.
  bool AddRank(Around around, int64_t max_first, std::vector<int64_t>& next) const {
    around.first_layers = std::min(around.first_layers, max_first - 1);  // this rank has one of them
    const int64_t left = layers_ - around.first_layers - around.second_layers;
    const int64_t most = std::min(max_first - around.first_layers, around.max_here);
    const bool head_is_last = around.second_rest >= 0;
    for (int64_t second = 1; second + around.second_layers < layers_; ++second) {
      const int64_t rest = left - second;
      if (rest >= 1 && rest <= most && left <= around.max_here && MayHold(around, rest, second, head_is_last)) {
        return true;
      }
      const int64_t more = Most(std::min({most, around.max_here - second, layers_ - second}) - 1,
                                [&](int64_t less) { return MayHold(around, less + 1, second, false); });
      if (more < 0) {
        break;  // nor with more in the second
      }
      const int64_t reached = around.second_layers + second;
      next[reached] = std::max(next[reached], std::min(around.first_layers + more + 1, layers_ - 2 - reached));
    }
    return false;
  }

  // --- Three stages on each rank or more ------------------------------------------------------------------------

  // Constraints on a pipeline with at least `stages` stages on each rank. They hold for two as well, and are much
  // faster to check than the layers of two.
  struct Rounds {
    int64_t stages = 0;
    bool head_is_first = false;  // folded: on the first rank, else on the last
    int64_t way_ns = 0;          // of one micro-batch, from end to end
    int64_t messages = 0;        // that a crossing carries one way
    int64_t first_back_ns = 0;   // no I is earlier
  };

  Rounds Looped(int64_t stages) const {
    const int64_t back_ns = (stages - 1) * (crossings_ns_ + chain_.way_back_ns);
    const bool is_way_back = chain_.sites.size() == 2;
    return {.stages = stages,
            .head_is_first = false,
            .way_ns = way_ns_ + 2 * back_ns,
            .messages = Product(micro_batches_, is_way_back ? 2 * stages - 1 : stages),
            .first_back_ns = layers_ * forward_ns_ + crossings_ns_ + back_ns};
  }

  Rounds Folded() const {
    return {.stages = 2,
            .head_is_first = true,
            .way_ns = way_ns_ + 2 * crossings_ns_,
            .messages = Product(micro_batches_, 2),
            .first_back_ns = layers_ * forward_ns_ + 2 * crossings_ns_};
  }

  bool MayRounds(const Rounds& rounds, int64_t end_ns) const {
    if (layers_ < rounds.stages) {
      return false;
    }
    const std::vector<int64_t>& update_ns = chain_.sites.front().update_ns;
    if (!PlacesRounds(rounds, end_ns - update_ns[rounds.stages - 1], layers_)) {
      return false;
    }
    for (int64_t first = layers_; first >= rounds.stages; --first) {
      if (PlacesRounds(rounds, end_ns - update_ns[first - 1], first)) {
        return true;
      }
    }
    return false;
  }

  bool PlacesRounds(const Rounds& rounds, int64_t end_ns, int64_t max_first) const {
    if (end_ns < std::max(rounds.way_ns, Product(rounds.messages, serialization_ns_)) ||
        !AreasFit(rounds.stages, end_ns)) {
      return false;
    }
    // The fewest layers left, by the number of ranks that have the others: a site with fewer ranks than devices delays
    // those after it less.
    std::vector<int64_t> left_by_ranks(static_cast<size_t>(layers_) + 1, kUnplaced);
    left_by_ranks[0] = layers_;
    int64_t crossed_ns = 0;
    for (size_t at = 0; at < sites_.size(); ++at) {
      crossed_ns += at == 0 ? 0 : CrossingNs(at - 1);
      if (PlacesOnSite(rounds, end_ns, max_first, at, crossed_ns, left_by_ranks)) {
        return true;
      }
    }
    return false;
  }

  // Adds the site's ranks after any number of others; true when the last of them places all.
  bool PlacesOnSite(const Rounds& rounds, int64_t end_ns, int64_t max_first, size_t at, int64_t crossed_ns,
                    std::vector<int64_t>& left_by_ranks) const {
    const bool is_full = at >= alike_from_;  // no rank is better on those after it
    std::vector<int64_t> next(left_by_ranks.size(), kUnplaced);
    std::vector<int64_t> most_after(left_by_ranks.size(), kUnplaced);  // layers of a rank after that many, not the last
    for (int64_t start = 0; start < std::ssize(left_by_ranks); ++start) {
      int64_t left = left_by_ranks[start];
      for (int64_t ranks = 1; left >= rounds.stages && ranks <= sites_[at].max_ranks; ++ranks) {
        const int64_t before = start + ranks - 1;
        const auto may_hold = [&](int64_t layers, bool is_last) {
          return layers == 0 || std::ranges::any_of(sites_[at].modes, [&](const RankMode& mode) {
                   return MayHoldRounds(rounds, mode, end_ns, before, crossed_ns, layers, is_last);
                 });
        };
        const int64_t room = before == 0 ? std::min(left, max_first) : left;
        if (room == left && may_hold(left, true)) {
          return true;
        }
        int64_t& most = most_after[before];
        if (most == kUnplaced) {
          most = Most(layers_ - rounds.stages, [&](int64_t layers) { return may_hold(layers, false); });
        }
        const int64_t taken = std::min({most, room, left - rounds.stages});
        if (taken <= 0) {
          break;
        }
        left -= taken;
        if ((!is_full || ranks == sites_[at].max_ranks) && (next[before + 1] == kUnplaced || left < next[before + 1])) {
          next[before + 1] = left;
        }
      }
    }
    left_by_ranks = std::move(next);
    return false;
  }

  // True when a rank may have `layers` layers, with `before` ranks before it.
  bool MayHoldRounds(const Rounds& rounds, const RankMode& site, int64_t end_ns, int64_t before, int64_t crossed_ns,
                     int64_t layers, bool is_last) const {
    const int64_t free = site.free_of_two_bytes[layers];
    if (free < layers * site.activation_bytes) {
      return false;
    }
    const bool has_head = rounds.head_is_first ? before == 0 : is_last;
    const Part head = has_head ? site.head : Part{};
    const Part embedding = before == 0 ? site.embedding : Part{};
    const int64_t held = site.activation_bytes == 0
                             ? Product(micro_batches_, layers)
                             : std::min(Product(micro_batches_, layers), free / site.activation_bytes);
    RankTimes times;
    times.work_ns = Product(micro_batches_, layers * site.layer.all_ns() + head.all_ns() + embedding.all_ns());
    times.in_ns = before * forward_ns_ + crossed_ns;
    times.out_ns = before * back_ns_ + crossed_ns;
    times.late_ns = site.LateNs(free, layers) + Product(micro_batches_, head.late_ns + embedding.late_ns);
    times.first_back_ns = rounds.first_back_ns;
    times.fill_ns = held * site.layer.forward_ns + Product(micro_batches_, head.all_ns() + embedding.forward_ns);
    times.drain_ns = kNever;
    return times.IterationNs() <= end_ns;
  }

  // True when memory and time suffice for the activations, which are held on some rank until their gradients are
  // computed.
  bool AreasFit(int64_t stages, int64_t end_ns) const {
    const int64_t most_ranks = layers_ / stages;
    int64_t ranks = 0;
    int64_t free_of_one = 0;
    int64_t activation_bytes = std::numeric_limits<int64_t>::max();
    int64_t state_bytes = std::numeric_limits<int64_t>::max();  // of one more layer
    for (const Site& site : sites_) {
      ranks = std::min(most_ranks, ranks + site.max_ranks);
      for (const RankMode& mode : site.modes) {
        free_of_one = std::max(free_of_one, mode.free_of_two_bytes[1]);
        activation_bytes = std::min(activation_bytes, mode.activation_bytes);
        for (size_t layers = 2; layers < mode.free_of_two_bytes.size(); ++layers) {
          state_bytes = std::min(state_bytes, mode.free_of_two_bytes[layers - 1] - mode.free_of_two_bytes[layers]);
        }
      }
    }
    const __int128 free =
        static_cast<__int128>(ranks) * free_of_one - static_cast<__int128>(layers_ - ranks) * state_bytes;
    const __int128 held = static_cast<__int128>(micro_batches_) * activation_bytes * (forward_ns_ + back_ns_) *
                          layers_ * (layers_ - 1) / 2;
    return held <= free * end_ns;
  }

  const BoundChain& chain_;
  const BoundSchedules& schedules_;
  int64_t layers_;
  int64_t micro_batches_;
  std::vector<Site> sites_;
  size_t alike_from_ = 0;  // the sites from this one on are alike
  // Times of one layer on the fastest site.
  int64_t forward_ns_ = kNever;
  int64_t back_ns_ = kNever;
  int64_t head_ns_ = kNever;
  int64_t embedding_back_ns_ = kNever;
  int64_t crossings_ns_ = 0;  // all of them, one way
  int64_t elsewhere_ns_ = 0;
  int64_t serialization_ns_ = 0;
  int64_t way_ns_ = 0;  // of one micro-batch of a linear pipeline, all the way there and back
};

}  // namespace

int64_t PipelineBoundNs(const BoundChain& chain, std::span<const StageMemoryModel> memory, int64_t layers,
                        int64_t micro_batches, const BoundSchedules& schedules, int64_t limit_ns) {
  GP_CHECK(!chain.sites.empty() && chain.crossings.size() + 1 == chain.sites.size() && limit_ns > 0);
  return PipelineBound(chain, memory, layers, micro_batches, schedules).Run(limit_ns);
}

}  // namespace geopipe
