#include "optimizer/schedule/csv.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/validate.h"

namespace geopipe {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t";
  const size_t first = text.find_first_not_of(kBlank);
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// Takes the text up to `separator` (or the end) off the front of `text`.
std::string_view TakeUntil(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return taken;
}

// Takes a line and its end (LF, CRLF or CR) off the front of `text`.
std::string_view TakeLine(std::string_view& text) {
  const size_t end = text.find_first_of("\r\n");
  const std::string_view taken = text.substr(0, end);
  const size_t length = end == std::string_view::npos ? 0 : text.substr(end, 2) == "\r\n" ? 2 : 1;
  text.remove_prefix(taken.size() + length);
  return taken;
}

bool IsNumeral(char c) { return c >= '0' && c <= '9'; }

// "2FULL_BACKWARD0" to "2", "FULL_BACKWARD", "0".
struct Parts {
  std::string_view stage, word, micro_batch;

  explicit Parts(std::string_view cell) {
    const auto* const word_at = std::ranges::find_if_not(cell, IsNumeral);
    stage = cell.substr(0, static_cast<size_t>(word_at - cell.begin()));
    size_t end = cell.size();
    while (end > stage.size() && IsNumeral(cell[end - 1])) {
      --end;
    }
    word = cell.substr(stage.size(), end - stage.size());
    micro_batch = cell.substr(end);
  }
};

// The spelling that ParseAction knows.
std::string Canonical(std::string_view cell) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kOther{
      {{"FORWARD", "F"}, {"BW", "B"}, {"FULL_BACKWARD", "B"}, {"BACKWARD_INPUT", "I"}, {"BACKWARD_WEIGHT", "W"}}};
  const Parts parts(cell);
  const auto* const other =
      std::ranges::find(kOther, parts.word, &std::pair<std::string_view, std::string_view>::first);
  return other == kOther.end() ? std::string(cell)
                               : fmt::format("{}{}{}", parts.stage, other->second, parts.micro_batch);
}

// Guesses why a cell that is no action is there.
std::string_view Hint(std::string_view cell) {
  if (cell.find_first_of(";\t") != std::string_view::npos) {
    return "; cells are separated by commas";
  }
  if (cell.find(kOverlap) != std::string_view::npos) {
    return "; an overlap names its actions, like (3F1;3B0)OVERLAP_F_B";
  }
  if (std::ranges::all_of(cell, IsNumeral) || !IsNumeral(cell.front())) {
    return "; leave out a header and a column of numbers or names";
  }
  return "";
}

// An action and the cell that it stands in, counted from 1.
struct Placed {
  Action action;
  int64_t cell = 0;
};

struct Row {
  int64_t number = 0;  // of its line, counted from 1
  std::vector<Placed> actions;
};

absl::Status CellError(int64_t row, int64_t cell, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("schedule CSV, row {}, cell {}: {}", row, cell, what));
}

class Reader {
 public:
  // More actions on a row than `max_actions` are an error.
  explicit Reader(size_t max_actions) : max_actions_(max_actions) {}

  absl::Status ReadRow(std::string_view text, Row& row) {
    for (int64_t number = 1; !text.empty(); ++number) {
      std::string_view cell = Trim(TakeUntil(text, ','));
      if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') {
        cell = Trim(cell.substr(1, cell.size() - 2));
      }
      if (cell.empty() || cell == "None" || cell == "nan") {
        continue;
      }
      if (const absl::Status status = ReadCell(cell, number, row); !status.ok()) {
        return CellError(row.number, number, std::string(status.message()));
      }
      if (row.actions.size() > max_actions_) {
        return CellError(
            row.number, number,
            fmt::format("more actions than any schedule of this shape has (at most {} on one device)", max_actions_));
      }
    }
    return absl::OkStatus();
  }

  CsvNotes& notes() { return notes_; }

 private:
  absl::Status ReadCell(std::string_view cell, int64_t number, Row& row) {
    if (cell.starts_with('(')) {
      return ReadOverlap(cell, number, row);
    }
    const Parts parts(cell);
    for (const auto& [word, count] : {std::pair<std::string_view, int64_t*>{"UNSHARD", &notes_.unshards},
                                      {"RESHARD", &notes_.reshards},
                                      {"REDUCE_GRAD", &notes_.reduce_grads}}) {
      if (parts.word == word && !parts.stage.empty()) {
        ++*count;
        return absl::OkStatus();
      }
    }
    const absl::StatusOr<Action> action = ParseAction(Canonical(cell));
    if (!action.ok()) {
      return absl::InvalidArgumentError(
          fmt::format("{}{}", std::string(ParseAction(cell).status().message()), Hint(cell)));
    }
    row.actions.push_back({*action, number});
    return absl::OkStatus();
  }

  absl::Status ReadOverlap(std::string_view cell, int64_t number, Row& row) {
    const size_t end = cell.find(')');
    std::string_view inside = cell.substr(1, end == std::string_view::npos ? end : end - 1);
    if (end == std::string_view::npos || cell.substr(end + 1) != kOverlap ||
        inside.find(';') == std::string_view::npos) {
      return absl::InvalidArgumentError(
          fmt::format("'{}' is not an overlap of two actions or more: write it like (3F1;3B0){}",
                      cell.substr(0, kMaxShown), kOverlap));
    }
    while (!inside.empty()) {
      const std::string_view part = Trim(TakeUntil(inside, ';'));
      GP_ASSIGN_OR_RETURN(const Action action, ParseAction(Canonical(part)));
      if (!IsCompute(action.kind)) {
        return absl::InvalidArgumentError(
            fmt::format("'{}' in an overlap is not F, B, I or W; give it its own cell", part));
      }
      row.actions.push_back({action, number});
    }
    ++notes_.overlaps;
    return absl::OkStatus();
  }

  static constexpr size_t kMaxShown = 40;
  size_t max_actions_;
  CsvNotes notes_;
};

// At most `max_rows`, blank ones at the end among them.
absl::StatusOr<std::vector<Row>> ReadRows(std::string_view csv, size_t max_rows, Reader& reader) {
  if (csv.starts_with("\xff\xfe") || csv.starts_with("\xfe\xff")) {
    return absl::InvalidArgumentError("schedule CSV is UTF-16: save it as UTF-8");
  }
  if (csv.starts_with("\xef\xbb\xbf")) {
    csv.remove_prefix(3);
  }
  std::vector<Row> rows;
  for (int64_t number = 1; !csv.empty(); ++number) {
    const std::string_view line = TakeLine(csv);
    if (Trim(line).starts_with('#')) {
      continue;
    }
    if (rows.size() == max_rows) {
      if (!Trim(line).empty()) {
        return absl::InvalidArgumentError(
            fmt::format("schedule CSV, row {}: only {} rows expected, one per device", number, max_rows));
      }
      continue;
    }
    Row& row = rows.emplace_back();
    row.number = number;
    GP_RETURN_IF_ERROR(reader.ReadRow(line, row));
  }
  return rows;
}

// F, I and W per stage and micro-batch, each with a receive and a send.
size_t MaxActions(const PipelineShape& shape) {
  return static_cast<size_t>(9 * int64_t{shape.stages} * shape.micro_batches);
}

absl::StatusOr<std::vector<Row>> ReadRowsFor(std::string_view csv, const PipelineShape& shape, Reader& reader) {
  GP_ASSIGN_OR_RETURN(std::vector<Row> rows, ReadRows(csv, static_cast<size_t>(shape.devices), reader));
  if (std::ssize(rows) != shape.devices) {
    return absl::InvalidArgumentError(
        fmt::format("schedule CSV has {} rows: it needs {}, one per device", rows.size(), shape.devices));
  }
  return rows;
}

// Finds the shape that the rows are a schedule for.
absl::StatusOr<PipelineShape> ShapeOf(std::vector<Row>& rows) {
  while (!rows.empty() && rows.back().actions.empty()) {
    rows.pop_back();  // blank lines
  }
  PipelineShape shape{.devices = static_cast<int32_t>(rows.size()), .stages = 0, .micro_batches = 0, .placement = {}};
  if (rows.empty()) {
    return absl::InvalidArgumentError("schedule CSV has no rows: it needs one per device");
  }
  int64_t stages = 0;
  int64_t micro_batches = 0;
  for (const Row& row : rows) {
    for (const auto& [action, cell] : row.actions) {
      stages = std::max<int64_t>(stages, int64_t{action.stage} + 1);
      micro_batches = std::max<int64_t>(micro_batches, int64_t{action.micro_batch} + 1);
      if (stages * micro_batches > kMaxStageMicroBatches) {
        return CellError(row.number, cell,
                         fmt::format("{} stages times {} micro-batches are more than {}", stages, micro_batches,
                                     kMaxStageMicroBatches));
      }
    }
  }
  shape.stages = static_cast<int32_t>(stages);
  shape.micro_batches = static_cast<int32_t>(micro_batches);
  shape.placement.assign(static_cast<size_t>(stages), -1);
  for (size_t device = 0; device < rows.size(); ++device) {
    for (const auto& [action, cell] : rows[device].actions) {
      int32_t& placed = shape.placement[static_cast<size_t>(action.stage)];
      if (placed >= 0 && placed != static_cast<int32_t>(device)) {
        return CellError(rows[device].number, cell,
                         fmt::format("stage {} is in row {} too; a stage runs on one device", action.stage,
                                     rows[static_cast<size_t>(placed)].number));
      }
      placed = static_cast<int32_t>(device);
    }
  }
  const auto missing = std::ranges::find(shape.placement, -1);
  if (missing != shape.placement.end()) {
    return absl::InvalidArgumentError(fmt::format("schedule CSV has stages up to {}, but no row runs stage {}",
                                                  stages - 1, missing - shape.placement.begin()));
  }
  return stages > 0 ? absl::StatusOr<PipelineShape>(std::move(shape))
                    : absl::InvalidArgumentError("schedule CSV has no actions");
}

// PyTorch up to 2.5 wrote B for what it now writes as I: beside a W of the same micro-batch, B is no whole backward.
void ReadOldBackwards(std::vector<Row>& rows, const PipelineShape& shape, CsvNotes& notes) {
  std::vector<bool> has_weight(static_cast<size_t>(int64_t{shape.stages} * shape.micro_batches), false);
  const auto slot_of = [&](const Action& action) -> std::optional<size_t> {
    if (action.stage >= shape.stages || action.micro_batch >= shape.micro_batches) {
      return std::nullopt;  // the validator refuses it
    }
    return static_cast<size_t>(int64_t{action.stage} * shape.micro_batches + action.micro_batch);
  };
  for (const Row& row : rows) {
    for (const auto& [action, cell] : row.actions) {
      if (const auto slot = slot_of(action); slot.has_value() && action.kind == ActionKind::kWeightGradient) {
        has_weight[*slot] = true;
      }
    }
  }
  for (Row& row : rows) {
    for (auto& [action, cell] : row.actions) {
      const auto slot = slot_of(action);
      if (slot.has_value() && action.kind == ActionKind::kBackward && has_weight[*slot]) {
        action.kind = ActionKind::kInputGradient;
        ++notes.input_gradients;
      }
    }
  }
}

Schedule ScheduleOf(const std::vector<Row>& rows, const PipelineShape& shape) {
  Schedule schedule{shape, {}};
  schedule.devices.reserve(rows.size());
  for (const Row& row : rows) {
    std::vector<Action>& actions = schedule.devices.emplace_back();
    actions.reserve(row.actions.size());
    std::ranges::transform(row.actions, std::back_inserter(actions), &Placed::action);
  }
  return schedule;
}

// The validator's words with the cell where it found the fault.
absl::Status WithCell(const absl::Status& status, const std::vector<Row>& rows, const ScheduleFault& fault) {
  if (fault.device < 0) {
    return status;
  }
  const Row& row = rows[static_cast<size_t>(fault.device)];
  const bool at_end = fault.position >= std::ssize(row.actions);
  const int64_t last = row.actions.empty() ? 0 : row.actions.back().cell;
  constexpr std::string_view kPrefix = "schedule, ";
  std::string what(status.message());
  what.erase(0, what.starts_with(kPrefix) ? kPrefix.size() : 0);
  return CellError(row.number, at_end ? last + 1 : row.actions[static_cast<size_t>(fault.position)].cell, what);
}

}  // namespace

std::string ToCsv(const Schedule& schedule) {
  std::string csv;
  for (const std::vector<Action>& actions : schedule.devices) {
    for (size_t i = 0; i < actions.size(); ++i) {
      fmt::format_to(std::back_inserter(csv), "{}{}{}{}", i == 0 ? "" : ",", actions[i].stage,
                     ActionKindName(actions[i].kind), actions[i].micro_batch);
    }
    csv += '\n';
  }
  return csv;
}

absl::StatusOr<Schedule> ParseCsv(std::string_view csv, const PipelineShape& shape) {
  GP_RETURN_IF_ERROR(ValidateShape(shape));
  Reader reader(MaxActions(shape));
  GP_ASSIGN_OR_RETURN(const std::vector<Row> rows, ReadRowsFor(csv, shape, reader));
  return ScheduleOf(rows, shape);
}

std::string NotesText(const CsvNotes& notes) {
  std::string passed;
  for (const auto& [count, name] : {std::pair<int64_t, std::string_view>{notes.unshards, "UNSHARD"},
                                    {notes.reshards, "RESHARD"},
                                    {notes.reduce_grads, "REDUCE_GRAD"}}) {
    if (count > 0) {
      passed += fmt::format("{}{} {}", passed.empty() ? "" : ", ", count, name);
    }
  }
  std::string text = passed.empty() ? "" : passed + " passed over (zero_stage says when weights and gradients move)";
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  if (notes.overlaps > 0) {
    add(fmt::format("{} OVERLAP_F_B read as their actions in order", notes.overlaps));
  }
  if (notes.input_gradients > 0) {
    add(fmt::format("{} B read as I, because W of the same micro-batch are there", notes.input_gradients));
  }
  if (notes.messages_moved) {
    add("SEND and RECV moved next to the actions that make and need their messages");
  }
  return text;
}

absl::StatusOr<GivenSchedule> ReadScheduleCsv(std::string_view csv, const std::optional<PipelineShape>& given) {
  if (given.has_value()) {
    GP_RETURN_IF_ERROR(ValidateShape(*given));
  }
  Reader reader(given.has_value() ? MaxActions(*given) : static_cast<size_t>(9 * kMaxStageMicroBatches));
  std::vector<Row> rows;
  PipelineShape shape;
  if (given.has_value()) {
    shape = *given;
    GP_ASSIGN_OR_RETURN(rows, ReadRowsFor(csv, shape, reader));
  } else {
    GP_ASSIGN_OR_RETURN(rows, ReadRows(csv, kMaxDevices, reader));
    GP_ASSIGN_OR_RETURN(shape, ShapeOf(rows));
  }
  ReadOldBackwards(rows, shape, reader.notes());
  const Schedule as_written = ScheduleOf(rows, shape);
  for (Row& row : rows) {
    std::erase_if(row.actions, [](const Placed& placed) { return !IsCompute(placed.action.kind); });
  }
  GivenSchedule read{ScheduleOf(rows, shape), reader.notes()};
  ScheduleFault fault;
  if (const absl::Status status = Validate(read.schedule, {}, &fault); !status.ok()) {
    return WithCell(status, rows, fault);
  }
  if (as_written != read.schedule) {
    GP_ASSIGN_OR_RETURN(const Schedule lowered, Lower(read.schedule));
    read.notes.messages_moved = as_written != lowered;
  }
  return read;
}

}  // namespace geopipe
