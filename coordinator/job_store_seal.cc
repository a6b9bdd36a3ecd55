#include "coordinator/job_store_seal.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "optimizer/base/check.h"
#include "runtime/base/crc32c.h"

namespace geopipe {
namespace {

constexpr size_t kSealBytes = 4;

std::span<const std::byte> ChecksummedBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The lowest byte comes first.
std::string SealOf(std::string_view message, std::span<const std::string> key) {
  uint32_t crc = Crc32c(ChecksummedBytes(message));
  for (const std::string& part : key) {
    crc = Crc32c(ChecksummedBytes(part), crc);
  }
  std::string seal;
  for (size_t i = 0; i < kSealBytes; ++i) {
    seal.push_back(static_cast<char>(crc >> (8 * i)));
  }
  return seal;
}

std::string TextOf(sqlite3_value* value) {
  const void* bytes = sqlite3_value_blob(value);
  return {static_cast<const char*>(bytes == nullptr ? "" : bytes), static_cast<size_t>(sqlite3_value_bytes(value))};
}

void Sealed(sqlite3_context* context, int count, sqlite3_value** values) {
  std::string sealed = TextOf(values[0]);
  std::vector<std::string> key;
  for (int i = 1; i < count; ++i) {
    key.push_back(TextOf(values[i]));
  }
  sealed += SealOf(sealed, key);
  sqlite3_result_blob64(context, sealed.data(), sealed.size(), SQLITE_TRANSIENT);
}

}  // namespace

void AddSealFunctions(sqlite3* db) {
  GP_CHECK(sqlite3_create_function_v2(db, "sealed", -1, SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_DIRECTONLY, nullptr,
                                      Sealed, nullptr, nullptr, nullptr) == SQLITE_OK);
}

bool Unseal(std::string_view sealed, const std::vector<std::string>& key, google::protobuf::MessageLite& message) {
  const size_t bytes = sealed.size() - std::min(sealed.size(), kSealBytes);
  return sealed.substr(bytes) == SealOf(sealed.substr(0, bytes), key) &&
         message.ParseFromArray(sealed.data(), static_cast<int>(bytes));
}

}  // namespace geopipe
