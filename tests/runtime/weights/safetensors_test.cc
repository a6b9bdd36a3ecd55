#include "runtime/weights/safetensors.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "tests/runtime/weights/written_safetensors.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

// A file of a header (its length put before it) and data.
std::string File(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

std::string ErrorOf(const std::string& path) {
  const auto file = SafetensorsFile::Open(path);
  CHECK_FALSE(file.ok());
  return std::string(file.status().message());
}

std::vector<float> Read(const SafetensorsFile& file, const std::string& name, const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) {
    elements *= extent;
  }
  std::vector<float> values(elements);
  const absl::Status status = file.Read(name, shape, values);
  INFO(status);
  CHECK(status.ok());
  return values;
}

TEST_CASE("fp32, bf16 and fp16 tensors are read as fp32") {
  const TempDir dir;
  using namespace std::string_literals;
  const std::string path = dir.Write(
      "m.safetensors", File(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                            R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]},)"
                            R"("c":{"dtype":"F16","shape":[],"data_offsets":[12,14]}})",
                            "\0\0\x80\x3f\0\0\0\xc0"s + "\x80\x3f\0\xc0"s + "\0\x3c"s));
  const auto file = SafetensorsFile::Open(path);
  REQUIRE(file.ok());
  CHECK(file->tensors().size() == 3);
  CHECK(Read(*file, "a", {2}) == std::vector<float>{1, -2});
  CHECK(Read(*file, "b", {1, 2}) == std::vector<float>{1, -2});
  CHECK(Read(*file, "c", {}) == std::vector<float>{1});
}

TEST_CASE("what is written is read back, in every format") {
  const TempDir dir;
  const std::vector<float> a{1.5F, -0.25F, 3.0F, 32768.0F, 0.0F, -1.0F};
  const std::vector<float> b{2.0F};
  for (const FloatFormatRow& row : kFloatFormats) {
    const std::string path = dir.path() + "/" + std::string(row.name);
    WriteSafetensors(path, {{"a", {2, 3}, row.format}, {"b", {1}, row.format}}, {a, b});
    const auto file = SafetensorsFile::Open(path);
    REQUIRE(file.ok());
    CHECK(Read(*file, "a", {2, 3}) == a);
    CHECK(Read(*file, "b", {1}) == b);
    CHECK(file->tensors().at("a").dtype == row.safetensors);
  }
}

TEST_CASE("a header names tensors, formats and places, and the data behind it is aligned") {
  const std::string header = SafetensorsHeader(std::vector<DeclaredTensor>{
      {"a", {2, 3}, FloatFormat::kFp32}, {"b", {3}, FloatFormat::kBf16}, {"c", {}, FloatFormat::kFp16}});
  CHECK(header.size() % 8 == 0);
  CHECK(header.substr(0, 8) == std::string("\xc8\0\0\0\0\0\0\0", 8));
  CHECK(header.substr(8) ==
        R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
        R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},)"
        R"("c":{"dtype":"F16","shape":[],"data_offsets":[30,32]}}  )");
}

TEST_CASE("a damaged file is refused with what and where") {
  const TempDir dir;
  const std::string again = "; copy or download the file again";
  const std::string one = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string whole = File(one, "12345678");

  std::string path = dir.Write("short", "1234567");
  CHECK(ErrorOf(path) == path + ": 7 bytes are too few for a safetensors file" + again);
  path = dir.Write("header", whole.substr(0, 20));
  CHECK(ErrorOf(path) ==
        path + ": the header says it is 54 bytes long, but only 12 bytes follow: the file is truncated" + again);
  path = dir.Write("data", whole.substr(0, whole.size() - 1));
  CHECK(ErrorOf(path) ==
        path + ": tensor a lies at bytes 0 to 8 of the data, which has 7: the file is truncated or damaged" + again);
  path = dir.Write("long", std::string(8, '\xff'));
  CHECK(ErrorOf(path) == path +
                             ": the header says it is 18446744073709551615 bytes long, more than the 100000000 a "
                             "safetensors header may have" +
                             again);
  path = dir.Write("json", File("{", ""));
  CHECK(ErrorOf(path) ==
        path + ": the header:1:2: not valid JSON: the end of the file stands where a key in double quotes is needed" +
            again);
  path = dir.Write("array", File("[]", ""));
  CHECK(ErrorOf(path) == path + ": the header is not a JSON object" + again);
  path = dir.Write("entry", File(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "12345678"));
  CHECK(ErrorOf(path) == path + ": the header's entry of tensor a has no valid dtype, shape and data_offsets" + again);
  path = dir.Write("number", File(R"({"a":1})", ""));
  CHECK(ErrorOf(path) == path + ": the header's entry of tensor a has no valid dtype, shape and data_offsets" + again);
  path = dir.Write("overlap", File(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                   R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[2,4]}})",
                                   "1234"));
  CHECK(ErrorOf(path) == path + ": tensors a and b overlap" + again);
  path = dir.Write("same", File(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                                "1234"));
  CHECK(ErrorOf(path) == path + ": tensors a and b overlap" + again);
  path = dir.Write("size", File(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "12345678"));
  CHECK(ErrorOf(path) == path + ": tensor a of dtype F32 and shape [3] cannot have 8 bytes" + again);
  path = dir.Write("overflow",
                   File(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "12345678"));
  CHECK(ErrorOf(path) ==
        path + ": tensor a of dtype F32 and shape [4294967296, 4294967296] cannot have 0 bytes" + again);
}

TEST_CASE("a file is read as strictly as its format is defined") {
  using namespace std::string_literals;
  const TempDir dir;
  const auto error = [&](const std::string& header, const std::string& data) {
    const std::string path = dir.Write("m", File(header, data));
    const auto file = SafetensorsFile::Open(path);
    const std::string message(file.status().message());
    return file.ok() ? "" : message.substr(path.size() + 2, message.size() - path.size() - 2 - 33);
  };
  const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  CHECK(error("{" + a + "}", "1234").empty());
  CHECK(error("{" + a + "}   ", "1234").empty());
  CHECK(error("{}", "").empty());
  CHECK(error(R"({"__metadata__":{},)" + a + "}", "1234").empty());
  // Tensors without bytes, anywhere among the others.
  CHECK(error(R"({"x":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},)" + a +
                  R"(,"z":{"dtype":"I8","shape":[0],"data_offsets":[4,4]}})",
              "1234")
            .empty());
  CHECK(error(R"({"a":{"dtype":"F4","shape":[2,4],"data_offsets":[0,4]}})", "1234").empty());

  const auto [header, data, what] = GENERATE_COPY(table<std::string, std::string, std::string>({
      {"{" + a + "}", "1234" + std::string(4096, '\0'),
       "4096 bytes follow the last tensor, a: the file is damaged, or two files in one"},
      {"{}", "12", "2 bytes follow the last tensor: the file is damaged, or two files in one"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "12345678",
       "bytes 0 to 4 of the data belong to no tensor: the file is damaged"},
      {"{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})", "123456789012",
       "bytes 4 to 8 of the data belong to no tensor: the file is damaged"},
      {R"({"x":{"dtype":"F32","shape":[0],"data_offsets":[2,2]},)" + a + "}", "1234", "tensors a and x overlap"},
      {"{" + a + "," + a + "}", "1234", "the header:1:55: a: given twice, first on line 1; keep one of the two"},
      {"{" + a + "}\n", "1234", "the header is padded with something other than spaces"},
      {"{" + a + "}x", "1234", "the header:1:55: not valid JSON: 'x' follows the end of the value"},
      {"{" + a + "}\0"s, "1234", "the header: not valid JSON: not UTF-8 text"},
      {" {" + a + "}", "1234", "the header is not a JSON object"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", "1234",
       "tensor a has dtype 'F31', which the format does not have"},
      {R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", "1",
       "tensor a of dtype F4 and shape [1] cannot have 1 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "1234",
       "the header's entry of tensor a has no valid dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", "1234",
       "the header's entry of tensor a has no valid dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}})", "1234",
       "the header's entry of tensor a has no valid dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,99999999999999999999]}})", "1234",
       "the header's entry of tensor a has no valid dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "1234",
       "the header's entry of tensor a has no valid dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234",
       "tensor a lies at bytes 4 to 0 of the data, which has 4: the file is truncated or damaged"},
      {R"({"a":{"dtype":32,"shape":[1],"data_offsets":[0,4]}})", "1234",
       "the header's entry of tensor a has no valid dtype, shape and data_offsets"},
      {R"({"__metadata__":{"format":1},)" + a + "}", "1234", "the header's __metadata__ is not a map of texts"},
      {R"({"__metadata__":"pt",)" + a + "}", "1234", "the header's __metadata__ is not a map of texts"},
      {"{\"a\xff\":1}", "", "the header: not valid JSON: not UTF-8 text"},
  }));
  CHECK(error(header, data) == what);
}

TEST_CASE("a file of another format in the place of weights is named") {
  const TempDir dir;
  const std::string pointer =
      dir.Write("m", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab\nsize 134218144\n");
  CHECK(ErrorOf(pointer) ==
        pointer +
            ": is a Git LFS pointer, not a safetensors file; fetch the file that it stands for: git "
            "lfs pull");
  const std::string page = dir.Write("p", "<!DOCTYPE html><html><head><title>Access denied</title></head></html>");
  CHECK(ErrorOf(page) == page + ": is an HTML page, not a safetensors file; copy or download the file again");
  const std::string gguf = dir.Write("g", std::string("GGUF\x03\0\0\0", 8) + std::string(100, 'x'));
  CHECK(ErrorOf(gguf) ==
        gguf + ": is a GGUF file (llama.cpp), not a safetensors file; copy or download the file again");
}

TEST_CASE("tensors are equal by their numbers, whatever their formats") {
  const TempDir dir;
  const std::string path = dir.path() + "/m";
  WriteSafetensors(path,
                   {{"a", {2}, FloatFormat::kFp32},
                    {"b", {2}, FloatFormat::kBf16},
                    {"c", {2}, FloatFormat::kFp32},
                    {"d", {1, 2}, FloatFormat::kFp32}},
                   {{1.5F, 2.0F}, {1.5F, 2.0F}, {1.5F, 2.25F}, {1.5F, 2.0F}});
  const auto file = SafetensorsFile::Open(path);
  REQUIRE(file.ok());
  CHECK(*EqualTensors(*file, "a", *file, "a"));
  CHECK(*EqualTensors(*file, "a", *file, "b"));
  CHECK_FALSE(*EqualTensors(*file, "a", *file, "c"));
  CHECK_FALSE(*EqualTensors(*file, "b", *file, "c"));
  CHECK_FALSE(*EqualTensors(*file, "a", *file, "d"));
}

TEST_CASE("every truncation of a file is an error, never a crash") {
  const TempDir dir;
  const std::string whole = File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
  for (size_t length = 0; length < whole.size(); ++length) {
    CHECK_FALSE(SafetensorsFile::Open(dir.Write("t", whole.substr(0, length))).ok());
  }
  CHECK(SafetensorsFile::Open(dir.Write("t", whole)).ok());
}

TEST_CASE("a tensor that is missing, misshaped or of another kind is named") {
  const TempDir dir;
  const std::string path = dir.Write("m", File(R"({"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                                               R"("i":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}})",
                                               "1234567812345678"));
  const auto file = SafetensorsFile::Open(path);
  REQUIRE(file.ok());
  std::vector<float> values(2);
  CHECK(file->Read("b", {2}, values).message() == path + ": tensor b is missing; the model needs it");
  CHECK(file->Read("a", {2, 1}, values).message() ==
        path +
            ": tensor a has shape [1, 2], the model needs [2, 1]; check spec.model against the directory's "
            "config.json");
  CHECK(file->Read("i", {1}, std::span(values).first(1)).message() ==
        path + ": tensor i has dtype I64; F32, BF16 and F16 can be read, convert the file");
}

}  // namespace
}  // namespace geopipe
