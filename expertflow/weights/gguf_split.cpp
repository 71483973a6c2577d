// Split GGUF files: NAME-00001-of-0000N.gguf, opened by any shard. File names count from 1, split.no from 0.
#include <cstdlib>

#include "expertflow/base/errors.h"
#include "expertflow/weights/checked.h"
#include "expertflow/weights/gguf.h"

namespace ef {
namespace {

namespace fs = std::filesystem;

struct ShardName {
  std::string prefix;  ///< with its folder
  int64_t number = 1, count = 1;
};

bool digits(std::string_view text) { return text.find_first_not_of("0123456789") == std::string_view::npos; }

/// "PREFIX-00002-of-00003.gguf"
std::optional<ShardName> parse_shard_name(const std::string& path) {
  constexpr size_t kTail = sizeof("-00001-of-00001.gguf") - 1;
  if (path.size() <= kTail) return std::nullopt;
  const std::string_view tail = std::string_view(path).substr(path.size() - kTail);
  const std::string_view number = tail.substr(1, 5), count = tail.substr(10, 5);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf" || !digits(number) || !digits(count))
    return std::nullopt;
  return ShardName{path.substr(0, path.size() - kTail), std::atoll(std::string(number).c_str()),
                   std::atoll(std::string(count).c_str())};
}

std::string shard_path(const ShardName& name, int64_t number) {
  return fmt::format("{}-{:05d}-of-{:05d}.gguf", name.prefix, number, name.count);
}

struct Shard {
  std::shared_ptr<const ByteSource> source;
  GgufHeader header;
  std::vector<TensorInfo> tensors;
};

Shard open_shard(const std::string& path) {
  Shard shard;
  shard.source = std::make_shared<FileSource>(path);
  shard.header = parse_gguf(*shard.source, shard.tensors);
  return shard;
}

/// split.no and split.count of a shard against the place where its name puts it.
void check_shard(const Shard& shard, const ShardName& name, int64_t number) {
  const GgufMetadata& metadata = shard.header.metadata;
  const int64_t no = metadata.integer("split.no"), count = metadata.integer("split.count");
  EF_CHECK(no == number - 1, ModelError,
           "{}: metadata key split.no: expected {} (it counts from 0, file names from 1), found {}: renamed?",
           metadata.file, number - 1, no);
  EF_CHECK(count == name.count, ModelError,
           "{}: metadata key split.count: expected {} as the file's name says, found {}: renamed?", metadata.file,
           name.count, count);
}

}  // namespace

std::string first_shard(const std::string& path) {
  const std::optional<ShardName> name = parse_shard_name(path);
  return name ? shard_path(*name, 1) : path;
}

void refuse_gguf_part(const fs::path& path) {
  const std::string name = path.filename().string();
  size_t at = std::string::npos;
  for (std::string_view mark : {".gguf.part", ".gguf-part", ".gguf-split-", ".gguf.split-"})
    at = std::min(at, name.find(mark));
  if (at == std::string::npos) return;
  const std::string whole = name.substr(0, at) + ".gguf";
  fail<ModelError>(
      "{}: expected a GGUF file, found one of several byte-wise parts of {}: join all of them in order, as in `cat {}* "
      "> {}`",
      path.string(), whole, name.substr(0, at + 6), whole);
}

GgufHeader read_gguf(const fs::path& path, TensorDirectory& directory) {
  refuse_gguf_part(path);
  Shard given = open_shard(path.string());
  const int64_t count = given.header.metadata.integer_or("split.count", 0);
  if (count <= 1) {
    directory.add_file(std::move(given.source), std::move(given.tensors));
    return std::move(given.header);
  }
  const std::optional<ShardName> name = parse_shard_name(path.string());
  EF_CHECK(name.has_value(), ModelError,
           "{}: expected a name like NAME-00001-of-{:05d}.gguf, found one shard of {} under another name",
           path.string(), count, count);
  check_shard(given, *name, name->number);

  GgufHeader first;
  int64_t tensors = 0, declared = 0;
  for (int64_t number = 1; number <= count; ++number) {
    const std::string file = shard_path(*name, number);
    EF_CHECK(number == name->number || fs::is_regular_file(file), ModelError,
             "{}: expected shard {} of {}, found no such file", file, number, count);
    Shard shard = number == name->number ? std::move(given) : open_shard(file);
    check_shard(shard, *name, number);
    if (number == 1) {
      first = std::move(shard.header);
      declared = first.metadata.integer_or("split.tensors.count", -1);
    }
    tensors += int64_t(shard.tensors.size());
    directory.add_file(std::move(shard.source), std::move(shard.tensors));
  }
  EF_CHECK(declared == -1 || declared == tensors, ModelError,
           "{}: metadata key split.tensors.count: expected {} tensors in all shards together, found {}",
           first.metadata.file, declared, tensors);
  return first;
}

}  // namespace ef
