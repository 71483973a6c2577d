#include "expertflow/engine/model_files.h"

namespace ef {

std::unique_ptr<ModelFiles> open_model(const std::filesystem::path& path) {
  auto files = std::make_unique<ModelFiles>();
  files->checkpoint = open_checkpoint(path);
  files->arch = &find_architecture(files->checkpoint);
  files->config = read_config(*files->arch, files->checkpoint);
  files->binding = bind(*files->arch, files->config, files->checkpoint);
  files->store = std::make_unique<ExpertStore>(files->checkpoint.directory, std::move(files->binding.experts));
  files->binding.experts.clear();
  return files;
}

}  // namespace ef
