// Fuzz target: the index of a packed file. (Front and checksums are left out: a mutation would never get past them.)
#include "expertflow/base/errors.h"
#include "expertflow/weights/packed.h"
#include "tests/fuzz/target.h"

bool ef_fuzz::accepts(const uint8_t* data, size_t size) {
  constexpr uint64_t kFile = 1 << 30;
  try {
    const ef::PackedIndex index =
        ef::parse_packed_index({reinterpret_cast<const char*>(data), size}, "fuzz.efpack", kFile);
    const auto within = [](uint64_t offset, uint64_t bytes, uint64_t all) {
      return bytes <= all && offset <= all - bytes;
    };
    for (const auto& [name, f] : index.files)
      expect(within(f.offset, f.bytes, kFile), "a side file outside of the file");
    for (const ef::TensorInfo& t : index.tensors)
      expect(within(t.offset, t.bytes, kFile), "a tensor outside of the file");
    for (const ef::LayerExperts& layer : index.layers) {
      for (const ef::ExpertPart& p : layer.layout.parts) {
        expect(within(p.offset, p.bytes, layer.layout.bytes), "a part outside of the slot");
        expect(p.bytes == uint64_t(p.rows) * ef::row_bytes(p.format, p.cols), "a size that is not the shape's");
      }
      for (const ef::ExpertImage& image : layer.images)
        expect(within(image.offset, image.bytes, kFile) && image.offset % ef::kPackedBlock == 0,
               "an expert outside of the file, or across blocks");
    }
    return true;
  } catch (const ef::Error& error) {
    expect(std::string_view(error.what()).find("fuzz.efpack") != std::string_view::npos,
           "a message without the file's name");
    return false;
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)ef_fuzz::accepts(data, size);
  return 0;
}
