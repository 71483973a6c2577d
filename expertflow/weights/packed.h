// A packed model: one file with everything that a run needs, in which each expert is one block that is read straight
// into its slot. Written by engine/pack.h.
//
//   front     4096 bytes: magic "EFPACKED", u32 version, u32 block size, then as u64: file size, offset, size and
//             checksum of the index, checksum of the bytes before. Little-endian; checksums are XXH3 with 64 bits.
//   data      side files, tensors (64-byte aligned), experts (4096-byte aligned, each padded to whole blocks)
//   index     JSON: what lies where (parse_packed_index)
//
// How each matrix lies in its block is named in the index ("rows", "tiles16"). A run whose kernels want it otherwise
// changes it in the slot after the read; a layout that this version does not know is refused by name.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/base/side_files.h"
#include "expertflow/weights/expert_store.h"

namespace ef {

inline constexpr std::string_view kPackedMagic = "EFPACKED";
inline constexpr uint32_t kPackedVersion = 1;
inline constexpr uint64_t kPackedBlock = 4096;

std::string_view layout_name(MatrixLayout layout);

struct PackedIndex {
  /// A small file of the source: of a folder by its name; a GGUF's header without tensors is "metadata.gguf".
  struct SideFile {
    uint64_t offset = 0, bytes = 0, checksum = 0;
  };
  std::string source_kind;  ///< "gguf" or "huggingface"
  std::string source_name;  ///< of the file or folder, for people
  std::map<std::string, SideFile> files;
  std::vector<TensorInfo> tensors;   ///< all but the experts'
  std::vector<LayerExperts> layers;  ///< with images; their `file` is 0

  std::string layouts() const;  ///< of the matrices, for people: "tiles16", "rows and tiles16"
};

std::string packed_index_text(const PackedIndex& index);
/// ModelError naming file and field for whatever is not as it should be: ranges past file_bytes or unaligned, sizes
/// that are not the formats', another slot layout.
PackedIndex parse_packed_index(std::string_view json, const std::string& file, uint64_t file_bytes);

/// The first block of a file.
std::string packed_front(uint64_t file_bytes, uint64_t index_offset, std::string_view index);
/// Reads front and index. ModelError: another version, a damaged front or index, a file that is cut short (with the
/// bytes expected and found).
PackedIndex read_packed(const ByteSource& source);

/// The side files of a packed file, checked against their checksums when they are read.
std::shared_ptr<const SideFiles> packed_files(std::shared_ptr<const ByteSource> source, const PackedIndex& index);

}  // namespace ef
