#include "ddpopt/capture/pt2/safetensors.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "testing/matchers.h"
#include "testing/tensors.h"

namespace ddpopt {
namespace {

using ::testing::HasSubstr;
using testing::Ramp;
using testing::StatusIs;
using testing::TensorEq;

std::string TempPath(const std::string& name) { return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name); }

// A file of that header and as many bytes of data.
std::string FileOf(const std::string& header, std::size_t data, absl::optional<uint64_t> claimed = absl::nullopt) {
  const uint64_t size = claimed.value_or(header.size());
  std::string content(reinterpret_cast<const char*>(&size), 8);
  content += header + std::string(data, 'x');
  const std::string path = TempPath("hand_made.safetensors");
  DDPOPT_EXPECT_OK(WriteFile(path, content));
  return path;
}

TEST(SafetensorsTest, RoundTrip) {
  const std::string path = TempPath("round_trip.safetensors");
  const at::Tensor a = Ramp({3, 4}), b = a.t(), scalar = at::ones({}, at::kLong), none = at::zeros({0, 3}, at::kHalf), flags = a.gt(3);
  DDPOPT_ASSERT_OK(WriteSafetensors(path, {{"a", a}, {"b", b}, {"s", scalar}, {"none", none}, {"flags", flags}}, {{"format", "pt"}}));
  const auto file = SafetensorsFile::Open(path);
  DDPOPT_ASSERT_OK(file);
  EXPECT_EQ(file->metadata().at("format"), "pt");
  EXPECT_EQ(file->entries().size(), 5u);
  for (const auto& [name, tensor] :
       {std::pair<std::string, at::Tensor>{"a", a}, {"b", b}, {"s", scalar}, {"none", none}, {"flags", flags}}) {
    const auto read = file->Read(name);
    DDPOPT_ASSERT_OK(read);
    EXPECT_THAT(*read, TensorEq(tensor)) << name;
  }
  at::Tensor strided = at::zeros({4, 3}).t();
  DDPOPT_ASSERT_OK(file->ReadInto("a", strided));
  EXPECT_THAT(strided, TensorEq(a));
  EXPECT_THAT(file->ReadInto("b", strided), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[4, 3]")));
  EXPECT_THAT(file->Read("c"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"c\"")));
}

TEST(SafetensorsTest, RefusesWhatDoesNotDescribeTheFile) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  DDPOPT_EXPECT_OK(SafetensorsFile::Open(FileOf(good, 8)));
  const auto error = [](const std::string& path) { return std::string(SafetensorsFile::Open(path).status().message()); };
  EXPECT_THAT(error(FileOf(good, 7)), HasSubstr("within the 7 bytes"));
  EXPECT_THAT(error(FileOf(good, 9)), HasSubstr("bytes, as the header says, got 71"));
  EXPECT_THAT(error(FileOf(good, 8, 1000)), HasSubstr("expected a header of 2 to"));
  EXPECT_THAT(error(FileOf(good, 8, ~uint64_t{0})), HasSubstr("expected a header of 2 to"));
  EXPECT_THAT(error(FileOf("{]", 0)), HasSubstr("header"));
  EXPECT_THAT(error(FileOf("[]", 0)), HasSubstr("object"));
  EXPECT_THAT(error(FileOf(R"({"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}})", 8)), HasSubstr("\"F99\" is no dtype"));
  EXPECT_THAT(error(FileOf(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8)),
              HasSubstr("expected 12 bytes for this shape, got 8"));
  EXPECT_THAT(error(FileOf(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8)), HasSubstr("shape"));
  EXPECT_THAT(error(FileOf(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})", 8)),
              HasSubstr("that memory can hold"));
  EXPECT_THAT(error(FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8)), HasSubstr("data_offsets"));
  EXPECT_THAT(
      error(FileOf(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8)),
      HasSubstr("belongs to two tensors"));
  EXPECT_THAT(error(FileOf(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8)), HasSubstr("belongs to no tensor"));
  EXPECT_THAT(error(FileOf(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"more":1}})", 8)), HasSubstr("more"));
  EXPECT_THAT(SafetensorsFile::Open("/no/such/file"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/file")));
  EXPECT_THAT(SafetensorsFile::Open(TempPath("")), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(SafetensorsTest, RefusesToWriteWhatItCannotHold) {
  const std::string path = TempPath("refused.safetensors");
  EXPECT_THAT(WriteSafetensors(path, {{"a", at::ones({1})}, {"a", at::ones({1})}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("two tensors")));
  EXPECT_THAT(WriteSafetensors(path, {{"a", at::ones({1}, at::kComplexDouble)}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ComplexDouble")));
  EXPECT_THAT(WriteSafetensors(path, {{"a", at::ones({1}, at::kMeta)}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no data")));
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THAT(WriteSafetensors("/no/such/folder/file", {{"a", at::ones({1})}}), StatusIs(absl::StatusCode::kNotFound));
}

TEST(SafetensorsTest, WeightsOfAProgram) {
  const std::string data = "testing/testdata/exported/models/convnet_bn/";
  auto program = LoadExportedProgram(data + "model.pt2");
  DDPOPT_ASSERT_OK(program);
  const at::Tensor expected = (*program)->parameters()[0].tensor.detach().clone();
  const at::Tensor parameter = (*program)->parameters()[0].tensor;
  {
    at::NoGradGuard no_grad;
    parameter.zero_();
  }
  DDPOPT_ASSERT_OK(LoadWeights(program->get(), data + "weights.safetensors"));
  EXPECT_THAT(parameter.detach(), TensorEq(expected));  // the very tensor
  const std::string path = TempPath("saved.safetensors");
  DDPOPT_ASSERT_OK(SaveWeights(**program, path));

  LoadOptions options;
  options.load_weights = false;
  auto hollow = LoadExportedProgram(data + "model.pt2", options);
  DDPOPT_ASSERT_OK(hollow);
  EXPECT_THAT((*hollow)->CheckData(), StatusIs(absl::StatusCode::kFailedPrecondition));
  DDPOPT_ASSERT_OK(LoadWeights(hollow->get(), path));
  DDPOPT_EXPECT_OK((*hollow)->CheckData());
  for (std::size_t i = 0; i < (*program)->parameters().size(); ++i) {
    EXPECT_THAT((*hollow)->parameters()[i].tensor.detach(), TensorEq((*program)->parameters()[i].tensor.detach()));
    EXPECT_TRUE((*hollow)->parameters()[i].tensor.requires_grad());
  }

  const auto saved = SafetensorsFile::Open(path);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, entry] : saved->entries()) tensors.emplace_back(name, *saved->Read(name));
  const std::string first = tensors[0].first;
  auto without = tensors;
  without.erase(without.begin());
  DDPOPT_ASSERT_OK(WriteSafetensors(path, without));
  EXPECT_THAT(LoadWeights(program->get(), path), StatusIs(absl::StatusCode::kNotFound, HasSubstr(first)));
  tensors.emplace_back("stranger", at::ones({1}));
  DDPOPT_ASSERT_OK(WriteSafetensors(path, tensors));
  EXPECT_THAT(LoadWeights(program->get(), path), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stranger")));
}

}  // namespace
}  // namespace ddpopt
