#include "expertflow/model/kv_cache.h"

#include <algorithm>

#include "expertflow/base/errors.h"

namespace ef {

namespace {

struct Widths {
  int kv_heads, k_dim, v_dim;
  bool latent;
};

// Latent attention caches one compressed row a token: [kv_lora | rope], shared by all heads; the value is its first
// kv_lora dims.
Widths widths(const Config& c) {
  if (c.latent) return {1, c.latent->kv_lora + c.latent->rope, c.latent->kv_lora, true};
  return {c.kv_heads, c.head_dim, c.head_dim, false};
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

uint64_t layer_bytes(const Widths& w, const KvOptions& o, int64_t blocks) {
  return uint64_t(blocks) * uint64_t(o.block_tokens) * uint64_t(w.kv_heads) *
         uint64_t(w.k_dim + (w.latent ? 0 : w.v_dim)) * uint64_t(kv_type_bytes(o.type));
}

}  // namespace

std::vector<KvCache::Group> KvCache::plan_groups(const Config& config, const KvOptions& options,
                                                 std::vector<int>& layer_group) {
  std::vector<Group> groups;
  layer_group.clear();
  for (const LayerConfig& layer : config.layers) {
    auto it = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.window == layer.window; });
    if (it == groups.end()) {
      groups.push_back({});
      it = groups.end() - 1;
      it->window = layer.window;
    }
    layer_group.push_back(int(it - groups.begin()));
  }
  const int64_t full = divide_up(options.max_tokens, options.block_tokens) + options.max_sequences - 1;
  for (Group& g : groups) {
    g.max_blocks = int(divide_up(options.max_tokens, options.block_tokens));
    g.blocks = full;
    if (g.window > 0) {
      // Room for the window behind the first row of a chunk, the chunk itself, and a partly used block at either end.
      int64_t reach = divide_up(int64_t(g.window) + options.max_step_tokens, options.block_tokens) + 2;
      g.blocks = std::min(full, reach * options.max_sequences);
    }
  }
  return groups;
}

uint64_t KvCache::bytes_for(const Config& config, const KvOptions& options) {
  std::vector<int> layer_group;
  std::vector<Group> groups = plan_groups(config, options, layer_group);
  uint64_t bytes = 0;
  for (int g : layer_group) bytes += layer_bytes(widths(config), options, groups[size_t(g)].blocks);
  return bytes;
}

uint64_t KvCache::table_bytes_for(const Config& config, const KvOptions& options) {
  std::vector<int> layer_group;
  uint64_t entries = 0;
  for (const Group& g : plan_groups(config, options, layer_group))
    entries += uint64_t(options.max_sequences) * uint64_t(g.max_blocks);
  return entries * sizeof(int32_t);
}

KvCache::KvCache(const Config& config, Backend& backend, const KvOptions& options)
    : options_(options), backend_(&backend) {
  EF_CHECK(
      options.block_tokens > 0 && options.max_tokens > 0 && options.max_sequences > 0 && options.max_step_tokens > 0,
      ConfigError,
      "KV cache: expected positive block_tokens, max_tokens, max_sequences and max_step_tokens, found {}, {}, {}, {}",
      options.block_tokens, options.max_tokens, options.max_sequences, options.max_step_tokens);
  const Widths w = widths(config);
  kv_heads_ = w.kv_heads, k_dim_ = w.k_dim, v_dim_ = w.v_dim, latent_ = w.latent;
  groups_ = plan_groups(config, options, layer_group_);
  for (Group& g : groups_) {
    g.table.assign(size_t(options.max_sequences) * size_t(g.max_blocks), -1);
    g.references.assign(size_t(g.blocks), 0);
    for (int64_t b = g.blocks; b-- > 0;) g.free.push_back(int32_t(b));
    if (!backend.memory_is_host())
      g.device_table = backend.allocate(g.table.size() * sizeof(int32_t), {Region::kDynamic, "block tables"});
  }
  for (size_t l = 0; l < config.layers.size(); ++l) {
    const uint64_t rows = uint64_t(groups_[size_t(layer_group_[l])].blocks) * uint64_t(options.block_tokens) *
                          uint64_t(kv_heads_) * uint64_t(kv_type_bytes(options.type));
    Layer layer;
    const MemoryUse use{Region::kDynamic, "KV cache", LayerId(l)};
    layer.k = backend.allocate(rows * uint64_t(k_dim_), use);
    if (!latent_) layer.v = backend.allocate(rows * uint64_t(v_dim_), use);
    bytes_ += layer.k.size() + layer.v.size();
    layers_.push_back(std::move(layer));
  }
  sequences_.resize(size_t(options.max_sequences));
}

int32_t KvCache::Group::take() {
  const int32_t block = free.back();
  free.pop_back();
  references[size_t(block)] = 1;
  return block;
}

void KvCache::Group::drop(int32_t& block) {
  EF_DCHECK(references[size_t(block)] > 0);
  if (--references[size_t(block)] == 0) free.push_back(block);
  block = -1;
}

int32_t KvCache::block(int group, SequenceId sequence, int64_t index) const {
  const Group& g = groups_[size_t(group)];
  return g.table[size_t(sequence) * size_t(g.max_blocks) + size_t(index)];
}

void KvCache::retain(int group, int32_t block) {
  EF_DCHECK(references(group, block) > 0);
  ++groups_[size_t(group)].references[size_t(block)];
}

void KvCache::release(int group, int32_t block) { groups_[size_t(group)].drop(block); }

void KvCache::adopt(SequenceId sequence, std::span<const std::vector<int32_t>> blocks) {
  Sequence& s = sequences_[size_t(sequence)];
  EF_DCHECK(s.open && s.length == 0 && blocks.size() == groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    EF_DCHECK(int64_t(blocks[g].size()) <= groups_[g].max_blocks && blocks[g].size() == blocks[0].size());
    int32_t* row = groups_[g].table.data() + size_t(sequence) * size_t(groups_[g].max_blocks);
    for (size_t b = 0; b < blocks[g].size(); ++b) {
      if (blocks[g][b] >= 0) retain(int(g), blocks[g][b]);
      row[b] = blocks[g][b];
    }
  }
  s.length = int64_t(blocks[0].size()) * options_.block_tokens;
}

int64_t KvCache::missing_blocks(int group, SequenceId sequence, int64_t tokens) const {
  const Group& g = groups_[size_t(group)];
  const Sequence& s = sequences_[size_t(sequence)];
  const int64_t first = s.length / options_.block_tokens;
  const int64_t last = std::min<int64_t>(divide_up(s.length + tokens, options_.block_tokens), g.max_blocks);
  const int32_t* row = g.table.data() + size_t(sequence) * size_t(g.max_blocks);
  return std::count(row + first, row + std::max(first, last), -1);
}

SequenceId KvCache::open(int64_t rope_length) {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].open) continue;
    sequences_[i] = {true, 0, rope_length};
    return SequenceId(i);
  }
  fail<RequestError>("all {} sequences of the KV cache are in use", sequences_.size());
}

void KvCache::close(SequenceId sequence) {
  Sequence& s = sequences_[size_t(sequence)];
  EF_DCHECK(s.open);
  for (Group& g : groups_) {
    int32_t* row = g.table.data() + size_t(sequence) * size_t(g.max_blocks);
    for (int b = 0; b < g.max_blocks; ++b)
      if (row[b] >= 0) g.drop(row[b]);
  }
  s = {};
}

void KvCache::reserve(SequenceId sequence, int64_t tokens) {
  const Sequence& s = sequences_[size_t(sequence)];
  EF_DCHECK(s.open);
  EF_CHECK(tokens <= options_.max_step_tokens || groups_.size() == 1, RequestError,
           "a step of {} tokens exceeds the {} that the KV cache was planned for", tokens, options_.max_step_tokens);
  const int64_t first = s.length / options_.block_tokens, last = divide_up(s.length + tokens, options_.block_tokens);
  for (const Group& g : groups_) {
    EF_CHECK(last <= g.max_blocks, RequestError, "the context is full: {} tokens held, {} more asked, room for {}",
             s.length, tokens, int64_t(g.max_blocks) * options_.block_tokens);
    const int32_t* row = g.table.data() + size_t(sequence) * size_t(g.max_blocks);
    const auto missing = std::count(row + first, row + last, -1);
    EF_CHECK(missing <= int64_t(g.free.size()), RequestError,
             "the KV cache is full: {} blocks of {} tokens asked, {} free of {}", missing, options_.block_tokens,
             g.free.size(), g.blocks);
  }
  for (Group& g : groups_) {
    int32_t* row = g.table.data() + size_t(sequence) * size_t(g.max_blocks);
    for (int64_t b = first; b < last; ++b)
      if (row[b] < 0) row[b] = g.take();
  }
}

void KvCache::unreserve(SequenceId sequence) {
  const int64_t used = divide_up(sequences_[size_t(sequence)].length, options_.block_tokens);
  for (Group& g : groups_) {
    int32_t* row = g.table.data() + size_t(sequence) * size_t(g.max_blocks);
    for (int64_t b = used; b < g.max_blocks; ++b)
      if (row[b] >= 0) g.drop(row[b]);
  }
}

void KvCache::advance(SequenceId sequence, int64_t tokens) {
  Sequence& s = sequences_[size_t(sequence)];
  s.length += tokens;
  for (Group& g : groups_) {
    if (g.window == 0) continue;
    // The next row sees positions > length - window; a sequence that begins with this one's full blocks sees a little
    // more. Whole blocks before that are done with.
    const int64_t full = s.length / options_.block_tokens * options_.block_tokens;
    const int64_t done = std::max<int64_t>(0, full - g.window + 1) / options_.block_tokens;
    int32_t* row = g.table.data() + size_t(sequence) * size_t(g.max_blocks);
    for (int64_t b = 0; b < done; ++b)
      if (row[b] >= 0) g.drop(row[b]);
  }
}

const int32_t* KvCache::device_block_table(int group, Stream& stream) {
  Group& g = groups_[size_t(group)];
  if (!g.device_table) return g.table.data();
  backend_->copy_to_device(g.device_table.data(), g.table.data(), g.table.size() * sizeof(int32_t), stream);
  return g.device_table.as<int32_t>();
}

KvView KvCache::view(LayerId layer) const {
  const Layer& l = layers_[size_t(layer)];
  return {options_.type, options_.block_tokens, kv_heads_, k_dim_, v_dim_, l.k.data(), l.v.data()};
}

}  // namespace ef
