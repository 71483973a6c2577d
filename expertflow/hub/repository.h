// A repository's files as the hub lists them, and those of them that a model needs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "expertflow/hub/address.h"
#include "expertflow/hub/download.h"

namespace ef {

struct HubFile {
  std::string path;
  uint64_t size = 0;
  Checksum checksum;
};

struct HubRepository {
  std::string commit;  ///< what the revision stands for now: all files come from the same state
  std::vector<HubFile> files;
};

/// Asks {endpoint}/api/models. RequestError, DeviceError as download(); ModelError for an answer that makes no sense.
HubRepository list_repository(HttpClient& client, const std::string& endpoint, const HubAddress& address,
                              const DownloadPolicy& policy);

/// What to fetch. Without a pattern: config, tokenizer, chat template and safetensors of the folder itself, or the one
/// GGUF that there is. A GGUF comes with all its parts. RequestError: nothing fits, or several GGUF models do (listed).
std::vector<HubFile> choose_files(const HubRepository& repository, const HubAddress& address);

/// {endpoint}/owner/name/resolve/commit/path
std::string file_url(const std::string& endpoint, const HubAddress& address, const std::string& commit,
                     const std::string& path);

}  // namespace ef
