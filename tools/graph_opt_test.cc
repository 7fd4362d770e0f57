// Runs graph_opt as a user would: mostly within this process, and twice as a program.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <sys/wait.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/matchers.h"
#include "tools/graph_opt_run.h"

namespace ddpopt {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kGraph[] =
    "graph():\n"
    "    %x : [num_users=2] = placeholder[target=x]\n"
    "    %w : [num_users=1] = get_attr[target=layer.weight]\n"
    "    %dead : [num_users=0] = call_function[target=torch.ops.aten.relu.default](args = (%x,), kwargs = {})\n"
    "    %add : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%x, %w), kwargs = {})\n"
    "    return (add,)\n";

struct Result {
  int status = -1;
  std::string out, err;
};

std::string TempPath(const std::string& name) { return absl::StrCat(::testing::TempDir(), "/", name); }

std::string Content(const std::string& path) {
  auto content = ReadFile(path);
  EXPECT_THAT(content, testing::IsOk());
  return content.ok() ? *content : "";
}

// Words are separated by blanks.
Result RunTool(const std::string& arguments) {
  std::ostringstream out, err;
  Result result;
  result.status = RunGraphOpt(absl::StrSplit(arguments, ' ', absl::SkipEmpty()), out, err);
  result.out = out.str();
  result.err = err.str();
  return result;
}

// The program itself, through the shell.
Result RunProgram(const std::string& arguments) {
  const std::string out = TempPath("stdout"), err = TempPath("stderr");
  const int status = std::system(absl::StrCat("tools/graph_opt ", arguments, " >", out, " 2>", err).c_str());
  Result result;
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = Content(out);
  result.err = Content(err);
  return result;
}

// Sets a variable of the environment until the end of the scope.
class ScopedVariable {
 public:
  ScopedVariable(std::string name, const std::string& value) : name_(std::move(name)) {
    const char* old = std::getenv(name_.c_str());
    had_ = old != nullptr;
    if (had_) old_ = old;
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~ScopedVariable() { had_ ? setenv(name_.c_str(), old_.c_str(), 1) : unsetenv(name_.c_str()); }

 private:
  std::string name_, old_;
  bool had_ = false;
};

std::string GraphFile(const std::string& content = kGraph, const std::string& name = "graph.txt") {
  const std::string path = TempPath(name);
  EXPECT_THAT(WriteFile(path, content), testing::IsOk());
  return path;
}

nlohmann::json LastLine(const std::string& out) {
  const std::vector<std::string> lines = absl::StrSplit(out, '\n', absl::SkipEmpty());
  return lines.empty() ? nlohmann::json() : nlohmann::json::parse(lines.back(), nullptr, /*allow_exceptions=*/false);
}

TEST(GraphOpt, PrintsWhatItRead) {
  const Result result = RunTool(GraphFile());
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, kGraph);
  EXPECT_THAT(result.err, IsEmpty());
}

TEST(GraphOpt, RunsPassesAndReports) {
  const Result result = RunTool("--passes=dead_code --json --timing --print_after_change=* " + GraphFile());
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("%dead")));
  EXPECT_THAT(result.err, HasSubstr("dead_code"));
  const nlohmann::json report = LastLine(result.out);
  EXPECT_EQ(report["format"], "text");
  EXPECT_EQ(report["nodes_before"], 5);
  EXPECT_EQ(report["nodes"], 4);
  EXPECT_EQ(report["changed"], true);
  ASSERT_EQ(report["passes"].size(), 1u);
  EXPECT_EQ(report["passes"][0]["pass"], "dead_code");
  EXPECT_EQ(report["passes"][0]["nodes_after"], 4);
  EXPECT_TRUE(report["error"].is_null());
}

TEST(GraphOpt, EveryFormOfPrinting) {
  const std::string graph = GraphFile();
  EXPECT_THAT(RunTool("--print=exact " + graph).out, StartsWith("graph():\n"));
  EXPECT_THAT(RunTool("--print=tabular " + graph).out, StartsWith("opcode"));
  EXPECT_THAT(RunTool("--print=readable " + graph).out, StartsWith("class GraphModule:\n    def forward(self, x):\n"));
  EXPECT_THAT(RunTool("--print dot " + graph).out, StartsWith("digraph"));
  EXPECT_EQ(RunTool("--print=none " + graph).out, "");
}

TEST(GraphOpt, JsonOutReadsBackIn) {
  const std::string json = TempPath("graph.json");
  EXPECT_EQ(RunTool(absl::StrCat("--print=json --output=", json, " ", GraphFile())).status, 0);
  const Result result = RunTool(json);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, kGraph);
  EXPECT_EQ(LastLine(RunTool("--json --print=none " + json).out)["format"], "json");
}

TEST(GraphOpt, ReadsRecordedGraphs) {
  const Result result = RunTool("--json --print=readable testing/testdata/ddp_buckets/graphs/S_Cond.dynamo.0.json.gz");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("class cond_true_0"), HasSubstr("l_x_: \"f32[8, 64][64, 1]\"")));
  EXPECT_EQ(LastLine(result.out)["format"], "oracle");
}

TEST(GraphOpt, ReadsStandardInput) {
  const Result result = RunProgram(absl::StrCat("--format=text - <", GraphFile()));
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, kGraph);
}

TEST(GraphOpt, RelativePathsStartWhereItWasCalled) {
  GraphFile();
  const ScopedVariable variable("BUILD_WORKING_DIRECTORY", ::testing::TempDir());
  const Result result = RunTool("--output=copy.txt graph.txt");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(Content(TempPath("copy.txt")), kGraph);
}

TEST(GraphOpt, RunsReproducers) {
  const std::string reproducer = GraphFile(absl::StrCat("# ddpopt graph reproducer\n# pipeline: dead_code\n# error: INTERNAL: x\n", kGraph), "reproducer.txt");
  for (const std::string& arguments : {"--reproducer=" + reproducer, reproducer}) {
    const Result result = RunTool(arguments);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, AllOf(StartsWith("graph():"), ::testing::Not(HasSubstr("%dead"))));
  }
}

TEST(GraphOpt, Draws) {
  const std::string dot = TempPath("graph.dot");
  EXPECT_EQ(RunTool(absl::StrCat("--print=none --dot=", dot, " ", GraphFile())).status, 0);
  EXPECT_THAT(Content(dot), HasSubstr("\"x\" -> \"add\""));

  const std::string folder = TempPath("bin");
  mkdir(folder.c_str(), 0755);
  std::ofstream(folder + "/dot") << "#!/bin/sh\necho '<svg>'; cat >/dev/null\n";
  chmod((folder + "/dot").c_str(), 0755);
  const std::string svg = TempPath("graph.svg");
  {
    const ScopedVariable path("PATH", absl::StrCat(folder, ":/bin:/usr/bin"));
    EXPECT_EQ(RunTool(absl::StrCat("--print=none --svg=", svg, " ", GraphFile())).status, 0);
    EXPECT_EQ(Content(svg), "<svg>\n");
  }
  const ScopedVariable path("PATH", "/nowhere");
  const Result missing = RunTool(absl::StrCat("--print=none --svg=", svg, " ", GraphFile()));
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, HasSubstr("apt-get install graphviz"));
}

TEST(GraphOpt, DamagedInputIsAnErrorWithItsPlace) {
  const auto error = [](const std::string& content, const std::string& message) {
    const Result result = RunTool("--json " + GraphFile(content, "damaged"));
    EXPECT_EQ(result.status, 1) << content;
    EXPECT_THAT(result.err, AllOf(StartsWith("graph_opt: \""), HasSubstr("damaged\": "), HasSubstr(message)));
    EXPECT_THAT(LastLine(result.out)["error"].get<std::string>(), HasSubstr(message));
  };
  error("", "it is empty");
  error("grph():", "line 1, column 1: expected \"graph():\"");
  error("{\"format\": ", "line 1, column 12: ");
  error("{\"format\": \"ddpopt.fx\", \"version\": 9}", "version 9");
  error("{\"model\": \"m\", \"nodes\": [{}]}", "the document: lacks \"form\"");
  error("[1]", "neither a graph");
  error("\x1f\x8b\x08" "damaged", "gzip data");
  error("# ddpopt graph reproducer\ngraph():", "pipeline");
  const Result missing = RunTool("/nowhere/graph.txt");
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, HasSubstr("\"/nowhere/graph.txt\": No such file"));
}

TEST(GraphOpt, WrongCommandLinesAreNamed) {
  const auto refuse = [](const std::string& arguments, const std::string& message) {
    const Result result = RunTool(arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_THAT(result.err, AllOf(HasSubstr(message), EndsWith("Try --help.\n")));
    EXPECT_THAT(result.out, IsEmpty());
  };
  refuse("", "no input is given");
  refuse("--frobnicate a", "there is no flag \"--frobnicate\"");
  refuse("a b", "there is one input, not \"a\" and \"b\"");
  refuse("--print=pretty a", "--print must be one of text, exact, tabular, readable, json, dot, none, not \"pretty\"");
  refuse("--format=xml a", "--format must be one of");
  refuse("--json=yes a", "--json takes no value");
  refuse("--output= a", "--output needs a value");
  refuse("a --output", "--output needs a value");
  refuse("--reproducer=r a", "either an input or --reproducer, not both");
}

TEST(GraphOpt, UnknownPassesAreNamed) {
  const Result result = RunTool("--passes=no_such_pass " + GraphFile());
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("no_such_pass"), HasSubstr("dead_code")));
}

TEST(GraphOpt, HelpAndTheListOfPasses) {
  const Result help = RunProgram("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("--reproducer=FILE"));
  EXPECT_THAT(RunTool("--list_passes").out, HasSubstr("dead_code: "));
}

}  // namespace
}  // namespace ddpopt
