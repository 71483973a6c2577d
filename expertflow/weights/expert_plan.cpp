#include "expertflow/weights/expert_plan.h"

#include <algorithm>
#include <tuple>

#include "expertflow/base/errors.h"
#include "expertflow/quant/mxfp4.h"

namespace ef {

namespace {

// Parts that are made of the same slice, which is then read once (gate and up interleaved or fused).
struct Group {
  Slice main, scales;  // scales: MXFP4 pairs only
  std::vector<size_t> parts;
};

bool whole_slice(const PartSource& s) { return s.unpack == Unpack::kTransposed || s.unpack == Unpack::kToF32; }

// Bytes of one row of the file's matrix; of a MXFP4 pair, those of its blocks.
uint64_t file_row_bytes(const PartSource& source, const ExpertPart& part) {
  return source.unpack == Unpack::kMxfp4Pairs ? uint64_t(part.cols) / 2 : row_bytes(part.format, part.cols);
}

ByteRange rows_of(const Slice& slice, uint64_t row, int64_t begin, int64_t end) {
  return {slice.tensor->file, slice.file_offset() + uint64_t(begin) * row, uint64_t(end - begin) * row};
}

std::vector<Group> group_parts(const std::vector<PartSource>& sources) {
  std::vector<Group> groups;
  for (size_t i = 0; i < sources.size(); ++i) {
    const PartSource& source = sources[i];
    const Slice main = slice_of(source.tensor, source);
    const auto same = [&](const Group& g) {
      const PartSource& first = sources[g.parts.front()];
      return g.main.tensor->file == main.tensor->file && g.main.file_offset() == main.file_offset() &&
             first.unpack == source.unpack && first.row_step == source.row_step;
    };
    // Rows that are not interleaved lie apart: nothing to share.
    const bool shares = whole_slice(source) || source.row_step > 1;
    const auto it = shares ? std::find_if(groups.begin(), groups.end(), same) : groups.end();
    if (it != groups.end()) {
      it->parts.push_back(i);
      continue;
    }
    groups.push_back({main, {}, {i}});
    if (source.unpack == Unpack::kMxfp4Pairs) groups.back().scales = slice_of(source.scales, source);
  }
  return groups;
}

void add_whole(const Group& group, const ExpertLayout& layout, std::vector<FillUnit>& out) {
  FillUnit unit;
  unit.ranges.push_back({group.main.tensor->file, group.main.file_offset(), group.main.bytes});
  for (const size_t i : group.parts) unit.pieces.push_back({i, 0, layout.parts[i].rows, 0, 0});
  out.push_back(std::move(unit));
}

void add_rows(const Group& group, const ExpertLayout& layout, const std::vector<PartSource>& sources,
              std::vector<FillUnit>& out) {
  const size_t first = group.parts.front();
  const ExpertPart& part = layout.parts[first];
  const int64_t step = sources[first].row_step, rows = part.rows;
  const uint64_t row = file_row_bytes(sources[first], part);
  const uint64_t total = uint64_t(rows) * uint64_t(step) * row;
  const int64_t cuts = int64_t(std::max<uint64_t>(1, (total + kUnitBytes - 1) / kUnitBytes));
  const int64_t each = ((rows + cuts - 1) / cuts + kRowGroup - 1) / kRowGroup * kRowGroup;
  for (int64_t begin = 0; begin < rows; begin += each) {
    const int64_t end = std::min(rows, begin + each);
    int64_t file_begin = INT64_MAX, file_end = 0;
    for (const size_t i : group.parts) {
      file_begin = std::min(file_begin, sources[i].row_begin + begin * step);
      file_end = std::max(file_end, sources[i].row_begin + (end - 1) * step + 1);
    }
    FillUnit unit;
    unit.ranges.push_back(rows_of(group.main, row, file_begin, file_end));
    if (group.scales.tensor)
      unit.ranges.push_back(rows_of(group.scales, uint64_t(part.cols) / BlockMXFP4::kElements, file_begin, file_end));
    for (const size_t i : group.parts) unit.pieces.push_back({i, begin, end - begin, file_begin, 0});
    out.push_back(std::move(unit));
  }
}

// What lies end to end in the file is one read, as long as it is a small one.
void merge_adjacent(std::vector<FillUnit>& units) {
  const auto order = [](const FillUnit& u) { return std::tuple(u.ranges[0].file, u.ranges[0].offset); };
  std::sort(units.begin(), units.end(), [&](const FillUnit& a, const FillUnit& b) { return order(a) < order(b); });
  size_t kept = 0;
  for (size_t i = 1; i < units.size(); ++i) {
    FillUnit& last = units[kept];
    FillUnit& next = units[i];
    ByteRange& range = last.ranges[0];
    const bool joins = last.ranges.size() == 1 && next.ranges.size() == 1 && range.file == next.ranges[0].file &&
                       range.offset + range.bytes == next.ranges[0].offset &&
                       range.bytes + next.ranges[0].bytes <= kUnitBytes;
    if (!joins) {
      if (++kept != i) units[kept] = std::move(next);
      continue;
    }
    for (FillPiece piece : next.pieces) {
      piece.raw_offset += range.bytes;
      last.pieces.push_back(piece);
    }
    range.bytes += next.ranges[0].bytes;
  }
  if (!units.empty()) units.resize(kept + 1);
}

}  // namespace

Slice slice_of(const TensorInfo& tensor, const PartSource& source) {
  if (!source.stacked) return {&tensor, 0, tensor.bytes};
  const uint64_t each = tensor.bytes / uint64_t(tensor.shape[0]);
  return {&tensor, uint64_t(source.index) * each, each};
}

std::vector<FillUnit> plan_fill(const ExpertLayout& layout, const std::vector<PartSource>& sources) {
  std::vector<FillUnit> units;
  for (const Group& group : group_parts(sources)) {
    const auto rows = [&](size_t i) { return layout.parts[i].rows; };
    const bool equal = std::all_of(group.parts.begin(), group.parts.end(),
                                   [&](size_t i) { return rows(i) == rows(group.parts.front()); });
    EF_DCHECK(equal || whole_slice(sources[group.parts.front()]));
    if (whole_slice(sources[group.parts.front()]) || !equal)
      add_whole(group, layout, units);
    else
      add_rows(group, layout, sources, units);
  }
  merge_adjacent(units);
  return units;
}

}  // namespace ef
