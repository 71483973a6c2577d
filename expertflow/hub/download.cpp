#include "expertflow/hub/download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <thread>

namespace ef {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

std::string without_query(const std::string& url) { return url.substr(0, url.find_first_of("?#")); }

bool is_busy(int status) {
  return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "bytes 5-9/10": first byte and whole size; "bytes */10": no first byte.
struct ContentRange {
  std::optional<uint64_t> first, size;
};
ContentRange parse_content_range(const std::string& text) {
  ContentRange out;
  if (!text.starts_with("bytes ")) return out;
  const size_t dash = text.find('-'), slash = text.find('/');
  if (slash == std::string::npos) return out;
  if (dash != std::string::npos && dash < slash) out.first = parse_number(std::string_view(text).substr(6, dash - 6));
  out.size = parse_number(std::string_view(text).substr(slash + 1));
  return out;
}

milliseconds backoff(int attempt) { return milliseconds(std::min(30000, 1000 << std::min(attempt, 5))); }

/// The file NAME.part with its hash so far, and the entity tag of what it is a part of.
class Part {
 public:
  Part(const DownloadFile& file)
      : file_(file), path_(part_path(file.path)), tag_path_(path_.string() + ".etag"), digest_(start_digest()) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    EF_CHECK(fd_ >= 0, DeviceError, "{}: cannot create: {}", path_.string(), std::strerror(errno));
    std::ifstream in(tag_path_, std::ios::binary);
    std::getline(in, tag_);
    hash_what_is_there();
  }
  ~Part() { ::close(fd_); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  uint64_t size() const { return size_; }
  const std::string& tag() const { return tag_; }

  void restart() {
    EF_CHECK(::ftruncate(fd_, 0) == 0, DeviceError, "{}: cannot be emptied: {}", path_.string(), std::strerror(errno));
    size_ = 0;
    digest_ = start_digest();
    set_tag("");
  }

  /// Written before the bytes, so that a part never belongs to an older tag.
  void set_tag(const std::string& tag) {
    if (tag == tag_) return;
    tag_ = tag;
    if (tag.empty()) {
      ::unlink(tag_path_.c_str());
      return;
    }
    std::ofstream out(tag_path_, std::ios::binary | std::ios::trunc);
    out << tag << '\n';
    out.close();
    EF_CHECK(out.good(), DeviceError, "{}: cannot write", tag_path_.string());
  }

  void append(std::span<const std::byte> bytes) {
    digest_.update(bytes);
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), off_t(size_));
      if (n < 0 && errno == EINTR) continue;
      EF_CHECK(n > 0, DeviceError, "{}: writing failed: {}", path_.string(), std::strerror(n < 0 ? errno : ENOSPC));
      size_ += uint64_t(n);
      bytes = bytes.subspan(size_t(n));
    }
  }

  std::string digest() { return digest_.finish(); }

  void publish() {
    EF_CHECK(::fsync(fd_) == 0, DeviceError, "{}: flushing failed: {}", path_.string(), std::strerror(errno));
    EF_CHECK(::rename(path_.c_str(), file_.path.c_str()) == 0, DeviceError, "{}: cannot be renamed to {}: {}",
             path_.string(), file_.path.string(), std::strerror(errno));
    ::unlink(tag_path_.c_str());
  }
  void discard() {
    ::unlink(path_.c_str());
    ::unlink(tag_path_.c_str());
  }

 private:
  Digest start_digest() const { return file_.checksum.start(file_.size.value_or(0)); }

  void hash_what_is_there() {
    struct stat info {};
    EF_CHECK(::fstat(fd_, &info) == 0, DeviceError, "{}: cannot be read: {}", path_.string(), std::strerror(errno));
    const uint64_t there = uint64_t(info.st_size);
    if (there == 0) return;
    if (tag_.empty() || (file_.size && there > *file_.size)) return restart();
    std::vector<std::byte> buffer(1 << 20);
    while (size_ < there) {
      const ssize_t n = ::pread(fd_, buffer.data(), buffer.size(), off_t(size_));
      if (n < 0 && errno == EINTR) continue;
      EF_CHECK(n > 0, DeviceError, "{}: reading failed: {}", path_.string(), std::strerror(n < 0 ? errno : EIO));
      digest_.update({buffer.data(), size_t(n)});
      size_ += uint64_t(n);
    }
  }

  const DownloadFile& file_;
  const fs::path path_, tag_path_;
  Digest digest_;
  std::string tag_;
  uint64_t size_ = 0;
  int fd_ = -1;
};

/// A tag that says "the same bytes", not merely "about the same".
std::string strong_tag(const HttpResponse& response) {
  const std::string tag = response.header("etag");
  return tag.starts_with("\"") ? tag : "";
}

/// One GET that adds to the part. False if the answer was that the part cannot be continued: start anew.
bool fetch_once(HttpClient& client, const DownloadFile& file, const DownloadPolicy& policy, Part& part,
                const DownloadProgress& progress) {
  if (part.tag().empty() && part.size() > 0) part.restart();
  HttpRequest request{file.url, {}};
  if (part.size() > 0) {
    request.headers.emplace_back("Range", fmt::format("bytes={}-", part.size()));
    request.headers.emplace_back("If-Range", part.tag());
  }
  const uint64_t asked_from = part.size();
  std::optional<uint64_t> whole = file.size;
  bool anew = false;
  const HttpResponse last = get_following(client, request, policy.credentials, [&](const HttpResponse& r) -> HttpSink {
    if (r.status == 206) {
      const ContentRange range = parse_content_range(r.header("content-range"));
      const bool same = part.tag().empty() || strong_tag(r).empty() || strong_tag(r) == part.tag();
      anew = range.first != part.size() || !same;
      if (anew) return {};
      if (range.size) whole = range.size;
    } else if (r.status == 200) {
      part.restart();  // no ranges here, or another file now
      part.set_tag(strong_tag(r));
      if (const auto length = parse_number(r.header("content-length"))) whole = length;
    } else {
      return {};
    }
    EF_CHECK(!file.size || !whole || *whole == *file.size, RequestError,
             "{}: expected {} bytes, as the hub lists it, found {}", without_query(file.url), *file.size, *whole);
    return [&](std::span<const std::byte> bytes) {
      if (policy.stop && *policy.stop) throw HttpFailure("stopped", false);
      part.append(bytes);
      EF_CHECK(!whole || part.size() <= *whole, RequestError, "{}: expected {} bytes, found more",
               without_query(file.url), *whole);
      if (progress) progress(part.size(), whole);
    };
  });
  if (last.status == 416 && asked_from > 0) {
    // Nothing beyond the part: it is the whole file, or one of another.
    return parse_content_range(last.header("content-range")).size == asked_from &&
           file.size.value_or(asked_from) == asked_from;
  }
  if (anew) return false;
  if (last.status != 200 && last.status != 206) throw_status(file.url, last, !policy.credentials.token.empty());
  if (whole && part.size() < *whole)
    throw HttpFailure(
        fmt::format("{}: the connection ended after {} of {} bytes", without_query(file.url), part.size(), *whole),
        true);
  return true;
}

/// The whole of the file into the part.
void fetch(HttpClient& client, const DownloadFile& file, const DownloadPolicy& policy, Part& part,
           const DownloadProgress& progress) {
  int restarts = 0;
  while (true) {
    const uint64_t before = part.size();
    if (file.size && before == *file.size && before > 0) return;
    try {
      HttpResponse answer = get_patiently(policy, [&] {
        HttpResponse ok;
        ok.status = fetch_once(client, file, policy, part, progress) ? 200 : 0;
        return ok;
      });
      if (answer.status == 200) return;
      EF_CHECK(++restarts < 3, DeviceError, "{}: the server keeps answering with other ranges than asked for",
               without_query(file.url));
      part.restart();
    } catch (const HttpFailure& failure) {
      // get_patiently has given up; bytes gained meanwhile are worth another round.
      if (!failure.passing() || part.size() <= before) throw;
    }
  }
}

std::string digest_of(const fs::path& path, const Checksum& checksum, uint64_t size) {
  std::ifstream in(path, std::ios::binary);
  Digest digest = checksum.start(size);
  std::vector<char> buffer(1 << 20);
  while (in.read(buffer.data(), std::streamsize(buffer.size())) || in.gcount() > 0)
    digest.update(std::as_bytes(std::span(buffer.data(), size_t(in.gcount()))));
  return digest.finish();
}

bool already_there(const DownloadFile& file) {
  std::error_code error;
  const uint64_t size = fs::file_size(file.path, error);
  if (error || (file.size && *file.size != size) || (!file.size && !file.checksum.known())) return false;
  return !file.checksum.known() || digest_of(file.path, file.checksum, size) == file.checksum.expected();
}

}  // namespace

fs::path part_path(const fs::path& path) { return path.string() + ".part"; }

void throw_status(const std::string& url, const HttpResponse& response, bool had_token) {
  const std::string where = without_query(url);
  const int status = response.status;
  if (is_busy(status)) {
    const uint64_t seconds = parse_number(response.header("retry-after")).value_or(0);
    throw HttpFailure(fmt::format("{}: the server answers {}", where, status), true,
                      std::chrono::seconds(std::min<uint64_t>(seconds, 300)));
  }
  switch (status) {
    case 401:
      fail<RequestError>("{}: 401: {}", where,
                         had_token ? "the token in HF_TOKEN is not accepted"
                                   : "no such repository, or one that needs a token: set HF_TOKEN");
    case 403:
      fail<RequestError>(
          "{}: 403: access is refused; a gated model's conditions have to be accepted on its page, and "
          "HF_TOKEN {}",
          where, had_token ? "must be allowed to read it" : "has to be set");
    case 404:
      fail<RequestError>("{}: 404: nothing there; check the name, the revision and the file", where);
    case 416:
      fail<RequestError>("{}: 416: the server has no such range of bytes", where);
    default:
      fail<RequestError>("{}: expected a file, found the answer {}", where, status);
  }
}

HttpResponse get_patiently(const DownloadPolicy& policy, const std::function<HttpResponse()>& attempt) {
  for (int tried = 0;; ++tried) {
    try {
      return attempt();
    } catch (const HttpFailure& failure) {
      if (!failure.passing() || tried + 1 >= policy.attempts) throw;
      if (policy.stop && *policy.stop) throw;
      const milliseconds wait = std::max<milliseconds>(backoff(tried), failure.wait());
      if (policy.warn)
        policy.warn(fmt::format("{}; trying again in {} s ({} of {})", failure.what(), wait.count() / 1000, tried + 1,
                                policy.attempts - 1));
      if (policy.sleep) {
        policy.sleep(wait);
      } else {
        std::this_thread::sleep_for(wait);
      }
    }
  }
}

DownloadResult download(HttpClient& client, const DownloadFile& file, const DownloadPolicy& policy,
                        const DownloadProgress& progress) {
  if (already_there(file)) return DownloadResult::kAlreadyThere;
  for (int round = 0;; ++round) {
    Part part(file);
    if (progress) progress(part.size(), file.size);
    fetch(client, file, policy, part, progress);
    const std::string found = file.checksum.known() ? part.digest() : "";
    if (found == file.checksum.expected()) {
      part.publish();
      return DownloadResult::kDownloaded;
    }
    part.discard();
    const std::string message = fmt::format("{}: expected the checksum {}, found {}: deleted", file.path.string(),
                                            file.checksum.expected(), found);
    EF_CHECK(round == 0, DeviceError, "{}, twice", message);
    if (policy.warn) policy.warn(message + "; downloading once more");
  }
}

}  // namespace ef
