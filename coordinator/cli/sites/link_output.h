// Links between sites, and networks inside them, for people and for programs.
#pragma once

#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/plan_output.h"
#include "geopipe/v1/control_service.pb.h"

namespace geopipe {

// One row per direction: the figures that plans use, their uncertainty and source, and the declaration. `wide` adds the
// samples behind them.
Table LinkTableOf(const v1::ListLinksResponse& response, bool wide);

// The same in base units. Unknown figures are null, as are "measured" and "declared" where nothing was measured or
// declared.
Json LinksToJson(const v1::ListLinksResponse& response);

}  // namespace geopipe
