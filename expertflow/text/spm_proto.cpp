// A reader for the protobuf wire format, as far as ModelProto needs it.
#include <bit>
#include <cstring>

#include "expertflow/base/errors.h"
#include "expertflow/text/spm.h"
#include "expertflow/text/unicode.h"

namespace ef {
namespace {

enum class Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

class ProtoReader {
 public:
  ProtoReader(std::string_view bytes, std::string_view message, std::string_view name, size_t base)
      : bytes_(bytes), message_(message), name_(name), base_(base) {}

  // Moves to the next field; false at the end.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const uint64_t tag = varint();
    field_ = tag >> 3;
    const uint64_t wire = tag & 7;
    if (field_ == 0 || field_ > (1u << 29)) wrong("a field number", tag);
    switch (wire) {
      case 0:
        value_ = varint();
        break;
      case 1:
        value_ = fixed(8);
        break;
      case 2:
        take_bytes();
        break;
      case 5:
        value_ = fixed(4);
        break;
      default:
        wrong("a wire type of 0, 1, 2 or 5", wire);
    }
    wire_ = static_cast<Wire>(wire);
    return true;
  }

  uint64_t field() const { return field_; }
  int64_t integer() const {
    need(Wire::kVarint);
    return static_cast<int64_t>(value_);
  }
  bool boolean() const { return integer() != 0; }
  float number() const {
    need(Wire::kFixed32);
    return std::bit_cast<float>(static_cast<uint32_t>(value_));
  }
  std::string_view bytes() const {
    need(Wire::kBytes);
    return content_;
  }
  ProtoReader message(std::string_view what) const { return ProtoReader(bytes(), what, name_, base_ + content_at_); }

 private:
  [[noreturn]] void wrong(std::string_view expected, uint64_t found) const {
    fail<ModelError>("{}: {} at byte {}: expected {}, found {}", name_, message_, base_ + at_, expected, found);
  }
  void need(Wire wire) const {
    EF_CHECK(wire_ == wire, ModelError, "{}: {}, field {}: expected wire type {}, found {}", name_, message_, field_,
             static_cast<int>(wire), static_cast<int>(wire_));
  }
  void need_bytes(uint64_t count) const {
    if (count > bytes_.size() - at_) {
      fail<ModelError>("{}: {} at byte {}: expected {} more bytes, found {}", name_, message_, base_ + at_, count,
                       bytes_.size() - at_);
    }
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      need_bytes(1);
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    wrong("a varint of at most 10 bytes", value);
  }
  uint64_t fixed(size_t size) {
    need_bytes(size);
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i)
      value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes_[at_ + i])) << (8 * i);
    at_ += size;
    return value;
  }
  void take_bytes() {
    const uint64_t size = varint();
    need_bytes(size);
    content_at_ = at_;
    content_ = bytes_.substr(at_, size);
    at_ += size;
  }

  std::string_view bytes_, message_, name_;
  size_t base_, at_ = 0, content_at_ = 0;
  uint64_t field_ = 0, value_ = 0;
  Wire wire_ = Wire::kVarint;
  std::string_view content_;
};

SpmPiece read_piece(ProtoReader reader, std::string_view name, size_t index) {
  SpmPiece piece;
  while (reader.next()) {
    if (reader.field() == 1) piece.text = reader.bytes();
    if (reader.field() == 2) piece.score = reader.number();
    if (reader.field() == 3) {
      const int64_t type = reader.integer();
      EF_CHECK(type >= 1 && type <= 6, ModelError, "{}: pieces[{}].type: expected 1 to 6, found {}", name, index, type);
      piece.type = static_cast<PieceType>(type);
    }
  }
  EF_CHECK(!piece.text.empty(), ModelError, "{}: pieces[{}].piece: expected a text, found none", name, index);
  return piece;
}

void read_trainer(ProtoReader reader, SpmModel& model, std::string_view name) {
  while (reader.next()) {
    switch (reader.field()) {
      case 3: {
        const int64_t kind = reader.integer();
        EF_CHECK(kind == 1 || kind == 2, ModelError,
                 "{}: trainer_spec.model_type: expected 1 (unigram) or 2 (BPE), found {}", name, kind);
        model.kind = static_cast<SpmModel::Kind>(kind);
        break;
      }
      case 24:
        EF_CHECK(!reader.boolean(), ModelError,
                 "{}: trainer_spec.treat_whitespace_as_suffix: expected false, found true", name);
        break;
      case 35:
        model.byte_fallback = reader.boolean();
        break;
      // int32 on the wire: negative numbers are sign-extended to 64 bits.
      case 40:
        model.unk_id = reader.integer();
        break;
      case 41:
        model.bos_id = reader.integer();
        break;
      case 42:
        model.eos_id = reader.integer();
        break;
      case 43:
        model.pad_id = reader.integer();
        break;
      default:
        break;
    }
  }
}

void read_normalizer(ProtoReader reader, SpmModel& model) {
  while (reader.next()) {
    switch (reader.field()) {
      case 2:
        model.charsmap = reader.bytes();
        break;
      case 3:
        model.add_dummy_prefix = reader.boolean();
        break;
      case 4:
        model.remove_extra_whitespaces = reader.boolean();
        break;
      case 5:
        model.escape_whitespaces = reader.boolean();
        break;
      default:
        break;
    }
  }
}

}  // namespace

SpmModel parse_sentencepiece_model(std::string_view bytes, std::string_view name) {
  SpmModel model;
  ProtoReader reader(bytes, "ModelProto", name, 0);
  while (reader.next()) {
    if (reader.field() == 1) model.pieces.push_back(read_piece(reader.message("piece"), name, model.pieces.size()));
    if (reader.field() == 2) read_trainer(reader.message("trainer_spec"), model, name);
    if (reader.field() == 3) read_normalizer(reader.message("normalizer_spec"), model);
  }
  EF_CHECK(!model.pieces.empty(), ModelError, "{}: pieces: expected a vocabulary, found none", name);
  for (const auto& [id, what] : {std::pair{model.unk_id, "unk_id"},
                                 {model.bos_id, "bos_id"},
                                 {model.eos_id, "eos_id"},
                                 {model.pad_id, "pad_id"}}) {
    EF_CHECK(id < static_cast<int64_t>(model.pieces.size()), ModelError,
             "{}: trainer_spec.{}: expected less than {}, found {}", name, what, model.pieces.size(), id);
  }
  return model;
}

// A Darts double array: bits 0-7 and 31 label, bit 8 has a leaf, bit 9 and 10-30 the offset to the children.
CharsMap::CharsMap(std::string_view blob, std::string_view name) {
  const auto word = [&](size_t at) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(static_cast<unsigned char>(blob[at + i])) << (8 * i);
    return value;
  };
  EF_CHECK(blob.size() > 4, ModelError, "{}: precompiled_charsmap: expected more than 4 bytes, found {}", name,
           blob.size());
  const uint32_t size = word(0);
  EF_CHECK(size % 4 == 0 && size > 0 && size <= blob.size() - 4, ModelError,
           "{}: precompiled_charsmap: expected a table of whole words in {} bytes, found a size of {}", name,
           blob.size() - 4, size);
  units_.resize(size / 4);
  for (size_t i = 0; i < units_.size(); ++i) units_[i] = word(4 + 4 * i);
  replacements_ = blob.substr(4 + size);
  EF_CHECK(!replacements_.empty() && replacements_.back() == '\0', ModelError,
           "{}: precompiled_charsmap: expected replacements that end with a zero byte", name);
}

CharsMap::Step CharsMap::next(std::string_view text) const {
  const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
  size_t longest = 0;
  size_t value = 0;
  size_t node = offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size()) break;
    const uint32_t unit = units_[node];
    if ((unit & (1u << 31 | 0xFF)) != byte) break;
    node ^= offset(unit);
    if (node >= units_.size()) break;
    if ((unit >> 8 & 1) != 0) {
      longest = i + 1;
      value = units_[node] & 0x7FFFFFFF;
    }
  }
  if (longest == 0 || value >= replacements_.size()) {
    const size_t n = std::max<size_t>(1, utf8_length(text, 0));
    return {text.substr(0, n), n};
  }
  return {std::string_view(replacements_.c_str() + value), longest};
}

}  // namespace ef
