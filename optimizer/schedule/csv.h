// Schedules as text, one row per device and one cell per action: what GeoPipe writes, and what PyTorch
// (torch.distributed.pipelining.schedules, _dump_csv and _load_csv) writes and has written. The grammar of the reader:
//
//   file     = [byte order mark] { line }            lines end in LF, CRLF or CR; blank ones at the end are no rows
//   line     = row | "#" text                        a comment is no row
//   row      = [ cell ] { "," [ cell ] }             blanks around a cell, and a pair of '"', are no part of it
//   cell     = action | overlap | passed | "None" | "nan"              empty, None and nan: the device is idle
//   action   = stage kind micro-batch                                  2F0, 0SEND_B13
//   kind     = "F" | "FORWARD"
//            | "B" | "BW" | "FULL_BACKWARD"          I and W together; beside a W of the same micro-batch: I
//            | "I" | "BACKWARD_INPUT" | "W" | "BACKWARD_WEIGHT"
//            | "SEND_F" | "RECV_F" | "SEND_B" | "RECV_B"
//   overlap  = "(" action ";" action { ";" action } ")OVERLAP_F_B"     its actions in order; none of them sends
//   passed   = stage ( "UNSHARD" | "RESHARD" | "REDUCE_GRAD" ) [ micro-batch ]     passed over: the plan says when
//   stage, micro-batch = a whole number from 0, without leading zeros
//
// Anything else is refused by row and cell, among it headers, index columns and other separators.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "optimizer/schedule/schedule.h"

namespace geopipe {

// One row per device, no idle cells. What actions it has is up to the schedule (compute-only or lowered).
std::string ToCsv(const Schedule& schedule);

// Reads what ToCsv writes. `shape` says what the schedule must be for; the validator checks the content.
// InvalidArgument names row and cell, both counted from 1.
absl::StatusOr<Schedule> ParseCsv(std::string_view csv, const PipelineShape& shape);

// Notes on what in a file is not taken as it stands there.
struct CsvNotes {
  int64_t unshards = 0;  // these three: passed over
  int64_t reshards = 0;
  int64_t reduce_grads = 0;
  int64_t overlaps = 0;         // read as their actions
  int64_t input_gradients = 0;  // B, read as I
  bool messages_moved = false;  // SENDs and RECVs are there, but not where lowering puts them

  friend bool operator==(const CsvNotes&, const CsvNotes&) = default;
};

// One sentence; empty: all is as it stands there.
std::string NotesText(const CsvNotes& notes);

struct GivenSchedule {
  Schedule schedule;  // compute-only
  CsvNotes notes;
};

// Reads and validates a schedule that people give. It is for `shape`, or, where that is absent, for what the file
// says: a device for each row, the stages that it runs, the micro-batches that there are. InvalidArgument names row and
// cell where there is one.
absl::StatusOr<GivenSchedule> ReadScheduleCsv(std::string_view csv,
                                              const std::optional<PipelineShape>& shape = std::nullopt);

}  // namespace geopipe
