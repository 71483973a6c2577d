// Keys and values of beginnings that several prompts share, in the blocks of the paged KV cache: a tree of full blocks,
// found by the tokens they hold and the block before them, kept while the pool has room, oldest use first to leave.
// Tokens are compared, not only their hash: one client's blocks never answer for another's tokens.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "expertflow/base/ids.h"
#include "expertflow/model/kv_cache.h"

namespace ef {

struct PrefixCacheStats {
  uint64_t queried_tokens = 0, hit_tokens = 0;  ///< of prompts that were looked up
  uint64_t blocks = 0, evicted = 0;             ///< kept now; given back so far
};

class PrefixCache {
 public:
  /// kv must outlive it.
  explicit PrefixCache(KvCache& kv) : kv_(kv) {}
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// Where a sequence stands in the tree.
  struct Cursor {
    uint64_t node = 0;   ///< 0: the root
    int64_t blocks = 0;  ///< that lead there
  };

  /// The longest kept beginning of the prompt, always short of its last token, which has to be computed for its logits.
  /// Models with sliding windows: one whose windows are still there.
  int64_t match(std::span<const TokenId> prompt) const;
  /// The same, into an open sequence that holds nothing yet; cursor is where it then stands. Returns tokens.
  int64_t attach(SequenceId sequence, std::span<const TokenId> prompt, Cursor& cursor);
  /// A prompt that was attached begins: once a request, however often it had to try.
  void count(uint64_t prompt_tokens, int64_t found) {
    stats_.queried_tokens += prompt_tokens, stats_.hit_tokens += uint64_t(found);
  }
  /// Keeps the full blocks of a sequence that holds `tokens` (at least kv.length of them) beyond the cursor.
  void record(SequenceId sequence, std::span<const TokenId> tokens, Cursor& cursor);

  /// Keeps none of what leads there any more, as far as nothing else is kept behind it: its numbers cannot be trusted.
  void forget(Cursor& cursor);

  /// Gives blocks back, oldest use first, until the group has so many free; false if it cannot.
  bool make_room(int group, int64_t blocks);
  /// Blocks that make_room() could give back.
  int64_t evictable(int group) const;
  PrefixCacheStats stats() const;

 private:
  struct Node {
    uint64_t parent = 0;
    std::vector<TokenId> tokens;  ///< [block_tokens]
    std::vector<int32_t> blocks;  ///< [groups], -1: not kept
    uint64_t used = 0;            ///< number of the last use
    int64_t depth = 0;
    int children = 0;
  };
  uint64_t find(uint64_t parent, std::span<const TokenId> tokens) const;
  std::vector<uint64_t> path(std::span<const TokenId> prompt) const;
  bool free_of_sequences(int group, int32_t block) const { return kv_.references(group, block) == 1; }
  bool evict_one(int group);
  void remove(uint64_t id);
  void prune(uint64_t id);

  KvCache& kv_;
  std::unordered_map<uint64_t, Node> nodes_;
  std::unordered_multimap<uint64_t, uint64_t> index_;  ///< hash of parent and tokens -> node
  uint64_t next_ = 1, uses_ = 0;
  PrefixCacheStats stats_;
};

}  // namespace ef
