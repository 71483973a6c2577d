// The slow tier: where each routed expert's bytes are, as one unit whatever the file's layout, and how they become a
// slot.
#pragma once
#include <algorithm>
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

/// An expert of a packed file: the slot's bytes as they are, in one block.
struct ExpertImage {
  int file = 0;
  uint64_t offset = 0, bytes = 0;  ///< bytes: those of the slot
  uint64_t checksum = 0;           ///< XXH3, 64 bits, of them
};

/// Sources of one layer: [expert][part], parts in the layout's order; or images.
struct LayerExperts {
  LayerId layer = 0;
  ExpertLayout layout;
  std::vector<std::vector<PartSource>> experts;
  std::vector<ExpertImage> images;          ///< [expert]; packed files only, `experts` is empty then
  std::vector<MatrixLayout> image_layouts;  ///< [part]: how the images hold it; slots may want another (layout.parts)
  size_t count() const { return std::max(experts.size(), images.size()); }
};

struct ByteRange {
  int file = 0;
  uint64_t offset = 0, bytes = 0;
};

/// Rows [row_begin, row_begin + rows) of one part, out of a unit's bytes.
struct FillPiece {
  size_t part = 0;  ///< of the layout
  int64_t row_begin = 0, rows = 0;
  int64_t file_row = 0;     ///< row of the file's matrix with which the unit's bytes begin
  uint64_t raw_offset = 0;  ///< of these bytes within the unit's first range
};
/// A step on the way from files to a slot: once its ranges are in memory, unpack() writes what they hold. Units of an
/// expert write to places of their own, in any order. At most about kReadBytes, except where a layout cannot be cut.
struct FillUnit {
  std::vector<ByteRange> ranges;  ///< one; two for a MXFP4 pair: blocks, scales
  std::vector<FillPiece> pieces;
};

class ExpertStore {
 public:
  /// The directory must outlive the store. Checks that every source's size agrees with the layout (ModelError).
  ExpertStore(const TensorDirectory& directory, std::vector<LayerExperts> layers);

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

  /// The expert's block, if this is a packed file; it is read into the slot as it is. Null otherwise.
  const ExpertImage* image(ExpertKey key) const;
  /// The image's bytes lie in the slot. ModelError, naming file, layer, expert, expected and found, unless they have
  /// its checksum. Then brings the matrices into the slot's layout, in place, where the file holds another one.
  void finish_image(ExpertKey key, std::span<std::byte> slot) const;

  /// What is to be read and unpacked, in the order of the files. Empty for images.
  std::vector<FillUnit> units(ExpertKey key) const;
  /// Writes the parts that a unit brings. raw[i]: the bytes of its range i. Block scales and biases are checked here, a
  /// NaN or a scale out of range is a ModelError naming the tensor. The one place where slots get their layout.
  void unpack(ExpertKey key, const FillUnit& unit, std::span<const std::byte* const> raw,
              std::span<std::byte> slot) const;

  /// All of the above with blocking reads, one after the other; staging is grown as needed. Throws DeviceError on a
  /// short read or EIO: the slot then holds no expert and must not be used.
  void fill(ExpertKey key, std::span<std::byte> slot, std::vector<std::byte>& staging) const;
  const TensorDirectory& directory() const { return directory_; }

  /// Reads the block scales of every expert and checks them as unpack() does, so that a bad file fails at load. Nothing
  /// is read where formats have no scales of their own; images were checked when they were written.
  void check_scales() const;

 private:
  const LayerExperts& at(LayerId layer) const;
  const std::vector<PartSource>& sources(ExpertKey key) const;
  const TensorDirectory& directory_;
  std::vector<LayerExperts> layers_;
  std::vector<int> index_;  ///< by layer, -1 if dense
};

/// XXH3 with 64 bits.
uint64_t image_checksum(std::span<const std::byte> bytes);

/// Block scales: finite, not negative, at most kMaxBlockScale (weights up to 448 times that; E8M0 bytes taken for
/// numbers are more).
inline constexpr float kMaxBlockScale = 32.f;
void check_block_scales(std::span<const float> scales, const std::string& file, const std::string& tensor);

/// The views that kernels take, over a filled slot.
ExpertView view_slot(const ExpertLayout& layout, const std::byte* slot);

}  // namespace ef
