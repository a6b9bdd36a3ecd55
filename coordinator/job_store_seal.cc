#include "coordinator/job_store_seal.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

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

// The message before its seal; nullopt when it is damaged.
std::optional<std::string_view> Unsealed(std::string_view sealed, std::span<const std::string> key) {
  const size_t bytes = sealed.size() - std::min(sealed.size(), kSealBytes);
  const std::string_view message = sealed.substr(0, bytes);
  return sealed.substr(bytes) == SealOf(message, key) ? std::optional(message) : std::nullopt;
}

// The arguments of an SQL function from `first` on.
std::vector<std::string> KeyFrom(std::span<sqlite3_value*> values, size_t first) {
  std::vector<std::string> key;
  for (sqlite3_value* value : values.subspan(first)) {
    key.push_back(TextOf(value));
  }
  return key;
}

void Return(sqlite3_context* context, const std::string& blob) {
  sqlite3_result_blob64(context, blob.data(), blob.size(), SQLITE_TRANSIENT);
}

void Sealed(sqlite3_context* context, int count, sqlite3_value** values) {
  const std::string message = TextOf(values[0]);
  Return(context, message + SealOf(message, KeyFrom({values, static_cast<size_t>(count)}, 1)));
}

void Moved(sqlite3_context* context, int count, sqlite3_value** values) {
  const std::string sealed = TextOf(values[0]);
  std::vector<std::string> key = KeyFrom({values, static_cast<size_t>(count)}, 2);
  const std::string to = std::exchange(key.front(), TextOf(values[1]));
  const std::optional<std::string_view> message = Unsealed(sealed, key);
  key.front() = to;
  Return(context, message.has_value() ? std::string(*message) + SealOf(*message, key) : sealed);
}

void AddFunction(sqlite3* db, const char* name, void (*function)(sqlite3_context*, int, sqlite3_value**)) {
  GP_CHECK(sqlite3_create_function_v2(db, name, -1, SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_DIRECTONLY, nullptr,
                                      function, nullptr, nullptr, nullptr) == SQLITE_OK);
}

}  // namespace

void AddSealFunctions(sqlite3* db) {
  AddFunction(db, "sealed", Sealed);
  AddFunction(db, "moved", Moved);
}

bool Unseal(std::string_view sealed, const std::vector<std::string>& key, google::protobuf::MessageLite& message) {
  const std::optional<std::string_view> unsealed = Unsealed(sealed, key);
  return unsealed.has_value() && message.ParseFromArray(unsealed->data(), static_cast<int>(unsealed->size()));
}

}  // namespace geopipe
