// What each family's config becomes in the other file kind. One row a family in families.cpp; a family without a row
// cannot be converted.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "expertflow/model/config.h"
#include "expertflow/quant/formats.h"
#include "expertflow/weights/gguf.h"

namespace ef {

/// Sets keys "{architecture}.{suffix}".
class GgufKeyWriter {
 public:
  GgufKeyWriter(GgufMetadata& metadata, std::string_view architecture)
      : metadata_(metadata), prefix_(std::string(architecture) + ".") {}
  void integer(std::string_view suffix, int64_t value);  ///< u32
  void number(std::string_view suffix, double value);    ///< f32
  void boolean(std::string_view suffix, bool value);
  void text(std::string_view suffix, std::string value);

 private:
  GgufMetadata& metadata_;
  std::string prefix_;
};

void set_text(GgufMetadata& metadata, const std::string& key, std::string value);
void set_integer(GgufMetadata& metadata, const std::string& key, int64_t value);  ///< u32
void set_boolean(GgufMetadata& metadata, const std::string& key, bool value);

/// Which tensors of rope factors llama.cpp reads for a family.
enum class RopeTensor : uint8_t { kNone, kFreqs, kLongShort };

struct ConversionFamily {
  std::string_view arch;       ///< Architecture::name
  std::string_view gguf_arch;  ///< general.architecture
  std::string_view hf_type;    ///< model_type
  std::string_view hf_class;   ///< architectures[0]
  bool permuted_qk = false;    ///< llama.cpp's converter reorders rows of q and k so that rope pairs are neighbours
  bool split_kv_b = false;     ///< kv_b becomes attn_k_b (transposed per head) and attn_v_b
  RopeTensor rope_tensor = RopeTensor::kNone;
  const char* gguf_ffn_norm = "blk.{l}.ffn_norm.weight";
  /// The family's own keys, beside those that all share.
  void (*to_gguf)(const Config& config, GgufKeyWriter& out) = nullptr;
  void (*to_hf)(const Config& config, nlohmann::ordered_json& out) = nullptr;
};
/// Null if the family cannot be converted.
const ConversionFamily* find_family(std::string_view arch);

/// general.architecture and all keys of the architecture, rope's scaling included (its factor tensors apart).
void write_gguf_config(const ConversionFamily& family, const Config& config, GgufMetadata& out);
/// Numbers of each rotated pair to go into the family's tensors of rope factors: name and values. ModelError: a kind of
/// rope that GGUF cannot carry.
std::vector<std::pair<std::string, std::vector<float>>> rope_factor_tensors(const ConversionFamily& family,
                                                                            const Config& config);
/// config.json; dtype is that of most weights.
nlohmann::ordered_json write_hf_config(const ConversionFamily& family, const Config& config, Format dtype);

}  // namespace ef
