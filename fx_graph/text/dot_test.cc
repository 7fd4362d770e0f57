#include "fx_graph/text/dot.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include <sys/stat.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/matchers.h"

namespace ddpopt::fx {
namespace {

using ::c10::IValue;
using ::ddpopt::testing::FindOperator;
using ::ddpopt::testing::IsOk;
using ::ddpopt::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

void Fill(Graph& g) {
  Node* x = g.Placeholder("x");
  Node* w = g.GetAttr("w");
  Node* add = g.CreateNode(Op::kCallFunction, OperatorTarget{FindOperator("aten::add", "Tensor")}, {x, w}, {{"alpha", IValue(2)}}, "add");
  Node* odd = g.CreateNode(Op::kCallFunction, OpaqueTarget{"f<a|b>\"{}\\\n"}, {add, IValue("it's\x01")}, {}, "odd");
  g.Output(odd);
}

TEST(Dot, DrawsNodesEdgesAndSubmodules) {
  GraphModule module;
  Fill(module.graph());
  auto body = std::make_shared<GraphModule>();
  body->graph().Output(body->graph().Placeholder("y"));
  DDPOPT_ASSERT_OK(module.AddSubmodule("body", {body, nullptr}));
  const std::string dot = FormatDot(module, {.name = "a \"graph\""});
  EXPECT_THAT(dot, ::testing::StartsWith("digraph \"a \\\"graph\\\"\" {\n"));
  EXPECT_THAT(dot, HasSubstr("  \"add\" [label=\"{%add|call_function|torch.ops.aten.add.Tensor|alpha=2}\", fillcolor=\"#cfe2f3\"];\n"));
  EXPECT_THAT(dot, HasSubstr("|f\\<a\\|b\\>\\\"\\{\\}\\\\\\n|1=it's?}"));
  EXPECT_THAT(dot, HasSubstr("  \"x\" -> \"add\";\n  \"w\" -> \"add\";\n  \"add\" -> \"odd\";\n  \"odd\" -> \"output\";\n"));
  EXPECT_THAT(dot, HasSubstr("  subgraph \"cluster_body/\" {\n    label=\"body\";\n    \"body/y\" [label="));
  EXPECT_THAT(FormatDot(module, {.nested = false}), Not(HasSubstr("cluster")));
  EXPECT_THAT(FormatDot(module, {.parameters = false}), Not(HasSubstr("\"w\"")));
}

// A stand-in for Graphviz in front of PATH.
class SvgTest : public ::testing::Test {
 protected:
  void Install(const std::string& script) {
    const std::string folder = ::testing::TempDir() + "/svg_test";
    mkdir(folder.c_str(), 0755);
    const std::string program = folder + "/dot";
    std::ofstream(program) << "#!/bin/sh\n" << script;
    chmod(program.c_str(), 0755);
    setenv("PATH", (folder + ":/bin:/usr/bin").c_str(), 1);
  }
};

TEST_F(SvgTest, GoesThroughTheProgramDot) {
  Install("echo \"args: $*\"; cat");
  const auto svg = DotToSvg("digraph {}\n");
  ASSERT_THAT(svg, IsOk());
  EXPECT_EQ(*svg, "args: -Tsvg\ndigraph {}\n");
}

TEST_F(SvgTest, LargeTextsGoThrough) {
  Install("cat; cat <<'END'\nend\nEND\n");
  const std::string large(1 << 20, 'x');
  const auto svg = DotToSvg(large);
  ASSERT_THAT(svg, IsOk());
  EXPECT_EQ(svg->size(), large.size() + 4);
}

TEST_F(SvgTest, FailuresCarryItsMessage) {
  Install("echo 'syntax error in line 1' >&2; exit 1");
  EXPECT_THAT(DotToSvg("x"), StatusIs(absl::StatusCode::kInternal, HasSubstr("dot failed: syntax error in line 1")));
}

TEST_F(SvgTest, AMissingProgramIsNamed) {
  setenv("PATH", "/nowhere", 1);
  EXPECT_THAT(DotToSvg("x"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("apt-get install graphviz")));
}

}  // namespace
}  // namespace ddpopt::fx
