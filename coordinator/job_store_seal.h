// Seals of the messages in the job store: behind each stand 4 bytes, CRC-32C of it and of what its row is found by. A
// message that was damaged, or that is another row's, does not have its seal.
#pragma once

#include <google/protobuf/message_lite.h>
#include <sqlite3.h>

#include <string>
#include <string_view>
#include <vector>

namespace geopipe {

// Gives the connection two SQL functions. Keys are taken as text.
//   sealed(message, key, ...)             the message with its seal
//   moved(sealed, from, to, key, ...)     a sealed message of the row (from, key, ...) as one of (to, key, ...); one
//   that
//                                         is damaged stays as it is, and damaged
void AddSealFunctions(sqlite3* db);

// Reads a sealed message; false when it is damaged.
bool Unseal(std::string_view sealed, const std::vector<std::string>& key, google::protobuf::MessageLite& message);

}  // namespace geopipe
