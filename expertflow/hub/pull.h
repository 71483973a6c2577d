// A model, or a file, from a hub to a folder.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "expertflow/hub/repository.h"

namespace ef {

struct PullOptions {
  std::string address;
  std::filesystem::path out;  ///< folder; empty: the repository's name, or "." for a URL
  std::string endpoint = "https://huggingface.co";
  std::string token;   ///< for the endpoint alone
  std::string sha256;  ///< of a plain URL's file; empty: not checked
  int connections = 4;
  DownloadPolicy policy;  ///< credentials are set here
  std::function<std::unique_ptr<HttpClient>()> make_client;
};

struct PullReport {
  std::filesystem::path folder;
  std::vector<std::string> downloaded, already_there;
  uint64_t bytes = 0;  ///< of all files
};

/// Bytes on disk and bytes in all (0: unknown).
using PullProgress = std::function<void(uint64_t, uint64_t)>;

/// ConfigError: an address or option that cannot be honoured. Others as download() and list_repository(); too little
/// space on the disk is a DeviceError before anything is fetched.
PullReport pull(const PullOptions& options, const PullProgress& progress = {});

}  // namespace ef
