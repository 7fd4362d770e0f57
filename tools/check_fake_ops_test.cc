#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/special_airy_ai.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/fake_op_records.h"
#include "testing/matchers.h"
#include "torch/library.h"

namespace ddpopt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::CheckFakeOpCase;
using testing::FakeOpVerdict;
using testing::IsOk;
using Json = nlohmann::json;
using Kind = FakeOpVerdict::Kind;

constexpr char kCases[] = "testing/testdata/fake_ops/records.jsonl.gz";

// Real kernels, one of an operator of our own that has no rule, one in LibTorch's place.
int real_calls = 0;
at::Tensor Counted(const at::Tensor& self) {
  ++real_calls;
  return at::empty_like(self);
}
TORCH_LIBRARY(check_fake_ops_test, m) { m.def("counted(Tensor self) -> Tensor"); }
TORCH_LIBRARY_IMPL(check_fake_ops_test, CPU, m) { m.impl("counted", Counted); }
TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl("special_airy_ai", Counted); }

struct Outcome {
  int status = -1;
  std::string output;
  std::vector<std::string> lines() const { return absl::StrSplit(absl::StripSuffix(output, "\n"), '\n'); }
};

Outcome Call(const std::string& arguments) {
  Outcome outcome;
  std::FILE* pipe = popen(absl::StrCat("tools/check_fake_ops ", arguments, " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) outcome.output.append(buffer, n);
  outcome.status = WEXITSTATUS(pclose(pipe));
  return outcome;
}

bool IsMatrixWithoutSmallSizes(const Json& tensor) {
  const std::vector<int64_t> sizes = tensor["s"];
  return sizes.size() == 2 && sizes[0] > 1 && sizes[1] > 1;
}

// The file's first call of the operator, or the first whose result is such a matrix.
std::string FirstOf(const std::string& op, bool with_matrix = false) {
  const absl::StatusOr<std::string> text = ReadFile(kCases);
  EXPECT_THAT(text.status(), IsOk());
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (!absl::StrContains(line, absl::StrCat("\"", op, "\""))) continue;
    if (!with_matrix || IsMatrixWithoutSmallSizes(Json::parse(std::string(line))["O"][0])) return std::string(line);
  }
  ADD_FAILURE() << "no case of " << op;
  return "";
}

std::string WithOp(const std::string& line, const std::string& op) {
  Json record = Json::parse(line);
  record["op"] = op;
  return record.dump();
}

TEST(CheckFakeOps, PassesOnTheRecordsOfThisRepository) {
  const Outcome outcome = Call(absl::StrCat("--cases=", kCases, " --json"));
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  const Json result = Json::parse(outcome.lines().back());
  EXPECT_EQ(result["failed"], 0);
  EXPECT_GT(result["passed"], 7500);
  EXPECT_GT(result["operators"].size(), 850);
}

TEST(CheckFakeOps, AlteredRecordsFailByOperatorAndKind) {
  const std::string line = FirstOf("aten::mm.default", /*with_matrix=*/true);
  ASSERT_EQ(CheckFakeOpCase(line).kind, Kind::kPassed);
  const auto altered = [&](const char* field, const Json& value) {
    Json record = Json::parse(line);
    record["O"][0][field] = value;
    return record.dump();
  };
  const Json original = Json::parse(line)["O"][0];
  std::vector<int64_t> sizes = original["s"];
  std::vector<int64_t> strides = original["st"];
  sizes[0] += 1;
  strides[0] += 1;
  const std::vector<std::pair<std::string, std::string>> cases = {{altered("s", sizes), "shape"},
                                                                  {altered("st", strides), "stride"},
                                                                  {altered("d", original["d"] == "f64" ? "f32" : "f64"), "dtype"},
                                                                  {altered("o", 1), "offset"},
                                                                  {altered("nb", 1), "storage size"},
                                                                  {altered("al", 0), "aliasing"},
                                                                  {altered("same", 0), "identity"}};
  std::string file;
  for (const auto& [record, kind] : cases) {
    const FakeOpVerdict verdict = CheckFakeOpCase(record);
    EXPECT_EQ(verdict.kind, Kind::kFailed) << kind;
    EXPECT_EQ(verdict.category, kind);
    EXPECT_EQ(verdict.op, "aten::mm.default");
    absl::StrAppend(&file, record, "\n");
  }
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/altered.jsonl");
  ASSERT_THAT(WriteFile(path, file), IsOk());
  const Outcome outcome = Call(absl::StrCat("--cases=", path));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.lines().back(), absl::StrCat("0 passed, ", cases.size(), " failed, 0 skipped"));
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("aten::mm.default: shape, 1 of 7 cases"), HasSubstr("aten::mm.default: stride, 1 of 7 cases")));
}

TEST(CheckFakeOps, ResultsWhereARefusalIsWantedFail) {
  Json record = Json::parse(FirstOf("aten::mm.default"));
  record["dde"] = "DynamicOutputShapeException";
  const FakeOpVerdict verdict = CheckFakeOpCase(record.dump());
  EXPECT_EQ(verdict.kind, Kind::kFailed);
  EXPECT_EQ(verdict.category, "not refused");
}

TEST(CheckFakeOps, OperatorsThatThisLibTorchLacksAreSkippedWithTheReason) {
  const FakeOpVerdict verdict = CheckFakeOpCase(WithOp(FirstOf("aten::mm.default"), "torch_nn::something.default"));
  EXPECT_EQ(verdict.kind, Kind::kSkipped);
  EXPECT_THAT(verdict.detail, HasSubstr("no operator of the name"));
}

TEST(CheckFakeOps, NoRealKernelRuns) {
  const std::string line = FirstOf("aten::special_airy_ai.default");
  real_calls = 0;
  EXPECT_EQ(CheckFakeOpCase(line).kind, Kind::kPassed);
  const FakeOpVerdict verdict = CheckFakeOpCase(WithOp(line, "check_fake_ops_test::counted.default"));
  EXPECT_EQ(verdict.kind, Kind::kFailed);
  EXPECT_EQ(verdict.category, "no rule");
  EXPECT_EQ(real_calls, 0);
  // The count counts.
  at::special_airy_ai(at::ones({2}));
  EXPECT_EQ(real_calls, 1);
}

TEST(CheckFakeOps, NoRealRandomNumberIsDrawn) {
  const auto generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = generator.get_state();
  int cases = 0;
  const auto is_random = [](absl::string_view op) {
    for (const char* part : {"rand", "bernoulli", "uniform", "normal", "dropout", "multinomial", "exponential"}) {
      if (absl::StrContains(op, part)) return true;
    }
    return false;
  };
  EXPECT_THAT(testing::CheckFakeOpCases(kCases, is_random, [&](const FakeOpVerdict& /*verdict*/) { ++cases; }), IsOk());
  EXPECT_GT(cases, 50);
  EXPECT_TRUE(before.equal(generator.get_state()));
}

TEST(CheckFakeOps, NamesWhatCannotBeRead) {
  const Outcome missing = Call("--cases=no/such.jsonl.gz");
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.output, HasSubstr("no/such.jsonl.gz"));
  EXPECT_EQ(missing.lines().back(), "0 passed, 1 failed, 0 skipped");
  EXPECT_EQ(CheckFakeOpCase("{\"id\": \"x\"").category, "bad record");
}

TEST(CheckFakeOps, RefusesBadFlags) {
  EXPECT_EQ(Call("").status, 2);
  EXPECT_THAT(Call("--case=x").output, HasSubstr("--case=x"));
  EXPECT_EQ(Call(absl::StrCat("--cases=", kCases, " --ops=")).status, 2);
  EXPECT_EQ(Call(absl::StrCat("--cases=", kCases, " --show=many")).status, 2);
  EXPECT_THAT(Call("--help").output, HasSubstr("--cases=FILE"));
}

}  // namespace
}  // namespace ddpopt
