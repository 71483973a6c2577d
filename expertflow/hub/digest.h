// SHA-256, and the SHA-1 by which git names a file's content.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace ef {

class Digest {
 public:
  enum class Kind { kSha256, kSha1 };
  explicit Digest(Kind kind);
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;
  void update(std::span<const std::byte> bytes);
  std::string finish();  ///< lower-case hex; nothing may follow

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// What a file's bytes must hash to; empty: unknown.
struct Checksum {
  std::string sha256, git_blob;  ///< lower-case hex
  bool known() const { return !sha256.empty() || !git_blob.empty(); }
  /// size: of the whole file, which git hashes first.
  Digest start(uint64_t size) const;
  const std::string& expected() const { return sha256.empty() ? git_blob : sha256; }
};

}  // namespace ef
