#include "runtime/base/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "optimizer/base/check.h"

namespace geopipe {

Proof MakeProof(std::string_view secret, std::span<const std::byte> statement) {
  Proof proof{};
  unsigned size = 0;
  const unsigned char* made = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                                   reinterpret_cast<const unsigned char*>(statement.data()), statement.size(),
                                   reinterpret_cast<unsigned char*>(proof.data()), &size);
  GP_CHECK(made != nullptr && size == proof.size());
  return proof;
}

bool SameProof(const Proof& a, const Proof& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace geopipe
