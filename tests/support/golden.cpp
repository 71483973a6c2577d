#include "tests/support/golden.h"

#include "expertflow/base/errors.h"
#include "expertflow/weights/safetensors.h"

namespace ef::testing {

namespace {
template <class T>
std::vector<T> integers(const TensorDirectory& directory, const std::string& name) {
  const TensorInfo& tensor = directory.at(name);
  EF_CHECK(tensor.format == Format::kI64, ModelError, "{}: expected I64", name);
  std::vector<int64_t> values(size_t(tensor.elements()));
  directory.read(tensor, 0, std::as_writable_bytes(std::span(values)));
  return {values.begin(), values.end()};
}
}  // namespace

// Where the build unpacked them; tests that were carried to another machine have them beside their folder.
std::filesystem::path fixtures() {
  const std::filesystem::path built = EF_FIXTURES;
  std::error_code none;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  for (const auto& place : {built, folder / "fixtures", folder.parent_path() / "fixtures"})
    if (std::filesystem::exists(place, none)) return place;
  return built;
}

std::vector<GoldenCase> read_golden(const std::filesystem::path& file) {
  TensorDirectory directory;
  read_safetensors_header(std::make_shared<FileSource>(file), directory);
  std::vector<GoldenCase> cases;
  for (int i = 0; directory.find("ids." + std::to_string(i)); ++i) {
    const std::string n = std::to_string(i);
    GoldenCase c;
    c.ids = integers<TokenId>(directory, "ids." + n);
    c.logits = directory.read_f32(directory.at("logits." + n));
    c.greedy = integers<TokenId>(directory, "greedy." + n);
    for (int l = 0; directory.find("experts." + n + "." + std::to_string(l)); ++l)
      c.experts.push_back(integers<int32_t>(directory, "experts." + n + "." + std::to_string(l)));
    cases.push_back(std::move(c));
  }
  EF_CHECK(!cases.empty(), ModelError, "{}: no golden cases", file.string());
  return cases;
}

}  // namespace ef::testing
