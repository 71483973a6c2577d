#include "expertflow/sched/prefix_cache.h"

#include <algorithm>

namespace ef {

namespace {

uint64_t hash_of(uint64_t parent, std::span<const TokenId> tokens) {
  uint64_t h = parent * 0x9e3779b97f4a7c15ull;
  for (const TokenId t : tokens) {
    h = (h ^ uint64_t(uint32_t(t))) * 0xff51afd7ed558ccdull;
    h ^= h >> 32;
  }
  return h;
}

}  // namespace

PrefixCache::~PrefixCache() {
  for (auto& [id, node] : nodes_)
    for (int g = 0; g < kv_.groups(); ++g)
      if (node.blocks[size_t(g)] >= 0) kv_.release(g, node.blocks[size_t(g)]);
}

uint64_t PrefixCache::find(uint64_t parent, std::span<const TokenId> tokens) const {
  const auto [begin, end] = index_.equal_range(hash_of(parent, tokens));
  for (auto it = begin; it != end; ++it) {
    const Node& node = nodes_.at(it->second);
    if (node.parent == parent && std::equal(tokens.begin(), tokens.end(), node.tokens.begin(), node.tokens.end()))
      return it->second;
  }
  return 0;
}

// The nodes of the longest beginning that can be used.
std::vector<uint64_t> PrefixCache::path(std::span<const TokenId> prompt) const {
  const size_t size = size_t(kv_.options().block_tokens);
  std::vector<uint64_t> found;
  for (size_t at = 0; at + size < prompt.size(); at += size) {
    const uint64_t node = find(found.empty() ? 0 : found.back(), prompt.subspan(at, size));
    if (node == 0) break;
    found.push_back(node);
  }
  // The next row sees positions > length - window; all of their blocks must be there.
  const auto complete = [&](size_t blocks) {
    for (int g = 0; g < kv_.groups(); ++g) {
      const int64_t length = int64_t(blocks * size), window = kv_.window(g);
      const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, length - window + 1) / int64_t(size);
      for (int64_t b = first; b < int64_t(blocks); ++b)
        if (nodes_.at(found[size_t(b)]).blocks[size_t(g)] < 0) return false;
    }
    return true;
  };
  while (!found.empty() && !complete(found.size())) found.pop_back();
  return found;
}

int64_t PrefixCache::match(std::span<const TokenId> prompt) const {
  return int64_t(path(prompt).size()) * kv_.options().block_tokens;
}

int64_t PrefixCache::attach(SequenceId sequence, std::span<const TokenId> prompt, Cursor& cursor) {
  const std::vector<uint64_t> found = path(prompt);
  cursor = {};
  if (found.empty()) return 0;
  const int64_t count = int64_t(found.size()), size = kv_.options().block_tokens, length = count * size;
  std::vector<std::vector<int32_t>> blocks(size_t(kv_.groups()));
  ++uses_;
  for (const uint64_t id : found) {
    Node& node = nodes_.at(id);
    node.used = uses_;
    for (int g = 0; g < kv_.groups(); ++g) {
      const int64_t window = kv_.window(g), index = int64_t(blocks[size_t(g)].size());
      const bool behind = window > 0 && index < std::max<int64_t>(0, length - window + 1) / size;
      blocks[size_t(g)].push_back(behind ? -1 : node.blocks[size_t(g)]);
    }
  }
  kv_.adopt(sequence, blocks);
  cursor = {found.back(), count};
  return length;
}

void PrefixCache::record(SequenceId sequence, std::span<const TokenId> tokens, Cursor& cursor) {
  const int64_t size = kv_.options().block_tokens, full = kv_.length(sequence) / size;
  for (; cursor.blocks < full; ++cursor.blocks) {
    const auto held = tokens.subspan(size_t(cursor.blocks * size), size_t(size));
    uint64_t id = find(cursor.node, held);
    if (id == 0) {
      if (cursor.node != 0 && !nodes_.contains(cursor.node)) return;  // evicted: what follows cannot be found any more
      id = next_++;
      Node node;
      node.parent = cursor.node;
      node.tokens.assign(held.begin(), held.end());
      node.blocks.assign(size_t(kv_.groups()), -1);
      node.depth = cursor.blocks;
      index_.emplace(hash_of(cursor.node, held), id);
      nodes_.emplace(id, std::move(node));
      if (cursor.node != 0) ++nodes_.at(cursor.node).children;
    }
    Node& node = nodes_.at(id);
    node.used = ++uses_;
    for (int g = 0; g < kv_.groups(); ++g) {
      const int32_t block = kv_.block(g, sequence, cursor.blocks);
      if (node.blocks[size_t(g)] >= 0 || block < 0) continue;
      node.blocks[size_t(g)] = block;
      kv_.retain(g, block);
    }
    cursor.node = id;
  }
}

void PrefixCache::forget(Cursor& cursor) {
  uint64_t id = cursor.node;
  cursor = {};
  for (auto it = nodes_.find(id); it != nodes_.end() && it->second.children == 0; it = nodes_.find(id)) {
    id = it->second.parent;
    remove(it->first);
  }
}

void PrefixCache::remove(uint64_t id) {
  Node& node = nodes_.at(id);
  for (int g = 0; g < kv_.groups(); ++g)
    if (node.blocks[size_t(g)] >= 0) kv_.release(g, node.blocks[size_t(g)]), ++stats_.evicted;
  const auto [begin, end] = index_.equal_range(hash_of(node.parent, node.tokens));
  for (auto it = begin; it != end; ++it)
    if (it->second == id) {
      index_.erase(it);
      break;
    }
  const uint64_t above = node.parent;
  nodes_.erase(id);
  if (const auto parent = nodes_.find(above); parent != nodes_.end()) {
    --parent->second.children;
    prune(above);
  }
}

// A node that keeps nothing and leads nowhere (every block behind a window) goes, and so may those above it.
void PrefixCache::prune(uint64_t id) {
  const Node& node = nodes_.at(id);
  const bool empty = std::all_of(node.blocks.begin(), node.blocks.end(), [](int32_t b) { return b < 0; });
  if (empty && node.children == 0) remove(id);
}

// Of full attention, ends of the tree leave, so that what stays can be found; a window's block may leave anywhere.
bool PrefixCache::evict_one(int group) {
  const bool window = kv_.window(group) > 0;
  uint64_t oldest = 0;
  for (const auto& [id, node] : nodes_) {
    const int32_t block = node.blocks[size_t(group)];
    if (block < 0 || !free_of_sequences(group, block) || (!window && node.children > 0)) continue;
    const Node* best = oldest ? &nodes_.at(oldest) : nullptr;
    if (!best || node.used < best->used || (node.used == best->used && node.depth > best->depth)) oldest = id;
  }
  if (oldest == 0) return false;
  if (window) {
    Node& node = nodes_.at(oldest);
    kv_.release(group, node.blocks[size_t(group)]);
    node.blocks[size_t(group)] = -1;
    ++stats_.evicted;
    prune(oldest);
  } else {
    remove(oldest);
  }
  return true;
}

bool PrefixCache::make_room(int group, int64_t blocks) {
  while (kv_.free_blocks(group) < blocks)
    if (!evict_one(group)) return false;
  return true;
}

int64_t PrefixCache::evictable(int group) const {
  return std::count_if(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
    const int32_t block = entry.second.blocks[size_t(group)];
    return block >= 0 && free_of_sequences(group, block);
  });
}

PrefixCacheStats PrefixCache::stats() const {
  PrefixCacheStats s = stats_;
  for (const auto& [id, node] : nodes_)
    for (const int32_t block : node.blocks) s.blocks += block >= 0;
  return s;
}

}  // namespace ef
