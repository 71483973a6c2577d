#include "expertflow/transfer/disk_reader.h"

#include <algorithm>

#include "expertflow/base/align.h"
#include "expertflow/base/errors.h"
#include "expertflow/weights/expert_plan.h"

namespace ef {

namespace {

// Staging of a lane: enough for a deep queue. Larger experts pass through it in several batches.
constexpr uint64_t kStagingBytes = 16 << 20;
constexpr uint64_t kPage = PageBuffer::kAlignment;

// Room for a range with the sectors at both ends that it shares with others, whatever its place in the file.
uint64_t room_for(const ByteRange& range) { return round_up(range.bytes + 2 * kPage, kPage); }

uint64_t room_for(const FillUnit& unit) {
  uint64_t bytes = 0;
  for (const ByteRange& range : unit.ranges) bytes += room_for(range);
  return bytes;
}

// All experts of a layer have equal sizes.
uint64_t lane_bytes(const ExpertStore& store) {
  uint64_t all = 0, largest = 0;
  for (const LayerExperts& layer : store.layers()) {
    if (layer.count() == 0) continue;
    uint64_t expert = 0;
    for (const FillUnit& unit : store.units({layer.layer, 0})) {
      expert += room_for(unit);
      largest = std::max(largest, room_for(unit));
    }
    all = std::max(all, expert);
  }
  return std::min(all, std::max(kStagingBytes, largest));
}

std::vector<bool> files_with_experts(const ExpertStore& store) {
  std::vector<bool> used(size_t(store.directory().file_count()));
  for (const LayerExperts& layer : store.layers()) {
    for (const ExpertImage& image : layer.images) used[size_t(image.file)] = true;
    for (const auto& sources : layer.experts)
      for (const PartSource& source : sources) {
        used[size_t(source.tensor.file)] = true;
        if (source.unpack == Unpack::kMxfp4Pairs) used[size_t(source.scales.file)] = true;
      }
  }
  return used;
}

}  // namespace

std::string IoState::text() const {
  return fmt::format("{}, {}{}, {} at once", kind, direct ? "direct" : "buffered",
                     registered ? ", registered buffers" : "", depth);
}

DiskReader::DiskReader(const ExpertStore& store, const DiskReaderOptions& options) : store_(store) {
  EF_CHECK(options.lanes >= 1 && options.depth >= 1, ConfigError,
           "disk reader: expected at least 1 lane and 1 read at once, found {} and {}", options.lanes, options.depth);
  open_files(options);
  open_queues(options);
  const uint64_t staging = lane_bytes(store);
  for (Lane& lane : lanes_) lane.staging = PageBuffer(staging);
  register_staging();
}

void DiskReader::open_files(const DiskReaderOptions& options) {
  const std::vector<bool> used = files_with_experts(store_);
  files_.resize(used.size());
  state_.direct = true;
  std::string why;
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    const ByteSource& source = store_.directory().file(int(i));
    files_[i] = std::make_unique<ReadFile>(source, options.direct, options.faults);
    if (files_[i]->direct() && files_[i]->offset_alignment() > kPage) {
      why = fmt::format("direct reads must be aligned to {} bytes, up to {} is supported",
                        files_[i]->offset_alignment(), kPage);
      files_[i] = std::make_unique<ReadFile>(source, DirectIo::kOff);
    } else if (!files_[i]->direct()) {
      why = files_[i]->why_buffered();
    }
    if (files_[i]->direct()) continue;
    // Files of one model lie on one filesystem as a rule: one line for all.
    if (state_.direct && options.direct == DirectIo::kAuto && files_[i]->descriptor() >= 0)
      state_.notes.push_back(
          {true, fmt::format("{}: experts are read through the page cache: {}", source.name(), why)});
    state_.direct = false;
  }
}

void DiskReader::open_queues(const DiskReaderOptions& options) {
  ReadQueueOptions queue;
  queue.depth = std::max(1, options.depth / options.lanes);
  queue.read_bytes = kUnitBytes;
  queue.faults = options.faults;
  UringQueues rings;
  if (options.io != IoKind::kPread) {
    rings = make_uring_queues(options.lanes, queue);
    EF_CHECK(!rings.queues.empty() || options.io == IoKind::kAuto, DeviceError,
             "io_uring was asked for (--io uring) and is refused: {}", rings.why_not);
    if (rings.queues.empty())
      state_.notes.push_back({false, fmt::format("experts are read with pread, not io_uring: {}", rings.why_not)});
  }
  const bool uring = !rings.queues.empty();
  for (int i = 0; i < options.lanes; ++i)
    lanes_.push_back({uring ? std::move(rings.queues[size_t(i)]) : make_pread_queue(queue), {}});
  state_.kind = lanes_.front().queue->kind();
  state_.depth = uring ? queue.depth * options.lanes : options.lanes;
}

void DiskReader::register_staging() {
  if (state_.kind != "io_uring" || lanes_.front().staging.size() == 0) return;
  state_.registered = true;
  for (Lane& lane : lanes_) {
    const std::string refused = lane.queue->register_memory(lane.staging.bytes());
    if (refused.empty()) continue;
    state_.registered = false;
    state_.notes.push_back(
        {false,
         fmt::format("io_uring: {} bytes of buffers are not registered: {}; see ulimit -l, each read pins its own",
                     lane.staging.size(), refused)});
    return;
  }
}

void DiskReader::fill(ExpertKey key, std::span<std::byte> slot, int lane) {
  EF_DCHECK(lane >= 0 && size_t(lane) < lanes_.size());
  try {
    if (const ExpertImage* image = store_.image(key))
      read_image(key, *image, slot, lane);
    else
      read_units(key, slot, lane);
  } catch (const DeviceError& error) {
    fail<DeviceError>("layer {}, expert {}: {}", key.layer, key.expert, error.what());
  }
}

// As many units as staging takes and `most` allows, from `first` on; the index behind the last. Requests are one a
// range, in order.
size_t DiskReader::place_batch(const std::vector<FillUnit>& units, size_t first, uint64_t most, Lane& lane,
                               std::vector<ReadRequest>& requests) const {
  requests.clear();
  const uint64_t room = std::min<uint64_t>(most, lane.staging.size());
  uint64_t at = 0;
  size_t i = first;
  for (; i < units.size() && (i == first || at + room_for(units[i]) <= room); ++i)
    for (const ByteRange& range : units[i].ranges) {
      const ReadFile& file = *files_[size_t(range.file)];
      const uint64_t begin = round_down(range.offset, file.offset_alignment());
      const uint64_t end = round_up(range.offset + range.bytes, file.offset_alignment());
      EF_DCHECK(at + (end - begin) <= lane.staging.size());
      requests.push_back(
          {&file, begin, lane.staging.bytes().subspan(at, end - begin), range.offset + range.bytes - begin});
      at += room_for(range);
    }
  return i;
}

void DiskReader::read_units(ExpertKey key, std::span<std::byte> slot, int lane_index) {
  Lane& lane = lanes_[size_t(lane_index)];
  uint64_t done = 0;
  const std::vector<FillUnit> units = store_.units(key);
  std::vector<ReadRequest> requests;
  std::vector<const std::byte*> raw;
  std::vector<std::pair<size_t, size_t>> of;  // by request: its unit, and the unit's first request
  std::vector<size_t> missing;                // by unit: ranges still to come
  for (size_t first = 0; first < units.size();) {
    const size_t end = place_batch(units, first, checkpoint(lane_index, done), lane, requests);
    raw.clear(), of.clear(), missing.clear();
    for (size_t u = first; u < end; ++u) {
      const size_t begin = raw.size();
      missing.push_back(units[u].ranges.size());
      for (const ByteRange& range : units[u].ranges) {
        const ReadRequest& request = requests[raw.size()];
        raw.push_back(request.to.data() + (range.offset - request.offset));
        of.emplace_back(u, begin);
      }
    }
    lane.queue->read(requests, [&](size_t i) {
      const auto [unit, begin] = of[i];
      if (--missing[unit - first] == 0)
        store_.unpack(key, units[unit], std::span(raw).subspan(begin, units[unit].ranges.size()), slot);
    });
    for (size_t u = first; u < end; ++u)
      for (const ByteRange& range : units[u].ranges) done += range.bytes;
    first = end;
  }
  for (size_t i = 0, last = size_t(-1); i < units.size(); ++i)
    for (const ByteRange& range : units[i].ranges)
      if (const size_t file = size_t(range.file); file != last) files_[last = file]->check_unchanged();
}

void DiskReader::read_image(ExpertKey key, const ExpertImage& image, std::span<std::byte> slot, int lane_index) {
  Lane& lane = lanes_[size_t(lane_index)];
  const ReadFile& file = *files_[size_t(image.file)];
  const std::span<std::byte> to = slot.first(image.bytes);
  EF_DCHECK(image.offset % file.offset_alignment() == 0 && image.bytes % file.offset_alignment() == 0);
  EF_DCHECK(reinterpret_cast<uintptr_t>(to.data()) % file.memory_alignment() == 0);
  const auto read = [&] {
    for (uint64_t done = 0; done < image.bytes;) {
      const uint64_t most = round_down(std::max<uint64_t>(checkpoint(lane_index, done), kPage), kPage);
      const uint64_t bytes = std::min(most, image.bytes - done);
      const ReadRequest request{&file, image.offset + done, to.subspan(done, bytes), bytes};
      lane.queue->read({&request, 1}, [](size_t) {});
      done += bytes;
    }
    file.check_unchanged();
    store_.finish_image(key, slot);
  };
  try {
    read();
  } catch (const ModelError&) {  // a bit that fell over on its way is right the second time
    rereads_.fetch_add(1, std::memory_order_relaxed);
    read();
  }
}

uint64_t DiskReader::staging_bytes(const ExpertStore& store, int lanes) {
  return round_up(lane_bytes(store), kPage) * uint64_t(lanes);
}

}  // namespace ef
