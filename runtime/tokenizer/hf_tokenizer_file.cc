#include "runtime/tokenizer/hf_tokenizer_file.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "runtime/tokenizer/byte_alphabet.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

// The words of GPT-2's encoder.py, and of ByteLevel with use_regex.
constexpr std::string_view kByteLevelWords =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr int64_t kMaxId = int64_t{1} << 24;  // as the vocabulary of a job

std::string Shown(const Json& value) { return Excerpt(value.dump(-1, ' ', false, Json::error_handler_t::replace)); }

absl::Status Unsupported(std::string_view where, std::string_view key, const Json& value, std::string_view known) {
  return absl::InvalidArgumentError(
      fmt::format("{}{}{}: {} is not supported, only {}; use another tokenizer, or the "
                  "tokenizer.model beside this one if there is one",
                  where, where.empty() || key.empty() ? "" : ".", key, Shown(value), known));
}

// True when lists and maps of the text, be it JSON, lie in one another deeper than any tokenizer.json's: errors show
// values, and the library shows a list within a list by a call within a call.
bool NestsTooDeeply(std::string_view text) {
  constexpr int64_t kMaxDepth = 32;
  int64_t depth = 0;
  bool is_quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      is_quoted = !is_quoted;
    } else if (is_quoted) {
      i += c == '\\' ? 1 : 0;
    } else {
      depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
      if (depth > kMaxDepth) {
        return true;
      }
    }
  }
  return false;
}

// A map of the file and its place in it ("model").
class Section {
 public:
  Section(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  std::string WhereOf(std::string_view key) const {
    return where_.empty() ? std::string(key) : fmt::format("{}.{}", where_, key);
  }

  // InvalidArgument: this is no map, or has other keys, which may change ids in ways that nobody knows here.
  absl::Status Expect(std::initializer_list<std::string_view> keys) const {
    if (!json_.is_object()) {
      return absl::InvalidArgumentError(fmt::format("{}: is {}, not a map", where_, Shown(json_)));
    }
    for (const auto& [key, value] : json_.items()) {
      if (std::ranges::find(keys, std::string_view(key)) == keys.end()) {
        return Unsupported(where_, Excerpt(key), value, fmt::format("{}", fmt::join(keys, ", ")));
      }
    }
    return absl::OkStatus();
  }

  // Null where the key is absent.
  const Json& At(std::string_view key) const {
    static const Json& null = *new Json();
    const auto found = json_.is_object() ? json_.find(key) : json_.end();
    return found == json_.end() ? null : *found;
  }

  std::string Type() const { return At("type").is_string() ? At("type").get<std::string>() : ""; }

  absl::StatusOr<bool> Flag(std::string_view key, bool absent) const {
    const Json& value = At(key);
    if (value.is_null()) {
      return absent;
    }
    return value.is_boolean()
               ? absl::StatusOr<bool>(value.get<bool>())
               : absl::InvalidArgumentError(fmt::format("{}: is {}, not true or false", WhereOf(key), Shown(value)));
  }

  absl::Status ExpectOnly(std::string_view key, std::initializer_list<Json> known, std::string_view shown) const {
    return std::ranges::find(known, At(key)) != known.end() ? absl::OkStatus()
                                                            : Unsupported(where_, key, At(key), shown);
  }

 private:
  const Json& json_;
  std::string where_;
};

absl::StatusOr<bool> IsNfc(const Json& json, const std::string& where, int depth = 0) {
  if (json.is_null()) {
    return false;
  }
  const Section normalizer(json, where);
  if (normalizer.Type() == "NFC") {
    GP_RETURN_IF_ERROR(normalizer.Expect({"type"}));
    return true;
  }
  if (normalizer.Type() != "Sequence" || depth > 0 || !normalizer.At("normalizers").is_array()) {
    return Unsupported(where, "", json, "null and NFC");
  }
  bool is_nfc = false;
  for (const Json& step : normalizer.At("normalizers")) {
    GP_ASSIGN_OR_RETURN(const bool step_is_nfc, IsNfc(step, fmt::format("{}.normalizers", where), depth + 1));
    is_nfc = is_nfc || step_is_nfc;
  }
  return is_nfc;
}

absl::StatusOr<SplitPattern> InSection(const Section& section, absl::StatusOr<SplitPattern> pattern) {
  return pattern.ok() ? std::move(pattern)
                      : absl::InvalidArgumentError(
                            fmt::format("{}: {}", section.where(), std::string(pattern.status().message())));
}

absl::StatusOr<SplitPattern> ReadSplit(const Section& split) {
  GP_RETURN_IF_ERROR(split.Expect({"type", "pattern", "behavior", "invert"}));
  GP_ASSIGN_OR_RETURN(const bool invert, split.Flag("invert", false));
  const Json& behavior = split.At("behavior");
  SplitPattern::Kind kind = SplitPattern::Kind::kIsolated;
  if (behavior == "Removed" && invert) {
    kind = SplitPattern::Kind::kMatchesOnly;
  } else if (behavior != "Isolated") {
    return Unsupported(split.where(), "behavior", behavior, "\"Isolated\", and \"Removed\" with invert");
  }
  const Json& pattern = split.At("pattern");
  if (pattern.is_object() && pattern.size() == 1 && pattern.begin().value().is_string()) {
    const std::string text = pattern.begin().value().get<std::string>();
    if (pattern.begin().key() == "Regex") {
      return InSection(split, SplitPattern::Compile(text, kind));
    }
    if (pattern.begin().key() == "String" && !text.empty()) {
      return InSection(split, SplitPattern::CompileLiteral(text, kind));
    }
  }
  return Unsupported(split.where(), "pattern", pattern, "Regex and String");
}

absl::Status ReadByteLevel(const Section& level, HfTokenizerSteps& steps) {
  GP_RETURN_IF_ERROR(level.Expect({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  GP_ASSIGN_OR_RETURN(steps.adds_space, level.Flag("add_prefix_space", true));
  GP_ASSIGN_OR_RETURN(const bool has_words, level.Flag("use_regex", true));
  if (has_words) {
    GP_ASSIGN_OR_RETURN(steps.words, SplitPattern::Compile(kByteLevelWords, SplitPattern::Kind::kIsolated));
  }
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const Json& json, HfTokenizerSteps& steps) {
  std::vector<const Json*> list{&json};
  const Section whole(json, "pre_tokenizer");
  if (whole.Type() == "Sequence" && whole.At("pretokenizers").is_array()) {
    GP_RETURN_IF_ERROR(whole.Expect({"type", "pretokenizers"}));
    list.clear();
    for (const Json& step : whole.At("pretokenizers")) {
      list.push_back(&step);
    }
  }
  bool has_byte_level = false;
  for (const Json* step : list) {
    const Section section(*step, "pre_tokenizer");
    const std::string type = section.Type();
    if (has_byte_level) {
      return Unsupported(section.where(), "", *step, "ByteLevel as the last step");
    }
    if (type == "ByteLevel") {
      has_byte_level = true;
      GP_RETURN_IF_ERROR(ReadByteLevel(section, steps));
    } else if (type == "Split") {
      GP_ASSIGN_OR_RETURN(SplitPattern split, ReadSplit(section));
      steps.splits.push_back(std::move(split));
    } else if (type == "Digits") {
      GP_RETURN_IF_ERROR(section.Expect({"type", "individual_digits"}));
      GP_ASSIGN_OR_RETURN(const bool single, section.Flag("individual_digits", false));
      GP_ASSIGN_OR_RETURN(SplitPattern split,
                          SplitPattern::Compile(single ? R"(\p{N})" : R"(\p{N}+)", SplitPattern::Kind::kIsolated));
      steps.splits.push_back(std::move(split));
    } else {
      return Unsupported(section.where(), "", *step, "ByteLevel, and Split and Digits before it");
    }
  }
  return has_byte_level ? absl::OkStatus() : Unsupported("pre_tokenizer", "", json, "one that ends with ByteLevel");
}

absl::StatusOr<std::vector<Bpe::Merge>> ReadMerges(const Json& json) {
  if (!json.is_array()) {
    return absl::InvalidArgumentError(fmt::format("model.merges: is {}, not a list", Shown(json)));
  }
  std::vector<Bpe::Merge> merges;
  merges.reserve(json.size());
  for (const Json& merge : json) {
    std::string left;
    std::string right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const std::string& text = merge.get_ref<const std::string&>();
      const size_t blank = text.find(' ');
      if (blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos) {
        left = text.substr(0, blank);
        right = text.substr(blank + 1);
      }
    }
    std::optional<std::string> left_bytes = BytesOfToken(left);
    std::optional<std::string> right_bytes = BytesOfToken(right);
    if (left.empty() || right.empty() || !left_bytes.has_value() || !right_bytes.has_value()) {
      return absl::InvalidArgumentError(
          fmt::format("model.merges: number {} is {}, not two tokens of the byte-level "
                      "alphabet",
                      merges.size(), Shown(merge)));
    }
    merges.emplace_back(*std::move(left_bytes), *std::move(right_bytes));
  }
  return merges;
}

absl::StatusOr<Bpe> ReadModel(const Section& model) {
  const Json& type = model.At("type");
  if (!type.is_null() && type != "BPE") {
    return Unsupported(model.where(), "type", type, "\"BPE\"");
  }
  GP_RETURN_IF_ERROR(model.Expect({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                                   "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  GP_RETURN_IF_ERROR(model.ExpectOnly("dropout", {Json(), Json(0.0)}, "null"));
  GP_RETURN_IF_ERROR(model.ExpectOnly("continuing_subword_prefix", {Json(), Json("")}, "null"));
  GP_RETURN_IF_ERROR(model.ExpectOnly("end_of_word_suffix", {Json(), Json("")}, "null"));
  GP_RETURN_IF_ERROR(model.ExpectOnly("byte_fallback", {Json(), Json(false)}, "false"));
  GP_ASSIGN_OR_RETURN(const bool ignore_merges, model.Flag("ignore_merges", false));
  const Json& vocab = model.At("vocab");
  if (!vocab.is_object()) {
    return absl::InvalidArgumentError(fmt::format("model.vocab: is {}, not a map of tokens", Shown(vocab)));
  }
  absl::flat_hash_map<std::string, uint32_t> vocabulary;
  vocabulary.reserve(vocab.size());
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= kMaxId) {
      return absl::InvalidArgumentError(
          fmt::format("model.vocab: '{}' has the id {}; ids are from 0 to {}", Excerpt(token), Shown(id), kMaxId - 1));
    }
    // Others can only be added tokens: no text gives them.
    if (std::optional<std::string> bytes = BytesOfToken(token)) {
      vocabulary.emplace(*std::move(bytes), id.get<uint32_t>());
    }
  }
  GP_ASSIGN_OR_RETURN(const std::vector<Bpe::Merge> merges, ReadMerges(model.At("merges")));
  return Bpe::Create(std::move(vocabulary), merges, ignore_merges);
}

absl::StatusOr<AddedToken> ReadAddedToken(const Section& section) {
  GP_RETURN_IF_ERROR(section.Expect({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  if (!section.At("content").is_string() || section.At("content").get_ref<const std::string&>().empty()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: is {}, not a text", section.WhereOf("content"), Shown(section.At("content"))));
  }
  AddedToken token{.content = section.At("content").get<std::string>()};
  const std::string where = fmt::format("added_tokens '{}'", Excerpt(token.content));
  const Json& id = section.At("id");
  if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= kMaxId) {
    return absl::InvalidArgumentError(fmt::format("{}.id: is {}; ids are from 0 to {}", where, Shown(id), kMaxId - 1));
  }
  token.id = id.get<uint32_t>();
  GP_ASSIGN_OR_RETURN(const bool single_word, section.Flag("single_word", false));
  if (single_word) {
    return Unsupported(where, "single_word", Json(true), "false");
  }
  GP_ASSIGN_OR_RETURN(token.strips_left, section.Flag("lstrip", false));
  GP_ASSIGN_OR_RETURN(token.strips_right, section.Flag("rstrip", false));
  GP_ASSIGN_OR_RETURN(token.special, section.Flag("special", false));
  GP_ASSIGN_OR_RETURN(token.normalized, section.Flag("normalized", !token.special));
  return token;
}

// The tokenizers library numbers added tokens by their order, whatever the file says, and warns. Here they have to
// agree.
absl::Status ReadAddedTokens(const Json& json, const Json& vocab, HfTokenizerSteps& steps) {
  if (json.is_null()) {
    return absl::OkStatus();
  }
  if (!json.is_array()) {
    return absl::InvalidArgumentError(fmt::format("added_tokens: is {}, not a list", Shown(json)));
  }
  absl::flat_hash_map<std::string, uint32_t> ids;
  const auto size = static_cast<uint32_t>(vocab.size());
  uint32_t next = size;
  for (const Json& entry : json) {
    GP_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(Section(entry, "added_tokens")));
    if (ids.contains(token.content)) {
      return absl::InvalidArgumentError(fmt::format("added_tokens: '{}' is there twice", Excerpt(token.content)));
    }
    const auto known = vocab.find(token.content);
    const uint32_t expected = known != vocab.end() ? known->get<uint32_t>() : next;
    if (token.id != expected) {
      return absl::InvalidArgumentError(
          fmt::format("added_tokens: '{}' has the id {}, and Hugging Face's tokenizers give it {}; correct the file",
                      Excerpt(token.content), token.id, expected));
    }
    next = std::max(next, token.id >= size ? token.id + 1 : size);
    ids.emplace(token.content, token.id);
    steps.added.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status ReadTemplate(const Section& section, DocumentMarks& marks) {
  GP_RETURN_IF_ERROR(section.Expect({"type", "single", "pair", "special_tokens"}));
  const Json& single = section.At("single");
  bool is_behind = false;
  for (const Json& part : single.is_array() ? single : Json::array({single})) {
    if (part.is_object() && part.contains("Sequence") && !is_behind) {
      is_behind = true;
      continue;
    }
    const Json& named = part.is_object() && part.contains("SpecialToken") ? part["SpecialToken"] : Json();
    const Json& name = named.is_object() && named.contains("id") ? named["id"] : Json();
    const Json& all = section.At("special_tokens");
    const Json& token = name.is_string() && all.is_object() && all.contains(name.get<std::string>())
                            ? all[name.get<std::string>()]
                            : Json();
    if (!token.is_object() || !token.contains("ids") || !token["ids"].is_array()) {
      return Unsupported(section.where(), "single", single, "one sequence between special tokens");
    }
    for (const Json& id : token["ids"]) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= kMaxId) {
        return Unsupported(section.where(), "special_tokens", token, "ids of the vocabulary");
      }
      (is_behind ? marks.end : marks.begin).push_back({.token = name.get<std::string>(), .id = id.get<uint32_t>()});
    }
  }
  return is_behind ? absl::OkStatus()
                   : Unsupported(section.where(), "single", single, "one sequence between special tokens");
}

absl::Status ReadPostProcessor(const Json& json, DocumentMarks& marks) {
  if (json.is_null()) {
    return absl::OkStatus();
  }
  std::vector<const Json*> list{&json};
  const Section whole(json, "post_processor");
  if (whole.Type() == "Sequence" && whole.At("processors").is_array()) {
    list.clear();
    for (const Json& step : whole.At("processors")) {
      list.push_back(&step);
    }
  }
  bool has_template = false;
  for (const Json* step : list) {
    const Section section(*step, "post_processor");
    if (section.Type() == "ByteLevel") {
      continue;  // changes offsets alone
    }
    if (section.Type() != "TemplateProcessing" || has_template) {
      return Unsupported(section.where(), "", *step, "ByteLevel and one TemplateProcessing");
    }
    has_template = true;
    GP_RETURN_IF_ERROR(ReadTemplate(section, marks));
  }
  return absl::OkStatus();
}

absl::StatusOr<HfTokenizerSteps> Parse(const Json& json) {
  const Section file(json, "");
  GP_RETURN_IF_ERROR(file.Expect({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                                  "post_processor", "decoder", "model"}));
  GP_RETURN_IF_ERROR(file.ExpectOnly("truncation", {Json()}, "null"));
  GP_RETURN_IF_ERROR(file.ExpectOnly("padding", {Json()}, "null"));
  HfTokenizerSteps steps;
  GP_ASSIGN_OR_RETURN(steps.is_nfc, IsNfc(file.At("normalizer"), "normalizer"));
  GP_RETURN_IF_ERROR(ReadPreTokenizer(file.At("pre_tokenizer"), steps));
  const Section model(file.At("model"), "model");
  GP_ASSIGN_OR_RETURN(steps.bpe, ReadModel(model));
  GP_RETURN_IF_ERROR(ReadAddedTokens(file.At("added_tokens"), model.At("vocab"), steps));
  GP_RETURN_IF_ERROR(ReadPostProcessor(file.At("post_processor"), steps.marks));
  for (const auto& [token, id] : model.At("vocab").items()) {
    steps.vocabulary = std::max(steps.vocabulary, id.get<int64_t>() + 1);
  }
  for (const AddedToken& token : steps.added) {
    steps.vocabulary = std::max(steps.vocabulary, int64_t{token.id} + 1);
  }
  for (const auto* marks : {&steps.marks.begin, &steps.marks.end}) {
    for (const Mark& mark : *marks) {
      if (mark.id >= steps.vocabulary) {
        return absl::InvalidArgumentError(fmt::format(
            "post_processor: '{}' has the id {}, which is not in the vocabulary", Excerpt(mark.token), mark.id));
      }
    }
  }
  return steps;
}

}  // namespace

absl::StatusOr<HfTokenizerSteps> ParseHfTokenizer(std::string_view text, std::string_view file) {
  const Json json =
      NestsTooDeeply(text) ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("model")) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: is no tokenizer.json of Hugging Face's tokenizers; name that file, a SentencePiece model, or their folder",
        file));
  }
  absl::StatusOr<HfTokenizerSteps> steps = Parse(json);
  return steps.ok() ? std::move(steps)
                    : absl::InvalidArgumentError(fmt::format("{}: {}", file, std::string(steps.status().message())));
}

}  // namespace geopipe
