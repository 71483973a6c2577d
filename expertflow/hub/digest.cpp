#include "expertflow/hub/digest.h"

#include <openssl/evp.h>

#include "expertflow/base/errors.h"

namespace ef {

struct Digest::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(md); }
};

Digest::Digest(Kind kind) : context_(std::make_unique<Context>()) {
  const int ok = EVP_DigestInit_ex(context_->md, kind == Kind::kSha256 ? EVP_sha256() : EVP_sha1(), nullptr);
  EF_CHECK(ok == 1, DeviceError, "libcrypto: {} is not available", kind == Kind::kSha256 ? "SHA-256" : "SHA-1");
}
Digest::~Digest() = default;
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;

void Digest::update(std::span<const std::byte> bytes) {
  EF_CHECK(EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()) == 1, DeviceError, "libcrypto: hashing failed");
}

std::string Digest::finish() {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EF_CHECK(EVP_DigestFinal_ex(context_->md, bytes, &size) == 1, DeviceError, "libcrypto: hashing failed");
  std::string out;
  for (unsigned int i = 0; i < size; ++i) out += fmt::format("{:02x}", bytes[i]);
  return out;
}

Digest Checksum::start(uint64_t size) const {
  if (!sha256.empty() || git_blob.empty()) return Digest(Digest::Kind::kSha256);
  Digest digest(Digest::Kind::kSha1);
  const std::string header = fmt::format("blob {}", size) + '\0';
  digest.update(std::as_bytes(std::span(header)));
  return digest;
}

}  // namespace ef
