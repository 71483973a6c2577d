#include "expertflow/hub/pull.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <thread>

namespace ef {
namespace {

namespace fs = std::filesystem;

uint64_t size_or_zero(const fs::path& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  EF_CHECK(!error && fs::is_directory(folder), DeviceError, "{}: cannot create the folder: {}", folder.string(),
           error ? error.message() : "a file has this name");
}

void check_space(const std::vector<DownloadFile>& files, const fs::path& folder) {
  uint64_t needed = 0;
  for (const DownloadFile& file : files) {
    const uint64_t there = std::max(size_or_zero(part_path(file.path)), size_or_zero(file.path));
    const uint64_t size = file.size.value_or(0);
    needed += size > there ? size - there : 0;
  }
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  EF_CHECK(error || needed <= space.available, DeviceError, "{}: expected {} bytes of free space, found {}",
           folder.string(), needed, space.available);
}

/// All files on several connections. The first failure stops the others and is thrown.
class Downloads {
 public:
  Downloads(const PullOptions& options, const DownloadPolicy& policy, const std::vector<DownloadFile>& files,
            const PullProgress& progress)
      : options_(options), policy_(policy), files_(files), progress_(progress), done_(files.size(), 0) {
    policy_.stop = &stop_;
    policy_.warn = [this, &policy](const std::string& text) {
      const std::lock_guard lock(mutex_);
      if (policy.warn) policy.warn(text);
    };
    for (const DownloadFile& file : files) total_ += file.size.value_or(0);
  }

  std::vector<DownloadResult> run() {
    results_.resize(files_.size());
    const size_t workers = std::min<size_t>(size_t(std::max(1, options_.connections)), files_.size());
    std::vector<std::thread> threads;
    for (size_t i = 1; i < workers; ++i) threads.emplace_back([this] { work(); });
    work();
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
    return results_;
  }

 private:
  void work() {
    try {
      const std::unique_ptr<HttpClient> client = options_.make_client();
      for (size_t i = take(); i < files_.size(); i = take()) {
        results_[i] = download(*client, files_[i], policy_,
                               [&](uint64_t bytes, std::optional<uint64_t> size) { report(i, bytes, size); });
        report(i, files_[i].size.value_or(0), files_[i].size);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      stop_ = true;
    }
  }

  size_t take() {
    const std::lock_guard lock(mutex_);
    return stop_ ? files_.size() : next_++;
  }

  void report(size_t i, uint64_t bytes, std::optional<uint64_t> size) {
    const std::lock_guard lock(mutex_);
    if (!files_[i].size) {  // a plain URL: alone, its size known only now
      if (bytes > 0 || size) progress(bytes, size.value_or(0));
      return;
    }
    sum_ = sum_ - done_[i] + bytes;
    done_[i] = bytes;
    progress(sum_, total_);
  }
  void progress(uint64_t done, uint64_t total) const {
    if (progress_) progress_(done, total);
  }

  const PullOptions& options_;
  DownloadPolicy policy_;
  const std::vector<DownloadFile>& files_;
  const PullProgress& progress_;
  std::mutex mutex_;
  std::vector<uint64_t> done_;
  std::vector<DownloadResult> results_;
  uint64_t sum_ = 0, total_ = 0;
  size_t next_ = 0;
  std::atomic<bool> stop_{false};
  std::exception_ptr error_;
};

/// The last part of a URL's path; ConfigError if there is none.
std::string name_of(const std::string& url) {
  const size_t path = std::min(url.find('/', url.find("://") + 3), url.size());
  const std::string rest = url.substr(path, url.find_first_of("?#", path) - path);
  const std::string name = rest.substr(rest.rfind('/') == std::string::npos ? 0 : rest.rfind('/') + 1);
  EF_CHECK(is_safe_path(name), ConfigError, "{}: expected an address that ends with a file's name", url);
  return name;
}

std::string checked_sha256(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  EF_CHECK(text.empty() || (text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos),
           ConfigError, "--sha256: expected 64 hexadecimal digits, found \"{}\"", text);
  return text;
}

std::vector<DownloadFile> files_of(const PullOptions& options, const std::string& endpoint, const HubAddress& address,
                                   const DownloadPolicy& policy, fs::path& folder) {
  std::vector<DownloadFile> out;
  if (!address.url.empty()) {
    if (folder.empty()) folder = ".";
    out.push_back({address.url, folder / name_of(address.url), std::nullopt, {checked_sha256(options.sha256), ""}});
    return out;
  }
  EF_CHECK(options.sha256.empty(), ConfigError, "--sha256: belongs to a URL; a hub lists its files' checksums itself");
  if (folder.empty()) folder = address.repository.substr(address.repository.find('/') + 1);
  const auto client = options.make_client();
  const HubRepository repository = list_repository(*client, endpoint, address, policy);
  for (const HubFile& file : choose_files(repository, address))
    out.push_back(
        {file_url(endpoint, address, repository.commit, file.path), folder / file.path, file.size, file.checksum});
  return out;
}

}  // namespace

PullReport pull(const PullOptions& options, const PullProgress& progress) {
  std::string endpoint = options.endpoint;
  while (endpoint.ends_with("/")) endpoint.pop_back();
  const std::string origin = http_origin(endpoint);
  EF_CHECK(!origin.empty(), ConfigError, "--endpoint: expected an address such as https://huggingface.co, found \"{}\"",
           options.endpoint);
  EF_CHECK(options.connections >= 1 && options.connections <= 16, ConfigError,
           "--connections: expected 1 to 16, found {}", options.connections);
  DownloadPolicy policy = options.policy;
  policy.credentials = {origin, options.token};
  const HubAddress address = parse_hub_address(options.address, endpoint);
  PullReport report;
  report.folder = options.out;
  const std::vector<DownloadFile> files = files_of(options, endpoint, address, policy, report.folder);
  make_folder(report.folder);
  for (const DownloadFile& file : files)
    if (file.path.has_parent_path()) make_folder(file.path.parent_path());
  check_space(files, report.folder);
  const std::vector<DownloadResult> results = Downloads(options, policy, files, progress).run();
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = fs::path(files[i].path).lexically_relative(report.folder).string();
    (results[i] == DownloadResult::kDownloaded ? report.downloaded : report.already_there).push_back(name);
    report.bytes += size_or_zero(files[i].path);
  }
  return report;
}

}  // namespace ef
