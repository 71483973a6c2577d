// safetensors: u64 little-endian header length, JSON header, data. https://github.com/huggingface/safetensors (format
// section). Refused with file, tensor, expected and found: header length 0, over 100 MB or past the file; overlaps,
// holes, duplicate names, offsets out of the file, size that is not shape x dtype, unknown dtype, shape overflow.
#pragma once
#include <map>
#include <string>

#include "expertflow/weights/tensor_directory.h"

namespace ef {

/// F8_E8M0 (exponent bytes) is read as kU8, so that nothing can take an exponent for a number.
/// Parses one file's header and adds its tensors to the directory. Returns the __metadata__ strings.
std::map<std::string, std::string> read_safetensors_header(std::shared_ptr<const ByteSource> source,
                                                           TensorDirectory& directory);

/// Reads model.safetensors or model.safetensors.index.json with its shards from a folder. A shard that the index names
/// and the folder lacks, or a tensor that its shard lacks, is named.
void read_safetensors_folder(const std::filesystem::path& folder, TensorDirectory& directory);

}  // namespace ef
