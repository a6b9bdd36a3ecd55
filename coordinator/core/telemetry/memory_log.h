// The greatest memory that each rank of a plan has reported.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <cstdint>
#include <map>

#include "geopipe/v1/control_service.pb.h"

namespace geopipe {

class MemoryLog {
 public:
  MemoryLog() = default;
  // Restores what an earlier life of the coordinator has stored.
  explicit MemoryLog(const google::protobuf::RepeatedPtrField<v1::MeasuredMemory>& stored);

  // Adds a rank's peaks. A worker that was started in the place of another counts anew: the greatest of each category
  // stays.
  void Add(int32_t rank, const v1::MemoryPeaks& peaks);

  // Replaces `all`; ranks ascend.
  void WriteTo(google::protobuf::RepeatedPtrField<v1::MeasuredMemory>& all) const;

 private:
  std::map<int32_t, v1::MemoryPeaks> peaks_;  // by rank
};

}  // namespace geopipe
