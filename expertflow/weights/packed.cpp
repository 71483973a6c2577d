#include "expertflow/weights/packed.h"

#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "expertflow/base/errors.h"
#include "expertflow/quant/tiles.h"
#include "expertflow/weights/checked.h"

namespace ef {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxIndex = 256u << 20;
constexpr std::string_view kRoles[] = {"gate",        "up",        "down",    "gate_scales", "up_scales",
                                       "down_scales", "gate_bias", "up_bias", "down_bias"};

constexpr std::string_view kLayouts[] = {"rows", "tiles16"};  // by MatrixLayout

struct Front {
  char magic[8];
  uint32_t version, block;
  uint64_t file_bytes, index_offset, index_bytes, index_checksum, front_checksum;
};
static_assert(sizeof(Front) == 56);

uint64_t text_checksum(std::string_view text) { return image_checksum(std::as_bytes(std::span(text))); }
uint64_t front_checksum(const Front& front) {
  return image_checksum(std::as_bytes(std::span(&front, 1)).first(offsetof(Front, front_checksum)));
}

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

// A value of the index, with its place for messages.
struct Field {
  const json& value;
  std::string where;  // "x.efpack: index: layers[3].parts[0]"

  [[noreturn]] void wrong(std::string_view expected) const {
    fail<ModelError>("{}: expected {}, found {}", where, expected,
                     printable(value.dump(-1, ' ', true, json::error_handler_t::replace), 80));
  }
  Field at(const char* key) const {
    if (!value.is_object()) wrong("an object");
    const auto it = value.find(key);
    if (it == value.end()) fail<ModelError>("{}: expected the key \"{}\", found none", where, key);
    return {*it, fmt::format("{}.{}", where, key)};
  }
  Field at(size_t i) const { return {value[i], fmt::format("{}[{}]", where, i)}; }
  size_t size() const {
    if (!value.is_array()) wrong("a list");
    return value.size();
  }
  uint64_t number(uint64_t most) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > most) wrong(fmt::format("a number from 0 to {}", most));
    return value.get<uint64_t>();
  }
  std::string text() const {
    if (!value.is_string()) wrong("a text");
    return value.get<std::string>();
  }
  uint64_t checksum() const {
    const std::string digits = text();
    uint64_t out = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out, 16);
    if (error != std::errc() || end != digits.data() + digits.size() || digits.size() != 16)
      wrong("a checksum of 16 hexadecimal digits");
    return out;
  }
};

void check_range(const Field& field, uint64_t offset, uint64_t bytes, uint64_t file_bytes) {
  EF_CHECK(offset >= kPackedBlock && bytes <= file_bytes && offset <= file_bytes - bytes, ModelError,
           "{}: expected a range within the file's {} bytes, found {} bytes at offset {}", field.where, file_bytes,
           bytes, offset);
}

Format parse_format(const Field& field) {
  const FormatInfo* info = find_format(field.text());
  if (!info) field.wrong("the name of a format");
  return info->format;
}

TensorInfo parse_tensor(const Field& field, const std::string& file, uint64_t file_bytes) {
  TensorInfo t;
  t.name = field.at("name").text();
  t.format = parse_format(field.at("format"));
  const Field shape = field.at("shape");
  constexpr size_t kMaxDims = 8;
  if (shape.size() > kMaxDims) shape.wrong("at most 8 dimensions");
  for (size_t d = 0; d < shape.size(); ++d) t.shape.push_back(int64_t(shape.at(d).number(INT64_MAX)));
  t.offset = field.at("offset").number(file_bytes);
  t.bytes = checked_tensor_bytes(file, t.name, t.format, t.shape);
  check_range(field, t.offset, t.bytes, file_bytes);
  return t;
}

ExpertPart parse_part(const Field& field, uint64_t slot_bytes) {
  const std::string role = field.at("role").text();
  const auto* found = std::find(std::begin(kRoles), std::end(kRoles), role);
  if (found == std::end(kRoles)) field.at("role").wrong("the name of an expert's part");
  ExpertPart part{ExpertRole(found - std::begin(kRoles)), parse_format(field.at("format")), 0, 0, 0, 0};
  constexpr uint64_t kMostElements = uint64_t(1) << 40;
  part.rows = int64_t(field.at("rows").number(kMostElements));
  part.cols = int64_t(field.at("cols").number(kMostElements));
  part.offset = field.at("offset").number(slot_bytes);
  const FormatInfo& info = format_info(part.format);
  EF_CHECK(part.rows > 0 && part.cols > 0 && part.cols % info.block_elements == 0, ModelError,
           "{}: expected rows of whole {} blocks, found [{}, {}]", field.where, info.name, part.rows, part.cols);
  const auto row = checked_mul(uint64_t(part.cols / info.block_elements), uint64_t(info.block_bytes));
  const auto bytes = row ? checked_mul(*row, uint64_t(part.rows)) : std::nullopt;
  EF_CHECK(bytes && part.offset % 64 == 0 && *bytes <= slot_bytes - part.offset, ModelError,
           "{}: expected a part within a slot of {} bytes, found [{}, {}] at {}", field.where, slot_bytes, part.rows,
           part.cols, part.offset);
  part.bytes = *bytes;
  return part;
}

MatrixLayout parse_layout(const Field& field, const ExpertPart& part) {
  const std::string name = field.text();
  const auto* found = std::find(std::begin(kLayouts), std::end(kLayouts), name);
  EF_CHECK(found != std::end(kLayouts), ModelError,
           "{}: expected the layout \"rows\" or \"tiles16\", found \"{}\": pack the model again with this version",
           field.where, printable(name));
  const auto layout = MatrixLayout(found - std::begin(kLayouts));
  if (layout == MatrixLayout::kTiles16 && (part.role > ExpertRole::kDown || !has_tiles(part.format)))
    field.wrong("\"rows\", since this part has no tiles");
  return layout;
}

LayerExperts parse_layer(const Field& field, uint64_t file_bytes) {
  LayerExperts layer;
  layer.layer = LayerId(field.at("layer").number(1 << 20));
  layer.layout.bytes = field.at("slot_bytes").number(file_bytes);
  const uint64_t slot = layer.layout.bytes, first = field.at("offset").number(file_bytes);
  EF_CHECK(slot > 0 && slot % kPackedBlock == 0 && first % kPackedBlock == 0, ModelError,
           "{}: expected whole blocks of {} bytes, found slots of {} at offset {}", field.where, kPackedBlock, slot,
           first);
  const Field parts = field.at("parts");
  uint64_t end = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    layer.layout.parts.push_back(parse_part(parts.at(i), slot));
    const ExpertPart& part = layer.layout.parts.back();
    layer.image_layouts.push_back(parse_layout(parts.at(i).at("layout"), part));
    EF_CHECK(part.offset >= end, ModelError, "{}: expected it behind byte {} of the slot, found it at {}",
             parts.at(i).where, end, part.offset);
    end = part.offset + part.bytes;
  }
  const Field sums = field.at("checksums");
  const auto all = checked_mul(sums.size(), slot);
  EF_CHECK(all.has_value(), ModelError, "{}: {} slots of {} bytes are too many", field.where, sums.size(), slot);
  check_range(field, first, *all, file_bytes);
  for (size_t e = 0; e < sums.size(); ++e) layer.images.push_back({0, first + e * slot, slot, sums.at(e).checksum()});
  return layer;
}

class PackedFiles final : public SideFiles {
 public:
  PackedFiles(std::shared_ptr<const ByteSource> source, std::map<std::string, PackedIndex::SideFile> files)
      : source_(std::move(source)), files_(std::move(files)) {}
  bool holds(const std::string& name) const override { return files_.count(name) > 0; }
  std::string where(const std::string& name) const override { return source_->name() + ": " + name; }
  std::optional<std::string> read(const std::string& name, uint64_t max_bytes) const override {
    const auto it = files_.find(name);
    if (it == files_.end()) return std::nullopt;
    const PackedIndex::SideFile& file = it->second;
    EF_CHECK(file.bytes <= max_bytes, ModelError, "{}: expected at most {} bytes, found {}", where(name), max_bytes,
             file.bytes);
    std::string text(file.bytes, '\0');
    source_->read(file.offset, std::as_writable_bytes(std::span(text)));
    EF_CHECK(text_checksum(text) == file.checksum, ModelError, "{}: expected checksum {}, found {}", where(name),
             hex(file.checksum), hex(text_checksum(text)));
    return text;
  }

 private:
  const std::shared_ptr<const ByteSource> source_;
  const std::map<std::string, PackedIndex::SideFile> files_;
};

}  // namespace

std::string_view layout_name(MatrixLayout layout) { return kLayouts[size_t(layout)]; }

std::string PackedIndex::layouts() const {
  bool seen[std::size(kLayouts)] = {};
  for (const LayerExperts& layer : layers)
    for (size_t i = 0; i < layer.layout.parts.size(); ++i)
      if (layer.layout.parts[i].role <= ExpertRole::kDown) seen[size_t(layer.image_layouts[i])] = true;
  std::string text;
  for (size_t i = 0; i < std::size(kLayouts); ++i)
    if (seen[i]) text += (text.empty() ? "" : " and ") + std::string(kLayouts[i]);
  return text;
}

std::string packed_index_text(const PackedIndex& index) {
  json out;
  out["source"] = {{"kind", index.source_kind}, {"name", index.source_name}};
  out["files"] = json::array();
  for (const auto& [name, f] : index.files)
    out["files"].push_back({{"name", name}, {"offset", f.offset}, {"bytes", f.bytes}, {"checksum", hex(f.checksum)}});
  out["tensors"] = json::array();
  for (const TensorInfo& t : index.tensors)
    out["tensors"].push_back(
        {{"name", t.name}, {"format", format_info(t.format).name}, {"shape", t.shape}, {"offset", t.offset}});
  out["layers"] = json::array();
  for (const LayerExperts& layer : index.layers) {
    json row = {{"layer", layer.layer}, {"slot_bytes", layer.layout.bytes}, {"offset", layer.images.at(0).offset}};
    for (size_t i = 0; i < layer.layout.parts.size(); ++i) {
      const ExpertPart& p = layer.layout.parts[i];
      row["parts"].push_back({{"role", kRoles[size_t(p.role)]},
                              {"format", format_info(p.format).name},
                              {"layout", layout_name(layer.image_layouts[i])},
                              {"rows", p.rows},
                              {"cols", p.cols},
                              {"offset", p.offset}});
    }
    for (const ExpertImage& image : layer.images) row["checksums"].push_back(hex(image.checksum));
    out["layers"].push_back(std::move(row));
  }
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

PackedIndex parse_packed_index(std::string_view text, const std::string& file, uint64_t file_bytes) {
  constexpr int kMaxDepth = 8;
  const json root = json::parse(
      text, [&](int depth, json::parse_event_t, json&) { return depth <= kMaxDepth; }, false);
  EF_CHECK(root.is_object(), ModelError, "{}: index: expected a JSON object, found something else", file);
  const Field top{root, file + ": index"};
  PackedIndex index;
  const Field source = top.at("source");
  index.source_kind = source.at("kind").text();
  if (index.source_kind != "gguf" && index.source_kind != "huggingface")
    source.at("kind").wrong("\"gguf\" or \"huggingface\"");
  index.source_name = source.at("name").text();
  const Field files = top.at("files"), tensors = top.at("tensors"), layers = top.at("layers");
  for (size_t i = 0; i < files.size(); ++i) {
    const Field f = files.at(i);
    const PackedIndex::SideFile side{f.at("offset").number(file_bytes), f.at("bytes").number(file_bytes),
                                     f.at("checksum").checksum()};
    check_range(f, side.offset, side.bytes, file_bytes);
    const bool fresh = index.files.emplace(f.at("name").text(), side).second;
    if (!fresh) f.at("name").wrong("each file once");
  }
  for (size_t i = 0; i < tensors.size(); ++i) index.tensors.push_back(parse_tensor(tensors.at(i), file, file_bytes));
  for (size_t i = 0; i < layers.size(); ++i) {
    index.layers.push_back(parse_layer(layers.at(i), file_bytes));
    const auto& all = index.layers;
    if (i > 0 && all[i].layer <= all[i - 1].layer) layers.at(i).at("layer").wrong("layers in ascending order");
  }
  return index;
}

std::string packed_front(uint64_t file_bytes, uint64_t index_offset, std::string_view index) {
  Front front{};
  std::memcpy(front.magic, kPackedMagic.data(), sizeof front.magic);
  front.version = kPackedVersion;
  front.block = uint32_t(kPackedBlock);
  front.file_bytes = file_bytes;
  front.index_offset = index_offset;
  front.index_bytes = index.size();
  front.index_checksum = text_checksum(index);
  front.front_checksum = front_checksum(front);
  std::string out(kPackedBlock, '\0');
  std::memcpy(out.data(), &front, sizeof front);
  return out;
}

PackedIndex read_packed(const ByteSource& source) {
  const std::string& file = source.name();
  EF_CHECK(source.size() >= kPackedBlock, ModelError, "{}: expected a first block of {} bytes, found a file of {}",
           file, kPackedBlock, source.size());
  Front front{};
  source.read(0, std::as_writable_bytes(std::span(&front, 1)));
  EF_CHECK(std::string_view(front.magic, sizeof front.magic) == kPackedMagic, ModelError,
           "{}: expected the magic {}, found {}", file, kPackedMagic, printable({front.magic, sizeof front.magic}));
  EF_CHECK(front.version == kPackedVersion, ModelError,
           "{}: expected packed format {}, found {}: pack the model again with this version", file, kPackedVersion,
           front.version);
  EF_CHECK(front.front_checksum == front_checksum(front), ModelError,
           "{}: first block: expected checksum {}, found {}: it is damaged", file, hex(front.front_checksum),
           hex(front_checksum(front)));
  EF_CHECK(front.block == kPackedBlock, ModelError, "{}: expected blocks of {} bytes, found {}", file, kPackedBlock,
           front.block);
  EF_CHECK(front.file_bytes == source.size(), ModelError, "{}: expected {} bytes, found {}{}", file, front.file_bytes,
           source.size(), source.size() < front.file_bytes ? ": it is cut short" : "");
  EF_CHECK(front.index_bytes <= kMaxIndex && front.index_bytes <= source.size() &&
               front.index_offset <= source.size() - front.index_bytes,
           ModelError, "{}: expected an index within {} bytes, found {} bytes at offset {}", file, source.size(),
           front.index_bytes, front.index_offset);
  std::string index(front.index_bytes, '\0');
  source.read(front.index_offset, std::as_writable_bytes(std::span(index)));
  EF_CHECK(text_checksum(index) == front.index_checksum, ModelError,
           "{}: index: expected checksum {}, found {}: it is damaged", file, hex(front.index_checksum),
           hex(text_checksum(index)));
  return parse_packed_index(index, file, source.size());
}

std::shared_ptr<const SideFiles> packed_files(std::shared_ptr<const ByteSource> source, const PackedIndex& index) {
  return std::make_shared<PackedFiles>(std::move(source), index.files);
}

}  // namespace ef
