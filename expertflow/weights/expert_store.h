// The slow tier: where each routed expert's bytes are, as one unit whatever the file's layout, and how they become a
// slot.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "expertflow/backend/backend.h"
#include "expertflow/base/ids.h"
#include "expertflow/weights/tensor_directory.h"

namespace ef {

enum class ExpertRole : uint8_t {
  kGate,
  kUp,
  kDown,  ///< matrices
  kGateScales,
  kUpScales,
  kDownScales,  ///< float32 block scales of kF8E4M3
  kGateBias,
  kUpBias,
  kDownBias,  ///< float32 vectors
};

/// A part of a slot. Slots hold the kernels' layout: gate and up [ffn, hidden], down [hidden, ffn], biases and scales
/// float32.
struct ExpertPart {
  ExpertRole role;
  Format format;
  int64_t rows = 0, cols = 0;
  uint64_t offset = 0;  ///< bytes from the start of the slot, 64-byte aligned
  uint64_t bytes = 0;
  MatrixLayout layout = MatrixLayout::kRows;  ///< of the slot; files hold rows
};

/// How all experts of one layer look in a slot.
struct ExpertLayout {
  std::vector<ExpertPart> parts;
  uint64_t bytes = 0;  ///< slot size, a multiple of 64
  bool operator==(const ExpertLayout&) const;
  const ExpertPart* find(ExpertRole role) const;
};

/// How file bytes become a part.
enum class Unpack : uint8_t {
  kRows,  ///< rows row_begin, row_begin + row_step, ... of the expert's matrix [file_rows, cols], format unchanged
  kTransposed,  ///< file holds [cols, file_rows] (gpt-oss BF16 [E, in, out]); row r of the part is the file's column
                ///< row_begin + r * row_step
  kMxfp4Pairs,  ///< Hugging Face _blocks [file_rows, cols/32, 16] and _scales [file_rows, cols/32], repacked to GGUF's
                ///< MXFP4 blocks; rows as kRows
  kToF32  ///< a vector or matrix in any format with arithmetic, converted; elements row_begin, row_begin + row_step,
          ///< ... Scales stored as U8 are E8M0 exponents.
};

struct PartSource {
  ExpertRole role;
  Unpack unpack = Unpack::kRows;
  TensorInfo tensor;     ///< holds one expert, or all of them stacked outermost
  TensorInfo scales;     ///< kMxfp4Pairs only
  int64_t index = 0;     ///< this expert's place in a stacked tensor; 0 if the tensor is the expert's own
  bool stacked = false;  ///< tensor's outermost dimension is experts
  int64_t row_begin = 0, row_step = 1;
};

/// Sources of one layer: [expert][part], parts in the layout's order.
struct LayerExperts {
  LayerId layer = 0;
  ExpertLayout layout;
  std::vector<std::vector<PartSource>> experts;
};

class ExpertStore {
 public:
  /// The directory must outlive the store. Checks that every source's size agrees with the layout (ModelError).
  ExpertStore(const TensorDirectory& directory, std::vector<LayerExperts> layers);

  /// A read that an expert needs: into the slot itself, or into staging memory from which unpack() fills the slot.
  struct Read {
    int file = 0;
    uint64_t file_offset = 0, bytes = 0;
    bool staged = false;
    uint64_t destination = 0;  ///< offset in the slot, or in staging
  };

  /// Asks how matrices of a format shall lie in slots, before the first fill; layouts do not change sizes.
  void choose_layouts(const std::function<MatrixLayout(Format)>& layout_of);

  bool has_layer(LayerId layer) const;
  const std::vector<LayerExperts>& layers() const { return layers_; }
  const ExpertLayout& layout(LayerId layer) const;
  int experts(LayerId layer) const;  ///< routed experts of the layer, 0 if dense
  uint64_t slot_bytes(LayerId layer) const { return layout(layer).bytes; }
  uint64_t max_slot_bytes() const;
  uint64_t total_bytes() const;              ///< slots of all experts
  uint64_t file_bytes(ExpertKey key) const;  ///< bytes read to fill a slot

  std::vector<Read> reads(ExpertKey key) const;
  uint64_t staging_bytes(ExpertKey key) const;
  /// Fills the parts that are not read straight into the slot. Call it after all reads, also if none is staged: block
  /// scales and biases are checked here, a NaN or a scale out of range is a ModelError naming the tensor.
  void unpack(ExpertKey key, std::span<const std::byte> staging, std::span<std::byte> slot) const;

  /// All of the above with blocking reads; staging is grown as needed. Throws DeviceError on a short read or EIO: the
  /// slot then holds no expert and must not be used.
  void fill(ExpertKey key, std::span<std::byte> slot, std::vector<std::byte>& staging) const;
  const TensorDirectory& directory() const { return directory_; }

  /// Reads the block scales of every expert and checks them as unpack() does, so that a bad file fails at load.
  void check_scales() const;

 private:
  const LayerExperts& at(LayerId layer) const;
  const std::vector<PartSource>& sources(ExpertKey key) const;
  const TensorDirectory& directory_;
  std::vector<LayerExperts> layers_;
  std::vector<int> index_;  ///< by layer, -1 if dense
};

/// Block scales: finite, not negative, at most kMaxBlockScale (weights up to 448 times that; E8M0 bytes taken for
/// numbers are more).
inline constexpr float kMaxBlockScale = 32.f;
void check_block_scales(std::span<const float> scales, const std::string& file, const std::string& tensor);

/// The views that kernels take, over a filled slot.
ExpertView view_slot(const ExpertLayout& layout, const std::byte* slot);

}  // namespace ef
