#include "runtime/tokenizer/files/json_text_key.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

class KeyFinder final : public nlohmann::json_sax<Json> {
 public:
  KeyFinder(std::string_view key, std::string& value) : key_(key), value_(value) {}

  bool null() override { return Other("null"); }
  bool boolean(bool value) override { return Other(value ? "true" : "false"); }
  bool number_integer(number_integer_t /*value*/) override { return Other("a number"); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return Other("a number"); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return Other("a number"); }
  bool binary(binary_t& /*value*/) override { return Other("bytes"); }
  bool string(string_t& value) override {
    if (IsAtKey()) {
      value_.swap(value);
      found_ = "text";
    }
    return depth_ > 0;
  }
  bool start_object(size_t /*size*/) override {
    const bool is_first = depth_ == 0;
    return (is_first || Other("a map")) && Descend();
  }
  bool start_array(size_t /*size*/) override { return Other("a list") && Descend(); }
  bool key(string_t& key) override {
    is_at_key_ = depth_ == 1 && key == key_;
    return true;
  }
  bool end_object() override { return Ascend(); }
  bool end_array() override { return Ascend(); }
  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    error_at_ = position;
    return false;
  }

  // The kind of value at the key: "text", or another; empty: there is no such key.
  const std::string& found() const { return found_; }
  size_t error_at() const { return error_at_; }

 private:
  bool IsAtKey() { return depth_ == 1 && std::exchange(is_at_key_, false); }
  // A value that is no text; at the top it ends the parsing.
  bool Other(const char* kind) {
    found_ = IsAtKey() ? kind : found_;
    return depth_ > 0;
  }
  bool Descend() {
    ++depth_;
    return true;
  }
  bool Ascend() {
    --depth_;
    return true;
  }

  const std::string_view key_;
  std::string& value_;
  std::string found_;
  int64_t depth_ = 0;
  bool is_at_key_ = false;
  size_t error_at_ = 0;
};

}  // namespace

absl::Status TextAtKey(std::string_view json, std::string_view key, std::string& value) {
  KeyFinder finder(key, value);
  if (!Json::sax_parse(json, &finder)) {
    return absl::InvalidArgumentError(
        finder.error_at() > 0
            ? fmt::format(
                  "is no JSON from character {} of the line on; one line is one object like {{\"{}\": \"...\"}}",
                  finder.error_at(), Excerpt(key))
            : fmt::format("is no JSON object like {{\"{}\": \"...\"}}; one line is one object", Excerpt(key)));
  }
  if (finder.found() != "text") {
    return absl::InvalidArgumentError(
        finder.found().empty() ? fmt::format("has no key '{}'; name the document's key with --key", Excerpt(key))
                               : fmt::format("has {} at the key '{}', not a text; name the document's key with --key",
                                             finder.found(), Excerpt(key)));
  }
  return absl::OkStatus();
}

}  // namespace geopipe
