// Decides whether two workers of a job read the same training data, by what each has found of its own so far.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/job_spec.h"

namespace geopipe {

// The bytes [begin, end), somewhere in which the data differs; of all files together.
struct DataDifference {
  int64_t begin = 0;
  int64_t end = 0;
};

// The first one in what both have checked; nullopt: none. A report with no checksums says nothing.
std::optional<DataDifference> FirstDifference(const v1::DataCheckReport& a, const v1::DataCheckReport& b);

// Names the two, the file, the place and the remedy.
std::string DifferenceSentence(std::string_view one, std::string_view other, const DataSpec& data,
                               const DataDifference& difference);

}  // namespace geopipe
