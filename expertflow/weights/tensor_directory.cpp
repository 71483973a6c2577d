#include "expertflow/weights/tensor_directory.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "expertflow/base/errors.h"
#include "expertflow/weights/checked.h"

namespace ef {

int64_t TensorInfo::elements() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

int64_t TensorInfo::rows() const {
  int64_t n = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
  return n;
}

int64_t TensorInfo::cols() const { return shape.empty() ? 1 : shape.back(); }

std::string TensorInfo::shape_text() const { return ef::shape_text(shape); }

int TensorDirectory::add_file(std::shared_ptr<const ByteSource> source) {
  files_.push_back(std::move(source));
  return int(files_.size()) - 1;
}

int TensorDirectory::add_file(std::shared_ptr<const ByteSource> source, std::vector<TensorInfo> tensors) {
  const int index = add_file(std::move(source));
  for (TensorInfo& tensor : tensors) {
    tensor.file = index;
    add(std::move(tensor));
  }
  return index;
}

void TensorDirectory::add(TensorInfo tensor) {
  EF_DCHECK(tensor.file >= 0 && tensor.file < file_count());
  auto [it, inserted] = index_.emplace(tensor.name, tensors_.size());
  EF_CHECK(inserted, ModelError, "{}: tensor {}: expected each name once, found it already in {}", file_name(tensor),
           printable(tensor.name), file_name(tensors_[it->second]));
  tensors_.push_back(std::move(tensor));
}

const TensorInfo* TensorDirectory::find(std::string_view name) const {
  auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

namespace {

std::string where(const TensorDirectory& directory) {
  if (directory.file_count() == 0) return "checkpoint";
  const std::string& first = directory.file(0).name();
  return directory.file_count() == 1 ? first : fmt::format("{} and {} more files", first, directory.file_count() - 1);
}

}  // namespace

const TensorInfo& TensorDirectory::at(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  EF_CHECK(tensor != nullptr, ModelError, "{}: expected a tensor named {}, found {} tensors and none of that name",
           where(*this), printable(name), tensors_.size());
  EF_CHECK(tensor->elements() != 0, ModelError, "{}: tensor {}: expected at least one element, found shape {}",
           file_name(*tensor), printable(name), tensor->shape_text());
  return *tensor;
}

void TensorDirectory::require(std::span<const std::string> names) const {
  constexpr size_t kListed = 50;
  std::vector<std::string> missing;
  size_t count = 0;
  for (const std::string& name : names) {
    if (find(name) != nullptr) continue;
    if (++count <= kListed) missing.push_back(printable(name));
  }
  EF_CHECK(count == 0, ModelError, "{}: expected {} tensors, {} of them missing: {}{}", where(*this), names.size(),
           count, fmt::join(missing, ", "), count > kListed ? ", ..." : "");
}

uint64_t TensorDirectory::total_bytes() const {
  uint64_t total = 0;
  for (const TensorInfo& tensor : tensors_) total += tensor.bytes;
  return total;
}

void TensorDirectory::read(const TensorInfo& tensor, uint64_t offset_in_tensor, std::span<std::byte> out) const {
  EF_CHECK(offset_in_tensor <= tensor.bytes && out.size() <= tensor.bytes - offset_in_tensor, ModelError,
           "{}: tensor {}: expected a range within its {} bytes, found {} bytes at {}", file_name(tensor),
           printable(tensor.name), tensor.bytes, out.size(), offset_in_tensor);
  try {
    file(tensor.file).read(tensor.offset + offset_in_tensor, out);
  } catch (const DeviceError& error) {
    fail<DeviceError>("tensor {}: {}", printable(tensor.name), error.what());
  }
}

std::vector<std::byte> TensorDirectory::read(const TensorInfo& tensor) const {
  std::vector<std::byte> out(tensor.bytes);
  read(tensor, 0, out);
  return out;
}

std::vector<float> TensorDirectory::read_f32(const TensorInfo& tensor) const {
  const FormatInfo& info = format_info(tensor.format);
  EF_CHECK(info.dequantize != nullptr, ModelError, "{}: tensor {}: expected a format with arithmetic, found {}",
           file_name(tensor), printable(tensor.name), info.name);
  std::vector<float> out(size_t(tensor.elements()));
  // Whole blocks, at most 1 MiB at a time: the stored form of a large tensor is never held beside the float32 one.
  const int64_t blocks = tensor.elements() / info.block_elements;
  const int64_t step = std::max<int64_t>(1, (1 << 20) / info.block_bytes);
  std::vector<std::byte> piece(size_t(std::min(blocks, step)) * size_t(info.block_bytes));
  for (int64_t block = 0; block < blocks; block += step) {
    const int64_t n = std::min(step, blocks - block);
    std::span<std::byte> part(piece.data(), size_t(n) * size_t(info.block_bytes));
    read(tensor, uint64_t(block) * uint64_t(info.block_bytes), part);
    info.dequantize(part.data(), out.data() + block * info.block_elements, n * info.block_elements);
  }
  return out;
}

void TensorDirectory::wrap_files(
    const std::function<std::shared_ptr<const ByteSource>(std::shared_ptr<const ByteSource>)>& wrap) {
  for (auto& file : files_) file = wrap(file);
}

}  // namespace ef
