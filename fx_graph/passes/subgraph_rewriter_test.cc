// Case 40 is about rewriters: patterns that match everything, false matches, a repeated operator found once only. Case 39: matches back to
// back.

#include "fx_graph/passes/subgraph_rewriter.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fx_graph/text/parse.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ddpopt::fx {
namespace {

using ::testing::HasSubstr;

// "x y; a = relu(x); b = add.Tensor(a, y); a, b": inputs; statements; what is returned.
std::unique_ptr<Graph> Make(const std::string& inputs, const std::string& body, const std::string& output) {
  std::string text = "graph():\n";
  for (const char input : inputs)
    absl::StrAppend(&text, "    %", std::string(1, input), " = placeholder[target=", std::string(1, input), "]\n");
  std::size_t at = 0;
  while (at < body.size()) {
    const std::size_t end = body.find(';', at);
    const std::string statement = body.substr(at, end - at);
    const std::size_t equals = statement.find('='), open = statement.find('(');
    std::string op = statement.substr(equals + 1, open - equals - 1);
    if (op.find('.') == std::string::npos) op += ".default";
    absl::StrAppend(&text, "    %", statement.substr(0, equals), " = call_function[target=torch.ops.aten.", op,
                    "](args = ", statement.substr(open), ")\n");
    at = end + 1;
  }
  absl::StrAppend(&text, "    return ", output);
  auto graph = ParseGraph(text);
  EXPECT_TRUE(graph.ok()) << graph.status() << "\n" << text;
  return *std::move(graph);
}

class SubgraphRewriterTest : public ::testing::Test {
 protected:
  // The nodes afterwards, as "name=target(args)", or the error.
  std::string Rewrite(const Graph& graph, const Graph& pattern, const Graph& replacement) {
    GraphModule module;
    module.graph().CopyFrom(graph);
    const auto replaced = ReplacePattern(module, pattern, replacement);
    if (!replaced.ok()) return std::string(replaced.status().message());
    matches_ = replaced->size();
    EXPECT_TRUE(module.graph().Lint().ok()) << module.graph().Lint() << "\n" << module.graph().ToString();
    std::string text;
    for (const Node* node : module.graph().nodes()) {
      if (node->op() == Op::kPlaceholder) continue;
      if (node->op() == Op::kOutput) {
        absl::StrAppend(&text, "return ", node->args()[0].ToString());
        continue;
      }
      std::string target = TargetToString(node->target());
      target = target.substr(target.find("aten.") + 5);
      absl::StrAppend(&text, node->name(), "=", target.substr(0, target.find('.')), "(");
      for (std::size_t i = 0; i < node->args().size(); ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", node->args()[i].ToString());
      absl::StrAppend(&text, "); ");
    }
    return text;
  }
  std::size_t matches_ = 0;
};

TEST_F(SubgraphRewriterTest, ReplacesEachOfARepeatedOperator) {
  const auto graph = Make("x", "a=relu(%x,);b=relu(%a,);c=relu(%b,);", "c");
  EXPECT_EQ(Rewrite(*graph, *Make("p", "r=relu(%p,);", "r"), *Make("p", "n=neg(%p,);", "n")),
            "n=neg(%x); n_1=neg(%n); n_2=neg(%n_1); return %n_2");
  EXPECT_EQ(matches_, 3u);
}

TEST_F(SubgraphRewriterTest, MatchesBackToBackTakeWhatCameBefore) {
  const auto graph = Make("xy", "a=add.Tensor(%x, %y);b=relu(%a,);c=add.Tensor(%b, %y);d=relu(%c,);", "d");
  EXPECT_EQ(Rewrite(*graph, *Make("pq", "s=add.Tensor(%p, %q);r=relu(%s,);", "r"), *Make("pq", "m=mul.Tensor(%p, %q);", "m")),
            "m=mul(%x, %y); m_1=mul(%m, %y); return %m_1");
}

TEST_F(SubgraphRewriterTest, ANodeBelongsToOneMatch) {
  const auto graph = Make("x", "a=relu(%x,);b=relu(%a,);c=relu(%b,);", "c");
  EXPECT_EQ(Rewrite(*graph, *Make("p", "r=relu(%p,);s=relu(%r,);", "s"), *Make("p", "n=neg(%p,);", "n")),
            "n=neg(%x); c=relu(%n); return %c");
}

TEST_F(SubgraphRewriterTest, WhatIsPutInIsNotMatched) {
  const auto graph = Make("x", "a=relu(%x,);", "a");
  EXPECT_EQ(Rewrite(*graph, *Make("p", "r=relu(%p,);", "r"), *Make("p", "r=relu(%p,);s=relu(%r,);", "s")),
            "r=relu(%x); s=relu(%r); return %s");
}

TEST_F(SubgraphRewriterTest, OneInputStandsForOneArgument) {
  const auto pattern = Make("p", "m=mul.Tensor(%p, %p);", "m");
  const auto square = Make("p", "n=neg(%p,);", "n");
  EXPECT_EQ(Rewrite(*Make("xy", "a=mul.Tensor(%x, %y);", "a"), *pattern, *square), "a=mul(%x, %y); return %a");
  EXPECT_EQ(Rewrite(*Make("xy", "a=mul.Tensor(%x, %x);", "a"), *pattern, *square), "n=neg(%x); return %n");
}

TEST_F(SubgraphRewriterTest, ConstantsMatchByTypeAndValue) {
  const auto pattern = Make("p", "m=add.Tensor(%p, 1);", "m");
  const auto neg = Make("p", "n=neg(%p,);", "n");
  EXPECT_EQ(Rewrite(*Make("x", "a=add.Tensor(%x, 1.0);", "a"), *pattern, *neg), "a=add(%x, 1.0); return %a");
  EXPECT_EQ(Rewrite(*Make("x", "a=add.Tensor(%x, 2);", "a"), *pattern, *neg), "a=add(%x, 2); return %a");
  EXPECT_EQ(Rewrite(*Make("x", "a=add.Tensor(%x, 1);", "a"), *pattern, *neg), "n=neg(%x); return %n");
  // An input of the pattern stands for a constant too.
  EXPECT_EQ(Rewrite(*Make("x", "a=add.Tensor(%x, 3);", "a"), *Make("pq", "m=add.Tensor(%p, %q);", "m"),
                    *Make("pq", "n=mul.Tensor(%p, %q);", "n")),
            "n=mul(%x, 3); return %n");
}

TEST_F(SubgraphRewriterTest, ValuesUsedOutsideStay) {
  const auto pattern = Make("pq", "s=add.Tensor(%p, %q);r=relu(%s,);", "r");
  const auto two_values = Make("pq", "s=add.Tensor(%p, %q);r=relu(%s,);", "(s, r)");
  const auto mul = Make("pq", "m=mul.Tensor(%p, %q);", "m");
  const auto graph = Make("xy", "a=add.Tensor(%x, %y);b=relu(%a,);c=neg(%a,);", "(b, c)");
  EXPECT_EQ(Rewrite(*graph, *pattern, *mul), "a=add(%x, %y); b=relu(%a); c=neg(%a); return (%b, %c)");
  EXPECT_EQ(Rewrite(*graph, *two_values, *Make("pq", "m=mul.Tensor(%p, %q);n=neg(%m,);", "(m, n)")),
            "m=mul(%x, %y); n=neg(%m); c=neg(%m); return (%n, %c)");
  // Used before the last value of the match is there: what replaces it would come too late.
  EXPECT_EQ(Rewrite(*Make("xy", "a=add.Tensor(%x, %y);c=neg(%a,);b=relu(%a,);", "(b, c)"), *two_values,
                    *Make("pq", "m=mul.Tensor(%p, %q);n=neg(%m,);", "(m, n)")),
            "a=add(%x, %y); c=neg(%a); b=relu(%a); return (%b, %c)");
}

TEST_F(SubgraphRewriterTest, NothingMovesAcrossAnEffect) {
  const auto pattern = Make("p", "n=neg(%p,);r=relu(%n,);", "r");
  const auto replacement = Make("p", "s=sigmoid(%p,);", "s");
  EXPECT_EQ(Rewrite(*Make("x", "a=neg(%x,);w=mul_.Scalar(%x, 2);b=relu(%a,);", "(b, w)"), *pattern, *replacement),
            "a=neg(%x); w=mul_(%x, 2); b=relu(%a); return (%b, %w)");
  EXPECT_EQ(Rewrite(*Make("x", "w=mul_.Scalar(%x, 2);a=neg(%x,);b=relu(%a,);", "(b, w)"), *pattern, *replacement),
            "w=mul_(%x, 2); s=sigmoid(%x); return (%s, %w)");
}

TEST_F(SubgraphRewriterTest, TheReplacementMayBeAnInput) {
  EXPECT_EQ(Rewrite(*Make("x", "a=neg(%x,);b=neg(%a,);c=relu(%b,);", "c"), *Make("p", "n=neg(%p,);m=neg(%n,);", "m"), *Make("p", "", "p")),
            "c=relu(%x); return %c");
}

TEST_F(SubgraphRewriterTest, AnInputOutlivesTheMatch) {
  EXPECT_EQ(Rewrite(*Make("x", "a=neg(%x,);b=add.Tensor(%a, %a);", "b"), *Make("pq", "n=neg(%p,);s=add.Tensor(%n, %q);", "s"),
                    *Make("pq", "m=mul.Tensor(%p, %q);", "m")),
            "a=neg(%x); b=add(%a, %a); return %b");
  EXPECT_EQ(Rewrite(*Make("x", "b=add.Tensor(%x, 3);", "b"), *Make("pq", "s=add.Tensor(%p, %q);", "s"), *Make("pq", "", "q")),
            "b=add(%x, 3); return %b");
}

TEST_F(SubgraphRewriterTest, PatternsThatCanNotBeAreRefused) {
  const auto graph = Make("x", "a=relu(%x,);", "a");
  const auto neg = Make("p", "n=neg(%p,);", "n");
  EXPECT_THAT(Rewrite(*graph, *Make("p", "", "p"), *neg), HasSubstr("would match anything"));
  EXPECT_THAT(Rewrite(*graph, *Make("p", "n=neg(%p,);", "None"), *neg), HasSubstr("returns nothing"));
  EXPECT_THAT(Rewrite(*graph, *Make("pq", "n=add.Tensor(%p, %q);", "n"), *neg), HasSubstr("has 2 inputs, and the replacement 1"));
  EXPECT_THAT(Rewrite(*graph, *Make("p", "n=neg(%p,);m=relu(%n,);", "(n, m)"), *neg), HasSubstr("returns 2 values, and the replacement 1"));
  EXPECT_THAT(Rewrite(*graph, *Make("p", "k=relu(%p,);n=neg(%p,);", "n"), *neg),
              HasSubstr("%k of the pattern doesn't lead to its last value, %n"));
}

}  // namespace
}  // namespace ddpopt::fx
