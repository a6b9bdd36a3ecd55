#include "coordinator/core/life/checkpoint_list.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "optimizer/base/status_macros.h"
#include "proto/wire/checkpoint_wire.h"

namespace geopipe {
namespace {

// Iteration of the newest with copies at other sites, where the job wants copies; 0: none.
int64_t Protected(const std::vector<ListedCheckpoint>& listed, const CheckpointSpec& spec) {
  const auto copied = std::find_if(listed.rbegin(), listed.rend(), std::mem_fn(&ListedCheckpoint::is_copied));
  return spec.replicate == 0 || copied == listed.rend() ? 0 : copied->identity.iteration;
}

}  // namespace

void CheckpointList::Write(v1::JobRecord& record) const {
  for (const CheckpointIdentity& each : resumable) {
    *record.add_resume_from() = ToProto(each);
  }
  record.set_checkpoint_mark(mark);
  for (const NodeKey& node : marked) {
    *record.add_marked() = ToProto(node);
  }
}

absl::StatusOr<CheckpointList> CheckpointList::Read(const v1::JobRecord& record) {
  CheckpointList list;
  GP_ASSIGN_OR_RETURN(list.resumable, FromProto(record.resume_from()));
  list.mark = record.checkpoint_mark();
  std::ranges::transform(record.marked(), std::inserter(list.marked, list.marked.end()),
                         [](const v1::NodeName& node) { return KeyOf(node); });
  return list;
}

std::vector<CheckpointIdentity> CheckpointList::Kept() const {
  std::vector<CheckpointIdentity> kept;
  std::ranges::transform(listed, std::back_inserter(kept), &ListedCheckpoint::identity);
  return listed.empty() ? resumable : kept;
}

void CheckpointList::List(const ListedCheckpoint& complete, const CheckpointSpec& spec) {
  DropAfter(complete.identity.iteration - 1);
  listed.push_back(complete);
  Trim(spec.keep, spec);
}

void CheckpointList::DropAfter(int64_t iteration) {
  std::erase_if(listed, [&](const ListedCheckpoint& each) { return each.identity.iteration > iteration; });
}

bool CheckpointList::Trim(int64_t keep, const CheckpointSpec& spec) {
  const size_t before = listed.size();
  const int64_t copied = Protected(listed, spec);
  auto oldest = listed.begin();
  while (std::ssize(listed) > keep && oldest != std::prev(listed.end())) {
    oldest = oldest->identity.iteration == copied ? std::next(oldest) : listed.erase(oldest);
  }
  return listed.size() < before;
}

void CheckpointList::DropLostParts(const std::map<NodeKey, std::vector<CheckpointIdentity>>& found) {
  for (ListedCheckpoint& each : listed) {
    for (ListedCheckpoint::Holders& holders : each.parts) {
      std::erase_if(holders, [&](const NodeKey& node) {
        const auto at = found.find(node);
        return at != found.end() && std::ranges::find(at->second, each.identity) == at->second.end();
      });
    }
  }
}

void CheckpointList::NoteUnreadable(const CheckpointIdentity& checkpoint, const std::set<NodeKey>& nodes) {
  const auto found = std::ranges::find(listed, checkpoint, &ListedCheckpoint::identity);
  if (found == listed.end() || !found->IsBeyond(nodes) || found->IsUnreadableAt(nodes)) {
    return;
  }
  found->unreadable_at.push_back(nodes);
  if (found->unreadable_at.size() > ListedCheckpoint::kMaxUnreadable) {
    found->unreadable_at.erase(found->unreadable_at.begin());
  }
}

void CheckpointList::Strike(const CheckpointIdentity& checkpoint, const std::set<NodeKey>& nodes) {
  std::erase_if(listed,
                [&](const ListedCheckpoint& each) { return each.identity == checkpoint && !each.IsBeyond(nodes); });
  std::erase(resumable, checkpoint);
}

}  // namespace geopipe
