// One file over HTTP: resumed after a cut, checked, and visible under its name only when whole.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "expertflow/hub/digest.h"
#include "expertflow/hub/http.h"

namespace ef {

struct DownloadFile {
  std::string url;
  std::filesystem::path path;  ///< its folder exists; NAME.part and NAME.part.etag lie beside it
  std::optional<uint64_t> size;
  Checksum checksum;
};

struct DownloadPolicy {
  HttpCredentials credentials;
  int attempts = 5;  ///< in a row
  /// Waits between attempts: 1 s, 2 s, 4 s ... at most 30 s, or what the server asks for. Tests pass their own.
  std::function<void(std::chrono::milliseconds)> sleep;
  std::function<void(const std::string&)> warn;  ///< about another attempt; may be empty
  const std::atomic<bool>* stop = nullptr;       ///< another file has failed: give up at the next bytes
};

/// Bytes now on disk, and the whole size if known.
using DownloadProgress = std::function<void(uint64_t, std::optional<uint64_t>)>;

enum class DownloadResult { kDownloaded, kAlreadyThere };

/// A file of the right size and checksum is left alone. What a NAME.part holds is kept if the server confirms
/// (If-Range) that the file is still the same; otherwise the download starts anew. A wrong checksum deletes the part,
/// and one more download is tried. RequestError: the server refuses (401, 403, 404 ...), with what to do. DeviceError:
/// the network or the disk fails; NAME.part stays for the next time.
DownloadResult download(HttpClient& client, const DownloadFile& file, const DownloadPolicy& policy,
                        const DownloadProgress& progress = {});

/// Any GET, again after passing faults and from busy servers.
HttpResponse get_patiently(const DownloadPolicy& policy, const std::function<HttpResponse()>& attempt);
/// RequestError or HttpFailure for a status that is no success.
[[noreturn]] void throw_status(const std::string& url, const HttpResponse& response, bool had_token);

std::filesystem::path part_path(const std::filesystem::path& path);

}  // namespace ef
