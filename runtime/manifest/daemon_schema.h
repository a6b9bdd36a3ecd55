// Schemas that the configurations of several daemons and files share.
#pragma once

#include "optimizer/model/cluster.h"
#include "runtime/base/config/schema.h"
#include "runtime/base/log.h"

namespace geopipe {

const Schema<DeviceSpec>& DeviceSchema();
// The fabric between the nodes of a site.
const Schema<NetworkSpec>& NetworkSchema();

template <class Config>
Schema<Config> LogSchema(LogLevel Config::*level, LogFormat Config::*format) {
  return Schema<Config>()
      .Key("level",
           ChoiceValue<LogLevel>({{"debug", LogLevel::kDebug},
                                  {"info", LogLevel::kInfo},
                                  {"warning", LogLevel::kWarning},
                                  {"error", LogLevel::kError}}),
           level, "Minimum level that is logged.")
      .Key("format", ChoiceValue<LogFormat>({{"text", LogFormat::kText}, {"json", LogFormat::kJson}}), format,
           "For people or for programs.");
}

}  // namespace geopipe
