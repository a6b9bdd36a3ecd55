// Links between sites, and networks inside them, for people and for programs.
#pragma once

#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/plan_output.h"
#include "geopipe/v1/control_service.pb.h"

namespace geopipe {

// One row per direction: what plans count on, how sure it is, where it comes from and what was declared. `wide` adds
// what the figures rest on.
Table LinkTableOf(const v1::ListLinksResponse& response, bool wide);

// The same in base units. What is not known, "measured" and "declared" are null where nothing was.
Json LinksToJson(const v1::ListLinksResponse& response);

}  // namespace geopipe
