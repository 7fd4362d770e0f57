#include "fx_graph/passes/pass_manager.h"

#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "fx_graph/passes/builtin_passes.h"
#include "fx_graph/passes/reproducer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/matchers.h"

namespace ddpopt::fx {
namespace {

using testing::FindOperator;
using testing::IsOkAndHolds;
using testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class FnPass : public Pass {
 public:
  FnPass(std::string name, std::function<absl::StatusOr<bool>(GraphModule&)> run) : name_(std::move(name)), run_(std::move(run)) {}
  absl::string_view name() const override { return name_; }
  absl::StatusOr<bool> Run(GraphModule& module) const override { return run_(module); }

 private:
  std::string name_;
  std::function<absl::StatusOr<bool>(GraphModule&)> run_;
};

class PassManagerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Node* x = module_.graph().Placeholder("x");
    module_.graph().CallFunction(FindOperator("aten::neg"), {x});
    module_.graph().Output(module_.graph().CallFunction(FindOperator("aten::relu"), {x}));
    options_.print = [this](absl::string_view text) { printed_.emplace_back(text); };
  }
  static std::unique_ptr<Pass> Idle(const std::string& name) {
    return std::make_unique<FnPass>(name, [](GraphModule&) { return false; });
  }
  static std::unique_ptr<Pass> Failing() {
    return std::make_unique<FnPass>("failing", [](GraphModule&) { return absl::NotFoundError("no luck"); });
  }
  std::string Read(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  GraphModule module_;
  PassManagerOptions options_;
  std::vector<std::string> printed_;
};

TEST_F(PassManagerTest, RunsInOrderAndTellsWhetherAnythingChanged) {
  PassManager manager(options_);
  EXPECT_THAT(manager.Run(module_), IsOkAndHolds(false));
  DDPOPT_ASSERT_OK(manager.AddPipeline(BuiltinPasses(), "common_subexpression,dead_code{random_is_impure=false}"));
  EXPECT_EQ(manager.Pipeline(), "common_subexpression,dead_code{random_is_impure=false}");
  EXPECT_THAT(manager.Run(module_), IsOkAndHolds(true));
  EXPECT_EQ(module_.graph().size(), 3u);
  ASSERT_THAT(manager.timings(), SizeIs(2));
  EXPECT_FALSE(manager.timings()[0].changed);
  EXPECT_TRUE(manager.timings()[1].changed);
  EXPECT_EQ(manager.timings()[1].nodes_before, 4u);
  EXPECT_EQ(manager.timings()[1].nodes_after, 3u);
  EXPECT_THAT(manager.TimingReport(),
              AllOf(HasSubstr("common_subexpression (no change)"), HasSubstr("dead_code{random_is_impure=false}\n")));
  EXPECT_THAT(manager.Run(module_), IsOkAndHolds(false));
  EXPECT_THAT(manager.AddPipeline(BuiltinPasses(), "dead_code,gone"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(manager.Pipeline(), "common_subexpression,dead_code{random_is_impure=false}");
  EXPECT_THAT(printed_, IsEmpty());
}

TEST_F(PassManagerTest, PrintsWhatIsAsked) {
  options_.print_before = {"a"};
  options_.print_after = {"b"};
  options_.print_after_change = {"*"};
  PassManager manager(options_);
  manager.Add(Idle("a"));
  manager.Add(Idle("b"));
  DDPOPT_ASSERT_OK(manager.AddPipeline(BuiltinPasses(), "dead_code"));
  EXPECT_THAT(manager.Run(module_), IsOkAndHolds(true));
  EXPECT_THAT(printed_,
              ElementsAre(AllOf(HasSubstr("# before pass a\ngraph():"), HasSubstr("aten.neg")), HasSubstr("# after pass b\ngraph():"),
                          AllOf(HasSubstr("# after pass dead_code\ngraph():"), Not(HasSubstr("aten.neg")))));
}

TEST_F(PassManagerTest, StopsAtAnErrorThatNamesThePass) {
  PassManager manager(options_);
  manager.Add(Failing());
  bool ran = false;
  manager.Add(std::make_unique<FnPass>("later", [&](GraphModule&) { return ran = true; }));
  EXPECT_THAT(manager.Run(module_), StatusIs(absl::StatusCode::kNotFound, "pass failing: no luck"));
  EXPECT_FALSE(ran);
  EXPECT_THAT(manager.timings(), SizeIs(1));
}

TEST_F(PassManagerTest, ExceptionsBecomeErrors) {
  PassManager manager(options_);
  manager.Add(std::make_unique<FnPass>("thrower", [](GraphModule&) -> absl::StatusOr<bool> { throw std::runtime_error("boom"); }));
  EXPECT_THAT(manager.Run(module_), StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("pass thrower"), HasSubstr("boom"))));
}

TEST_F(PassManagerTest, LintsAfterEachPass) {
  const auto broken = [] {
    return std::make_unique<FnPass>("broken", [](GraphModule& module) {
      module.graph().CallFunction(FindOperator("aten::neg"), {module.graph().front()});  // after the output
      return true;
    });
  };
  PassManager manager(options_);
  manager.Add(broken());
  EXPECT_THAT(manager.Run(module_), StatusIs(absl::StatusCode::kInternal,
                                             AllOf(HasSubstr("pass broken: the graph does not lint"), HasSubstr("after the output"))));
  EXPECT_THAT(manager.Run(module_), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("before the first pass")));
  options_.verify_each = false;
  PassManager trusting(options_);
  trusting.Add(broken());
  EXPECT_THAT(trusting.Run(module_), IsOkAndHolds(true));
}

TEST_F(PassManagerTest, HoldsPassesToTheirClaims) {
  options_.verify_claims = true;
  PassManager boaster(options_);
  boaster.Add(std::make_unique<FnPass>("boaster", [](GraphModule&) { return true; }));
  EXPECT_THAT(boaster.Run(module_), StatusIs(absl::StatusCode::kInternal, HasSubstr("says that it changed")));
  PassManager sneak(options_);
  sneak.Add(std::make_unique<FnPass>("sneak", [](GraphModule& module) -> absl::StatusOr<bool> {
    const absl::Status erased = module.graph().EraseNode(module.graph().front()->next());
    if (!erased.ok()) return erased;
    return false;
  }));
  EXPECT_THAT(sneak.Run(module_), StatusIs(absl::StatusCode::kInternal, HasSubstr("left the graph alone, but did not")));
}

TEST_F(PassManagerTest, WritesAReproducerOfTheFailingPass) {
  options_.reproducer_path = ::testing::TempDir() + "/pass_manager_test_reproducer.txt";
  std::remove(options_.reproducer_path.c_str());
  PassManager manager(options_);
  DDPOPT_ASSERT_OK(manager.AddPipeline(BuiltinPasses(), "dead_code"));
  EXPECT_THAT(manager.Run(module_), IsOkAndHolds(true));
  EXPECT_EQ(Read(options_.reproducer_path), "");
  const std::string before = module_.graph().ToString();
  manager.Add(std::make_unique<FnPass>("half", [](GraphModule& module) -> absl::StatusOr<bool> {
    module.graph().Placeholder("left_over");
    return absl::InternalError("line one\nline two");
  }));
  EXPECT_THAT(manager.Run(module_),
              StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("pass half: line one"), HasSubstr(options_.reproducer_path))));
  const auto reproducer = ParseReproducer(Read(options_.reproducer_path));
  DDPOPT_ASSERT_OK(reproducer);
  EXPECT_EQ(reproducer->pipeline, "half");
  EXPECT_EQ(reproducer->error, "INTERNAL: pass half: line one\nline two");
  EXPECT_EQ(reproducer->graph, before + "\n");  // as the failing pass got it
}

TEST_F(PassManagerTest, TellsWhyThereIsNoReproducer) {
  options_.reproducer_path = ::testing::TempDir() + "/no/such/folder/reproducer.txt";
  PassManager unwritable(options_);
  unwritable.Add(Failing());
  EXPECT_THAT(unwritable.Run(module_),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("no luck"), HasSubstr("can't be written to"))));
  options_.serialize = [](const GraphModule&) { return absl::UnimplementedError("too big"); };
  PassManager unprintable(options_);
  unprintable.Add(Failing());
  EXPECT_THAT(unprintable.Run(module_),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("no luck"), HasSubstr("no reproducer: too big"))));
}

TEST(Reproducer, RoundTrips) {
  for (const char* pipeline : {"", "a,b{c=d}"}) {
    const Reproducer reproducer{pipeline, "two\nlines", "graph():\n# not a head\n"};
    const std::string text = FormatReproducer(reproducer);
    EXPECT_TRUE(IsReproducer(text));
    const auto parsed = ParseReproducer(text);
    DDPOPT_ASSERT_OK(parsed);
    EXPECT_EQ(parsed->pipeline, reproducer.pipeline);
    EXPECT_EQ(parsed->error, reproducer.error);
    EXPECT_EQ(parsed->graph, reproducer.graph);
  }
  EXPECT_FALSE(IsReproducer("graph():\n"));
  EXPECT_THAT(ParseReproducer("graph():\n").status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParseReproducer("# ddpopt graph reproducer\n# error: x\ngraph():\n").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no pipeline")));
}

}  // namespace
}  // namespace ddpopt::fx
