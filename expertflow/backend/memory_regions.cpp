#include "expertflow/backend/memory_regions.h"

#include <algorithm>
#include <tuple>

#include "expertflow/base/align.h"
#include "expertflow/base/errors.h"

namespace ef {
namespace {

// Pieces of no bytes still have an address of their own.
uint64_t extent_of(uint64_t bytes) { return round_up(std::max<uint64_t>(bytes, 1), kRegionAlign); }

std::string text_of(const MemoryUse& use) {
  return use.layer < 0 ? std::string(use.part) : fmt::format("{} of layer {}", use.part, use.layer);
}

}  // namespace

MemoryRegions::MemoryRegions(Backend& backend) : backend_(backend) {
  ended_.reserve(kMostEnded);  // release() does not throw
  backend_.set_regions(this);
}

MemoryRegions::~MemoryRegions() {
  EF_DCHECK(held_.empty());
  backend_.set_regions(nullptr);
}

void MemoryRegions::reserve(Region region, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Reserved& r = reserved_[size_t(region)];
  EF_DCHECK(used_[size_t(region)] == 0);
  r = {};  // before the next: never both
  bytes = round_up(bytes, kRegionAlign);
  if (bytes == 0) return;
  r.memory = backend_.allocate_apart(bytes);
  r.free = FreeExtents(bytes);
}

void MemoryRegions::refuse(uint64_t bytes, const MemoryUse& use, const Reserved& r) const {
  fail<DeviceError>(
      "{}: {} region: {} bytes asked for {}; {} of {} are free, the largest extent {} (fragmentation {:.2f})",
      backend_.name(), region_name(use.region), bytes, text_of(use), r.free.free_bytes(), r.memory.size(),
      r.free.largest(), r.free.fragmentation());
}

std::byte* MemoryRegions::cut(uint64_t bytes, const MemoryUse& use) {
  Reserved& r = reserved_[size_t(use.region)];
  if (bytes > r.memory.size()) refuse(bytes, use, r);
  const auto offset = r.free.take(extent_of(bytes));
  if (!offset) refuse(bytes, use, r);
  return r.memory.data() + *offset;
}

Buffer MemoryRegions::allocate(uint64_t bytes, const MemoryUse& use) {
  const std::lock_guard lock(mutex_);
  Held held;
  std::byte* data = nullptr;
  if (reserved_[size_t(use.region)].memory) {
    data = cut(bytes, use);
  } else {
    held.own = backend_.allocate_apart(bytes);
    data = held.own.data();
  }
  held.piece = {use, bytes, now_, std::nullopt};
  held_.emplace(data, std::move(held));
  uint64_t& used = used_[size_t(use.region)];
  used += bytes;
  peak_[size_t(use.region)] = std::max(peak_[size_t(use.region)], used);
  return Buffer(this, data, bytes);
}

void MemoryRegions::release(std::byte* data, uint64_t size) noexcept {
  const std::lock_guard lock(mutex_);
  const auto it = held_.find(data);
  EF_DCHECK(it != held_.end() && it->second.piece.bytes == size);
  Held& held = it->second;
  Reserved& r = reserved_[size_t(held.piece.use.region)];
  if (!held.own) r.free.give(uint64_t(data - r.memory.data()), extent_of(size));
  used_[size_t(held.piece.use.region)] -= size;
  held.piece.until = now_;
  if (ended_.size() < kMostEnded) {
    ended_.push_back(held.piece);
  } else {
    ended_[oldest_] = held.piece;
    oldest_ = (oldest_ + 1) % kMostEnded;
  }
  held_.erase(it);
}

void MemoryRegions::set_time(uint64_t now) {
  const std::lock_guard lock(mutex_);
  now_ = now;
}

uint64_t MemoryRegions::now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

RegionReport MemoryRegions::report(Region region) const {
  const std::lock_guard lock(mutex_);
  const Reserved& r = reserved_[size_t(region)];
  RegionReport out;
  out.region = region;
  out.reserved = r.memory.size();
  out.used = used_[size_t(region)], out.peak = peak_[size_t(region)];
  out.free = r.free.free_bytes(), out.largest_free = r.free.largest();
  out.fragmentation = r.free.fragmentation();
  out.pieces = size_t(std::count_if(held_.begin(), held_.end(),
                                    [&](const auto& entry) { return entry.second.piece.use.region == region; }));
  return out;
}

std::vector<MemoryPiece> MemoryRegions::pieces() const {
  const std::lock_guard lock(mutex_);
  std::vector<MemoryPiece> out = ended_;
  for (const auto& [data, held] : held_) out.push_back(held.piece);
  const auto rank = [this](const MemoryPiece& p) {
    return std::tuple(p.until.value_or(now_) - p.from, !p.until, p.bytes);
  };
  std::stable_sort(out.begin(), out.end(), [&](const auto& a, const auto& b) { return rank(a) > rank(b); });
  return out;
}

}  // namespace ef
