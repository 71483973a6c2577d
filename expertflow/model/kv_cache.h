// Keys and values of all sequences in fixed blocks of one pool a group, reached through block tables.
// Layers with the same reach share a group: full attention (or latent), and each sliding window size. A window group
// gives blocks back as they fall behind the window, so its memory does not grow with the sequence.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "expertflow/backend/backend.h"
#include "expertflow/model/config.h"

namespace ef {

struct KvOptions {
  KvType type = KvType::kF16;
  int block_tokens = 32;
  int64_t max_tokens = 4096;  ///< tokens that all sequences together may hold
  int max_sequences = 1;
  int max_step_tokens = 512;  ///< longest chunk of one sequence in one step (window groups need room for it)
};

using SequenceId = int32_t;

class KvCache {
 public:
  KvCache(const Config& config, Backend& backend, const KvOptions& options);

  /// Bytes that a cache with these options takes, for budgets before anything is loaded.
  static uint64_t bytes_for(const Config& config, const KvOptions& options);
  /// Beside them, block tables where the backend's memory is not the host's.
  static uint64_t table_bytes_for(const Config& config, const KvOptions& options);

  /// rope_length: tokens that the sequence may reach; rope kinds that depend on length (dynamic, longrope) use it for
  /// all of the sequence's tokens, so that chunking and decoding rotate alike. RequestError if all sequences are taken.
  SequenceId open(int64_t rope_length);
  void close(SequenceId sequence);
  bool is_open(SequenceId sequence) const {
    return sequence >= 0 && size_t(sequence) < sequences_.size() && sequences_[size_t(sequence)].open;
  }
  int64_t length(SequenceId sequence) const { return sequences_[size_t(sequence)].length; }
  int64_t rope_length(SequenceId sequence) const { return sequences_[size_t(sequence)].rope_length; }

  /// Makes room for positions [length, length + tokens). RequestError with the counts if the pool is full; nothing is
  /// taken then.
  void reserve(SequenceId sequence, int64_t tokens);
  /// Gives back what was reserved beyond the sequence's length: a step that will not happen.
  void unreserve(SequenceId sequence);
  /// After the step: the sequence holds `tokens` more; blocks behind a window go back to the pool.
  void advance(SequenceId sequence, int64_t tokens);

  /// Block `index` of a sequence's table; -1: not reached, or behind the window.
  int32_t block(int group, SequenceId sequence, int64_t index) const;
  /// A block's further holder: it does not go back to the pool before release(). Only full blocks may be shared.
  void retain(int group, int32_t block);
  void release(int group, int32_t block);
  int references(int group, int32_t block) const { return groups_[size_t(group)].references[size_t(block)]; }
  /// An open sequence that holds nothing yet begins with these blocks, which others hold too: [groups][count], -1 where
  /// a window has passed. Its length becomes count * block_tokens.
  void adopt(SequenceId sequence, std::span<const std::vector<int32_t>> blocks);

  KvView view(LayerId layer) const;
  int group_of(LayerId layer) const { return layer_group_[size_t(layer)]; }
  int groups() const { return int(groups_.size()); }
  /// [max_sequences, max_blocks] of a group, row = SequenceId; valid until the next reserve, advance, open or close.
  std::span<const int32_t> block_table(int group) const { return groups_[size_t(group)].table; }
  /// The same in the backend's memory, copied in stream order where that is not the host's.
  const int32_t* device_block_table(int group, Stream& stream);
  int max_blocks(int group) const { return groups_[size_t(group)].max_blocks; }
  int64_t free_blocks(int group) const { return int64_t(groups_[size_t(group)].free.size()); }
  int64_t blocks(int group) const { return groups_[size_t(group)].blocks; }
  int window(int group) const { return groups_[size_t(group)].window; }  ///< 0: full attention
  /// Blocks that reserve() would take from the pool.
  int64_t missing_blocks(int group, SequenceId sequence, int64_t tokens) const;
  uint64_t bytes() const { return bytes_; }
  const KvOptions& options() const { return options_; }

 private:
  struct Group {
    int window = 0;
    int64_t blocks = 0;
    int max_blocks = 0;               ///< columns of the table
    std::vector<int32_t> free;        ///< block ids, taken from the back
    std::vector<int32_t> references;  ///< [blocks], 0: free
    int32_t take();
    void drop(int32_t& block);   ///< one holder less; the entry becomes -1
    std::vector<int32_t> table;  ///< [max_sequences, max_blocks], -1: none
    Buffer device_table;         ///< empty where the backend's memory is the host's
  };
  struct Sequence {
    bool open = false;
    int64_t length = 0, rope_length = 0;
  };
  struct Layer {
    Buffer k, v;
  };
  static std::vector<Group> plan_groups(const Config& config, const KvOptions& options, std::vector<int>& layer_group);

  KvOptions options_;
  Backend* backend_;
  int kv_heads_ = 0, k_dim_ = 0, v_dim_ = 0;
  bool latent_ = false;
  std::vector<Group> groups_;
  std::vector<int> layer_group_;
  std::vector<Layer> layers_;
  std::vector<Sequence> sequences_;
  uint64_t bytes_ = 0;
};

}  // namespace ef
