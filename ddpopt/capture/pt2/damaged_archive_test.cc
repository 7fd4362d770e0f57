// Archives that were cut short, altered, or never were what they say: the Status names the record and what was expected. (fuzz_test alters
// at random.)

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "caffe2/serialize/inline_container.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

const std::string kForms = "testing/testdata/exported/forms/";
constexpr char kModel[] = "models/model.json";
constexpr char kWeights[] = "data/weights/model_weights_config.json";

std::string TempPath(const std::string& name) { return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name); }

using Records = std::map<std::string, std::string>;

Records ReadRecords(const std::string& path) {
  caffe2::serialize::PyTorchStreamReader reader(path);
  Records records;
  for (const std::string& name : reader.getAllRecords()) {
    if (absl::StartsWith(name, ".data/") || name == "version") continue;  // the writer's own
    const auto [data, size] = reader.getRecord(name);
    records[name] = std::string(static_cast<const char*>(data.get()), size);
  }
  return records;
}

std::string WriteRecords(const Records& records, const std::string& name = "altered.pt2") {
  const std::string path = TempPath(name);
  std::filesystem::remove(path);
  caffe2::serialize::PyTorchStreamWriter writer(path);
  for (const auto& [record, content] : records) writer.writeRecord(record, content.data(), content.size());
  writer.writeEndOfFile();
  return path;
}

class DamagedArchiveTest : public ::testing::Test {
 protected:
  DamagedArchiveTest() : records_(ReadRecords(kForms + "constants/model.pt2")) {}
  absl::Status Load() { return LoadExportedProgram(WriteRecords(records_)).status(); }
  void Replace(const std::string& record, const std::string& from, const std::string& to) {
    ASSERT_THAT(records_[record], HasSubstr(from));
    records_[record] = absl::StrReplaceAll(records_[record], {{from, to}});
  }
  Records records_;
};

TEST_F(DamagedArchiveTest, RewrittenArchivesLoad) { DDPOPT_EXPECT_OK(Load()); }

TEST_F(DamagedArchiveTest, OtherFormatsAndVersions) {
  records_["archive_version"] = "1";
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("record \"archive_version\": expected \"0\", got \"1\"")));
  records_["archive_version"] = "0";
  records_["byteorder"] = "big";
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("record \"byteorder\": expected \"little\"")));
  records_["byteorder"] = "little";
  records_["archive_format"] = "onnx";
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("record \"archive_format\": expected \"pt2\", got \"onnx\"")));
  records_.erase("archive_format");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected a record \"archive_format\"")));
}

TEST_F(DamagedArchiveTest, NewerSchemas) {
  Replace(kModel, "\"minor\": 20", "\"minor\": 21");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kUnimplemented,
                               AllOf(HasSubstr("record \"models/model.json\""), HasSubstr("expected 8.0 to 8.20"), HasSubstr("got 8.21"))));
}

TEST_F(DamagedArchiveTest, MissingAndShortRecords) {
  Records whole = records_;
  records_.erase(kModel);
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("expected one record \"models/NAME.json\"; the archive holds no model")));
  records_ = whole;
  records_.erase("data/weights/weight_1");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("data/weights/weight_1")));
  records_ = whole;
  records_["data/weights/weight_0"].pop_back();
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kDataLoss,
                               HasSubstr("record \"data/weights/weight_0\": expected at least 36 bytes for \"l.weight\", got 35")));
  records_ = whole;
  records_.erase(kWeights);
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kNotFound, HasSubstr(kWeights)));
  records_ = whole;
  records_[kModel].resize(1000);
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("record \"models/model.json\"")));
}

TEST_F(DamagedArchiveTest, ConfigsThatLeadOutsideOrLie) {
  const Records whole = records_;
  for (const char* path : {"../../../etc/passwd", "/etc/passwd", "..", "", "a/b", "..\\\\x"}) {
    records_ = whole;
    Replace(kWeights, "\"weight_0\"", absl::StrCat("\"", path, "\""));
    EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected the name of a record of data/weights/"))) << path;
  }
  records_ = whole;
  Replace(kWeights, "\"use_pickle\": false", "\"use_pickle\": true");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("\"l.weight\" is pickled")));
  records_ = whole;
  Replace(kWeights, "\"sizes\": [{\"as_int\": 3}, {\"as_int\": 3}]", "\"sizes\": [{\"as_int\": 4611686018427387904}, {\"as_int\": 3}]");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(kWeights)));
  records_ = whole;
  Replace(kWeights, "\"sizes\": [{\"as_int\": 3}, {\"as_int\": 3}]", "\"sizes\": [{\"as_int\": 3000000}, {\"as_int\": 3000000}]");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("data/weights/weight_0")));
  records_ = whole;
  Replace(kWeights, "\"sizes\": [{\"as_int\": 3}, {\"as_int\": 3}]", "\"sizes\": [{\"as_int\": 1}, {\"as_int\": 9}]");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("\"l.weight\""), HasSubstr("[1, 9]"))));
  records_ = whole;
  Replace(kWeights, "\"storage_offset\": {\"as_int\": 0}", "\"storage_offset\": {\"as_int\": -1}");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("offset")));
}

TEST_F(DamagedArchiveTest, GraphsThatDoNotFit) {
  const Records whole = records_;
  const auto error = [&](const std::string& from, const std::string& to) {
    records_ = whole;
    Replace(kModel, from, to);
    return std::string(Load().message());
  };
  EXPECT_THAT(error("\"kind\": 1", "\"kind\": 7"), HasSubstr("kind: expected 1"));
  EXPECT_THAT(error("\"arg\": {\"as_tensor\": {\"name\": \"mul\"}}", "\"arg\": {\"as_tensor\": {\"name\": \"nobody\"}}"),
              HasSubstr("\"nobody\""));
  EXPECT_THAT(error("\"as_tensor\"", "\"as_tensors_of_the_future\""), HasSubstr("as_tensors_of_the_future"));
  EXPECT_THAT(error("\"name\": \"add\"", "\"name\": \"mul\""), HasSubstr("taken by an earlier value"));
  EXPECT_THAT(error("\"tensor_constant_name\": \"k\"", "\"tensor_constant_name\": \"other\""), HasSubstr("no data for \"other\""));
  EXPECT_THAT(error("\"tensor_constant\":", "\"token\":"), HasSubstr("token"));
  EXPECT_THAT(error("\"user_output\":", "\"loss_output\":"), HasSubstr("loss_output"));
}

TEST(DamagedFileTest, CutShort) {
  const std::string content = *ReadFile(kForms + "cond/model.pt2");
  const std::string path = TempPath("cut.pt2");
  for (std::size_t size = 0; size < content.size(); size += 97) {
    DDPOPT_ASSERT_OK(WriteFile(path, content.substr(0, size)));
    const auto program = LoadExportedProgram(path);
    ASSERT_FALSE(program.ok()) << size;
    EXPECT_THAT(std::string(program.status().message()), HasSubstr(path));
  }
}

// A zip's directory that claims more than the file can hold.
TEST(DamagedFileTest, LyingSizes) {
  std::string content = *ReadFile(kForms + "cond/model.pt2");
  const std::string path = TempPath("lying.pt2");
  int lies = 0;
  for (std::size_t at = content.find("PK\x01\x02"); at != std::string::npos; at = content.find("PK\x01\x02", at + 4)) {
    std::string lying = content;
    for (const std::size_t field : {20, 24})
      lying.replace(at + field, 4, std::string("\xF0\xFF\xFF\x7F", 4));  // compressed and whole size: 2 GiB
    DDPOPT_ASSERT_OK(WriteFile(path, lying));
    if (!LoadExportedProgram(path).ok()) ++lies;
  }
  EXPECT_GE(lies, 8);  // records that nobody reads may lie
}

}  // namespace
}  // namespace ddpopt
