// What `pull` is told to fetch.
#pragma once
#include <string>

namespace ef {

/// A repository of a hub, with what is wanted of it, or one file by its URL.
struct HubAddress {
  std::string url;  ///< a plain URL; empty for a repository
  std::string repository;
  std::string revision = "main";
  std::string pattern;  ///< a file, a pattern with * and ?, or a part of a GGUF's name; empty: what a model needs
};

/// "owner/name", "hf://owner/name[@revision][:pattern]" (the scheme may be left out), "https://...". A page of the hub
/// itself (ENDPOINT/owner/name, .../tree/REV, .../blob/REV/FILE) stands for the repository. ConfigError otherwise.
HubAddress parse_hub_address(const std::string& text, const std::string& endpoint);

/// A path that a server names: relative, without "..", so that it stays inside its folder.
bool is_safe_path(const std::string& path);

}  // namespace ef
