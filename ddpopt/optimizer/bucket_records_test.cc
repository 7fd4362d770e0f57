#include "ddpopt/optimizer/bucket_records.h"

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

using Json = nlohmann::json;
using Verdict = RecordOutcome::Verdict;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kRecords[] = "testing/testdata/ddp_buckets/records.jsonl.gz";
constexpr char kGraphs[] = "testing/testdata/ddp_buckets/graphs";

// The recorded run of that model, form and cap.
Json Record(const std::string& model, const std::string& form, int64_t cap) {
  const auto content = ReadFile(kRecords);
  EXPECT_TRUE(content.ok()) << content.status();
  for (const absl::string_view line : absl::StrSplit(*content, '\n', absl::SkipEmpty())) {
    Json record = Json::parse(line.begin(), line.end());
    if (record.at("model") == model && record.at("form") == form && record.at("cap") == cap) return record;
  }
  ADD_FAILURE() << "no run of " << model << " " << form << " with cap " << cap;
  return {};
}

std::vector<std::string> Differences(const Json& record, bool text = true) {
  const RecordOutcome outcome = BucketRecords({text}).Check(record.dump(), kGraphs);
  EXPECT_EQ(outcome.verdict, outcome.differences.empty() ? Verdict::kPassed : Verdict::kFailed);
  return outcome.differences;
}

TEST(BucketRecords, PyTorchsRunsComeOutTheSame) {
  int passed = 0;
  std::vector<std::string> skipped;
  const absl::Status status = BucketRecords({.text = true}).CheckFile(kRecords, [&](const RecordOutcome& outcome) {
    if (outcome.verdict == Verdict::kSkipped) skipped.push_back(absl::StrCat(outcome.id, ": ", outcome.skip_reason));
    if (outcome.verdict == Verdict::kFailed) ADD_FAILURE() << outcome.id << "\n" << absl::StrJoin(outcome.differences, "\n");
    passed += outcome.verdict == Verdict::kPassed;
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(passed, 152);
  EXPECT_THAT(skipped, ElementsAre(HasSubstr("form none"), HasSubstr("form none"), HasSubstr("(AttributeError)")));
}

// Each recorded field counts: with another value the run fails, and the difference names the field.
TEST(BucketRecords, EveryFieldIsCompared) {
  const Json record = Record("S_Cond", "dynamo", 16384);
  EXPECT_THAT(Differences(record), IsEmpty());
  const auto changed = [&record](const std::string& pointer, const Json& value) {
    Json copy = record;
    const Json::json_pointer at(pointer);
    EXPECT_TRUE(copy.contains(at)) << pointer;
    EXPECT_NE(copy[at], value) << pointer;
    copy[at] = value;
    return Differences(copy);
  };
  EXPECT_THAT(changed("/n_buckets", 3), ElementsAre(AllOf(HasSubstr("n_buckets"), HasSubstr("expected 3, got 2"))));
  EXPECT_THAT(changed("/path", Json::array({"extended"})), ElementsAre(HasSubstr("path")));
  EXPECT_THAT(changed("/n_submods", 7), ElementsAre(HasSubstr("n_submods")));
  EXPECT_THAT(changed("/buckets", Json::array()), ElementsAre(HasSubstr("number of buckets")));
  for (const char* field : {"/buckets/1/size", "/buckets/1/ext_ops", "/buckets/1/size_before_ext", "/split/submods/1/tuple_output"}) {
    EXPECT_THAT(changed(field, 12345),
                ElementsAre(HasSubstr(absl::StrCat("].", absl::string_view(field).substr(absl::string_view(field).rfind('/') + 1)))));
  }
  for (const char* field : {"/buckets/0/params/1", "/buckets/0/nodes/2", "/split/submods/0/name", "/split/submods/0/args/0",
                            "/split/submods/0/placeholders/0", "/split/submods/0/nodes/3", "/split/submods/0/targets/0",
                            "/split/submods/0/outputs/0", "/split/submods/0/get_attr/1", "/split/submods/0/text", "/split/text",
                            "/split/parent/2/n", "/split/parent/2/op", "/split/parent/2/t", "/split/parent/2/a/1/n",
                            "/split/parent/4/a/0/tuple/0", "/split/parent_placeholders/0", "/split/partition_names/0"}) {
    EXPECT_THAT(changed(field, "other"), ElementsAre(HasSubstr("expected"))) << field;
  }
}

TEST(BucketRecords, TextIsComparedOnRequest) {
  Json record = Record("S_Cond", "dynamo", 16384);
  std::string text = record["split"]["submods"][1]["text"];
  text.replace(text.find("%linear"), 7, "%Linear");
  record["split"]["submods"][1]["text"] = text;
  EXPECT_THAT(Differences(record, false), IsEmpty());
  EXPECT_THAT(Differences(record, true), ElementsAre(AllOf(HasSubstr("split.submods[1].text, line 5"), HasSubstr("%Linear"))));
}

TEST(BucketRecords, ARunThatFailedInPythonIsComparedUpToThere) {
  Json record = Record("S_Cond", "dynamo", 16384);
  record.erase("split");
  EXPECT_THAT(Differences(record), ElementsAre(HasSubstr("without a split")));
  record["error"] = "RuntimeError";
  EXPECT_THAT(Differences(record), IsEmpty());
  record["buckets"][0]["size"] = 1;
  EXPECT_THAT(Differences(record), Not(IsEmpty()));
  record.erase("buckets");
  const RecordOutcome outcome = BucketRecords({}).Check(record.dump(), kGraphs);
  EXPECT_EQ(outcome.verdict, Verdict::kSkipped);
  EXPECT_EQ(outcome.skip_reason, "no buckets were recorded (RuntimeError)");
}

TEST(BucketRecords, WhatIsDamagedOrMissingFailsByName) {
  const Json record = Record("S_Cond", "dynamo", 16384);
  BucketRecords records({});
  EXPECT_THAT(records.Check("{\"model\":", kGraphs).differences, ElementsAre(HasSubstr("the record is damaged")));
  EXPECT_THAT(records.Check(record.dump(), "no/such").differences, ElementsAre(HasSubstr("no/such/S_Cond.dynamo.0.json.gz")));
  Json wrong = record;
  wrong["cap"] = -1;
  EXPECT_THAT(records.Check(wrong.dump(), kGraphs).differences, ElementsAre(HasSubstr("bucket_cap_bytes is negative: -1")));
  wrong["cap"] = "16384";
  EXPECT_THAT(records.Check(wrong.dump(), kGraphs).differences, ElementsAre(HasSubstr("the record is damaged")));

  const std::string path = ::testing::TempDir() + "/damaged.jsonl.gz";
  const auto content = ReadFile(kRecords);
  std::ifstream file(kRecords, std::ios::binary);
  std::string zipped((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_TRUE(WriteFile(path, absl::string_view(zipped).substr(0, zipped.size() / 2)).ok());
  const absl::Status status = records.CheckFile(path, [](const RecordOutcome&) {});
  EXPECT_THAT(std::string(status.message()), HasSubstr("damaged.jsonl.gz"));
}

TEST(BucketRecords, FindsRecordFiles) {
  EXPECT_THAT(*RecordFiles("testing/testdata/ddp_buckets"), ElementsAre(kRecords));
  EXPECT_THAT(*RecordFiles(kRecords), ElementsAre(kRecords));
  EXPECT_THAT(std::string(RecordFiles("no/such/path").status().message()), HasSubstr("no/such/path"));
  EXPECT_THAT(std::string(RecordFiles(kGraphs).status().message()), HasSubstr("holds no .jsonl.gz"));
}

}  // namespace
}  // namespace ddpopt
