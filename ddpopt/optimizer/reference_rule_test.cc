// The reference rule against the default one, difference by difference: docs/buckets.md names these tests.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ddpopt/optimizer/bucket_assignment.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/split_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Argument;
using fx::Node;
using testing::FindOperator;
using Kind = fx::GraphModule::AttrKind;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReferenceRule : public ::testing::Test {
 protected:
  static at::Tensor Weight(int64_t bytes) { return at::zeros({bytes / 4}).set_requires_grad(true); }
  Node* Input(const std::string& name) { return gm_.graph().Placeholder(name); }
  Node* Parameter(const std::string& name, const at::Tensor& value) {
    Node* node = Input(name);
    node->meta().is_parameter = true;
    node->meta().val = value;
    return node;
  }
  Node* Parameter(const std::string& name, int64_t bytes) { return Parameter(name, Weight(bytes)); }
  Node* Attribute(const std::string& path, int64_t bytes) {
    EXPECT_TRUE(gm_.AddAttr(path, Weight(bytes), Kind::kParameter).ok());
    return gm_.graph().GetAttr(path);
  }
  Node* Mul(Argument a, Argument b) {
    return gm_.graph().CallFunction(FindOperator("aten::mul", "Tensor"), {std::move(a), std::move(b)});
  }
  Node* Relu(Argument a) { return gm_.graph().CallFunction(FindOperator("aten::relu"), {std::move(a)}); }
  Node* Method(const std::string& name, std::vector<Argument> args) { return gm_.graph().CallMethod(name, std::move(args)); }
  // A module with parameters "weight" and "bias", added in this order.
  std::shared_ptr<fx::GraphModule> Leaf(const std::string& path, int64_t weight, int64_t bias) {
    auto leaf = std::make_shared<fx::GraphModule>();
    EXPECT_TRUE(leaf->AddAttr("weight", Weight(weight), Kind::kParameter).ok());
    EXPECT_TRUE(leaf->AddAttr("bias", Weight(bias), Kind::kParameter).ok());
    EXPECT_TRUE(gm_.AddSubmodule(path, {leaf, nullptr}).ok());
    return leaf;
  }
  void Output(Argument result) { gm_.graph().Output(std::move(result)); }

  BucketAssignment Assign(BucketRule rule, absl::optional<int64_t> cap = absl::nullopt,
                          absl::optional<int64_t> first = absl::nullopt) {
    BucketOptions options;
    options.rule = rule;
    options.bucket_cap_bytes = cap;
    options.first_bucket_cap_bytes = first;
    return Assign(options);
  }
  BucketAssignment Assign(const BucketOptions& options) {
    auto assignment = AssignBuckets(gm_, options);
    EXPECT_TRUE(assignment.ok()) << assignment.status();
    return assignment.ok() ? *std::move(assignment) : BucketAssignment();
  }
  static std::vector<int64_t> Bytes(const BucketAssignment& assignment) {
    std::vector<int64_t> bytes;
    for (const Bucket& bucket : assignment.buckets) bytes.push_back(bucket.bytes);
    return bytes;
  }
  std::vector<int64_t> Reference(absl::optional<int64_t> cap = absl::nullopt, absl::optional<int64_t> first = absl::nullopt) {
    return Bytes(Assign(BucketRule::kReference, cap, first));
  }
  std::vector<int64_t> Default(absl::optional<int64_t> cap = absl::nullopt, absl::optional<int64_t> first = absl::nullopt) {
    return Bytes(Assign(BucketRule::kDefault, cap, first));
  }

  fx::GraphModule gm_;
};

constexpr int64_t kMiB = 1 << 20;

TEST_F(ReferenceRule, ClosesBeforeANodeWhenAtTheCap) {
  Node* x = Input("x");
  for (const char* name : {"a", "b", "c", "d"}) x = Mul(x, Parameter(name, 40));
  Output(x);
  EXPECT_THAT(Reference(80, 40), ElementsAre(40, 80, 40));
  EXPECT_THAT(Reference(81, 41), ElementsAre(80, 80));
  EXPECT_THAT(Default(80, 40), ElementsAre(40, 80, 40));
}

// Case 23. PyTorch's first cap stays 1 MiB when only the cap is given, and must not be above it.
TEST_F(ReferenceRule, FirstCapStaysOneMebibyte) {
  Node* x = Input("x");
  for (const char* name : {"a", "b", "c", "d"}) x = Mul(x, Parameter(name, 2 * kMiB));
  Output(x);
  EXPECT_THAT(Reference(4 * kMiB), ElementsAre(2 * kMiB, 4 * kMiB, 2 * kMiB));
  EXPECT_THAT(Default(4 * kMiB), ElementsAre(4 * kMiB, 4 * kMiB));
  EXPECT_THAT(Reference(), Default());
  BucketOptions options;
  options.rule = BucketRule::kReference;
  options.bucket_cap_bytes = kMiB / 2;
  EXPECT_THAT(std::string(AssignBuckets(gm_, options).status().message()),
              HasSubstr("the default first_bucket_cap_bytes (1048576) is above bucket_cap_bytes (524288)"));
  EXPECT_THAT(Default(kMiB / 2), ElementsAre(2 * kMiB, 2 * kMiB, 2 * kMiB, 2 * kMiB));
}

TEST_F(ReferenceRule, AListOfCapsIsReducedToItsLargest) {
  Node* x = Input("x");
  for (const char* name : {"a", "b", "c", "d", "e"}) x = Mul(x, Parameter(name, kMiB));
  Output(x);
  BucketOptions options;
  options.bucket_cap_bytes_list = {2 * kMiB, 1 * kMiB};
  EXPECT_THAT(Bytes(Assign(options)), ElementsAre(kMiB, kMiB, kMiB, 2 * kMiB));
  options.rule = BucketRule::kReference;
  EXPECT_THAT(Bytes(Assign(options)), ElementsAre(2 * kMiB, 2 * kMiB, kMiB));
  options.bucket_cap_bytes_list.clear();
  options.bucket_ends = {"a"};
  EXPECT_THAT(std::string(AssignBuckets(gm_, options).status().message()),
              AllOf(HasSubstr("bucket_ends (a)"), HasSubstr("kReference")));
}

// Case 22.
TEST_F(ReferenceRule, CountsAParameterAtEachUse) {
  Node* x = Input("x");
  Node* tied = Parameter("tied", 40);
  Node* other = Parameter("other", 40);
  Output(Mul(Mul(Mul(x, tied), other), tied));
  const BucketAssignment reference = Assign(BucketRule::kReference, 80, 80);
  EXPECT_THAT(Bytes(reference), ElementsAre(40, 80));
  EXPECT_THAT(reference.buckets[1].parameters, ElementsAre("tied", "other"));
  EXPECT_THAT(reference.buckets[0].parameters, ElementsAre("tied"));
  EXPECT_THAT(Default(80, 80), ElementsAre(80));
}

TEST_F(ReferenceRule, DoesNotSeeKeywordAndNestedArguments) {
  Node* x = Input("x");
  Node* by_keyword = Parameter("by_keyword", 40);
  Node* in_list = Parameter("in_list", 20);
  Node* direct = Parameter("direct", 12);
  Node* cat = gm_.graph().CallFunction(FindOperator("aten::cat"), {Argument::List({x, in_list})});
  Node* add = gm_.graph().CallFunction(FindOperator("aten::add", "Tensor"), {cat}, {{"other", by_keyword}});
  Output(Mul(add, direct));
  EXPECT_THAT(Reference(12, 12), ElementsAre(12));  // in front of it nothing counts
  EXPECT_THAT(Default(12, 12), ElementsAre(20, 40, 12));
}

TEST_F(ReferenceRule, SaysWhenItSeesNothing) {
  Output(gm_.graph().CallFunction(FindOperator("aten::relu"), {}, {{"self", Parameter("w", 40)}}));
  const BucketAssignment assignment = Assign(BucketRule::kReference, 10, 10);
  EXPECT_THAT(assignment.Path(), ElementsAre("single_bucket", "no_params"));
  EXPECT_THAT(assignment.warnings, ElementsAre(HasSubstr("does not see")));
}

TEST_F(ReferenceRule, CountsTheWholeStorage) {
  const at::Tensor storage = at::zeros({100});
  Node* x = Input("x");
  x = Mul(x, Parameter("first", storage.slice(0, 0, 50).set_requires_grad(true)));
  x = Mul(x, Parameter("second", storage.slice(0, 50, 100).set_requires_grad(true)));
  Output(x);
  EXPECT_THAT(Reference(1000, 1000), ElementsAre(800));
  EXPECT_THAT(Default(1000, 1000), ElementsAre(400));
}

TEST_F(ReferenceRule, FrozenAndIgnoredParametersDoNotCount) {
  Node* x = Mul(Input("x"), Parameter("frozen", at::zeros({10})));
  x = Mul(x, Parameter("ignored", 40));
  Output(Mul(x, Parameter("p", 8)));
  BucketOptions options;
  options.rule = BucketRule::kReference;
  options.ignored_parameters = {"ignored"};
  const BucketAssignment assignment = Assign(options);
  EXPECT_THAT(Bytes(assignment), ElementsAre(8));
  EXPECT_THAT(assignment.buckets[0].parameters, ElementsAre("p"));
}

TEST_F(ReferenceRule, UnusedParametersAreInNoBucket) {
  Parameter("unused", 40);
  Output(Mul(Input("x"), Parameter("p", 8)));
  EXPECT_THAT(Reference(), ElementsAre(8));
  EXPECT_THAT(Default(), ElementsAre(48));
}

// get_attr nodes are steps: read at the top, they fill buckets in which nothing is computed, and numbers of submodules have gaps.
TEST_F(ReferenceRule, AttributesAreSteps) {
  Node* x = Input("x");
  std::vector<Node*> weights;
  for (const char* path : {"a.weight", "b.weight", "c.weight"}) weights.push_back(Attribute(path, 40));
  for (Node* weight : weights) x = Mul(x, weight);
  Output(x);
  const BucketAssignment top = Assign(BucketRule::kReference, 40, 40);
  EXPECT_THAT(Bytes(top), ElementsAre(40, 40, 40));
  EXPECT_EQ(top.buckets[2].nodes.size(), 4u);  // a get_attr and all operators
  EXPECT_THAT(top.buckets[2].parameters, ElementsAre("c.weight"));
  EXPECT_THAT(top.warnings, ElementsAre(AllOf(HasSubstr("cut nothing"), HasSubstr("at its top"))));
  const auto split = fx::SplitModule(gm_, [&](const Node* node) { return top.bucket_of.at(node); });
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ((*split)->submodules().begin()->first, "submod_2");
  EXPECT_EQ((*split)->submodules().size(), 1u);
  EXPECT_THAT(Default(40, 40), ElementsAre(40, 40, 40));  // by use
  EXPECT_THAT(Assign(BucketRule::kDefault, 40, 40).warnings, IsEmpty());
}

TEST_F(ReferenceRule, NeverCutsWhatOnlyMutates) {
  Node* y = Method("clone", {Input("x")});
  for (const char* name : {"a", "b", "c"}) Method("add_", {y, Parameter(name, 40)});
  Output(y);
  const BucketAssignment assignment = Assign(BucketRule::kReference, 1, 1);
  EXPECT_THAT(Bytes(assignment), ElementsAre(120));
  EXPECT_EQ(assignment.buckets[0].extended_by_nodes, 3);  // two add_ and the clone
  EXPECT_EQ(assignment.buckets[0].bytes_before_extension, 40);
  EXPECT_THAT(assignment.Path(), ElementsAre("single_bucket", "extended"));
  EXPECT_THAT(assignment.warnings, ElementsAre(HasSubstr("for want of a value")));
}

TEST_F(ReferenceRule, UnderACapOfZeroAnEmptyBucketIsExtended) {
  Output(Relu(Relu(Input("x"))));
  const BucketAssignment reference = Assign(BucketRule::kReference, 0, 0);
  ASSERT_EQ(reference.buckets.size(), 1u);  // two, of which the first is merged
  EXPECT_EQ(reference.buckets[0].extended_by_nodes, 1);
  EXPECT_TRUE(reference.fused_preamble);
  EXPECT_EQ(Assign(BucketRule::kDefault, 0, 0).buckets[0].extended_by_nodes, 0);
}

TEST_F(ReferenceRule, CountsAModuleOnceInItsOwnOrder) {
  const auto shared = Leaf("a", 40, 8);
  ASSERT_TRUE(gm_.AddSubmodule("alias", {shared, nullptr}).ok());
  auto outer = std::make_shared<fx::GraphModule>();
  ASSERT_TRUE(gm_.AddSubmodule("b", {outer, nullptr}).ok());
  auto child = std::make_shared<fx::GraphModule>();
  ASSERT_TRUE(child->AddAttr("weight", Weight(12), Kind::kParameter).ok());
  ASSERT_TRUE(outer->AddSubmodule("0", {child, nullptr}).ok());
  Node* x = gm_.graph().CallModule("a", {Input("x")});
  x = gm_.graph().CallModule("b", {x});
  Output(gm_.graph().CallModule("alias", {x}));
  const BucketAssignment assignment = Assign(BucketRule::kReference);
  EXPECT_THAT(Bytes(assignment), ElementsAre(60));
  EXPECT_THAT(assignment.buckets[0].parameters, ElementsAre("alias_weight", "alias_bias", "b_0.weight"));
}

// Case 3: a module's method called by name counts the module too, under the method's name.
TEST_F(ReferenceRule, CountsTheModuleThatAMethodIsCalledOn) {
  Leaf("lin", 40, 8);
  Leaf("act", 12, 4);
  Node* x = Method("forward", {gm_.graph().GetAttr("lin"), Input("x")});
  x = gm_.graph().CallModule("act", {x});
  Output(Method("relu", {x}));  // the target of its argument is a module's path
  const BucketAssignment assignment = Assign(BucketRule::kReference);
  EXPECT_THAT(assignment.buckets[0].parameters, ElementsAre("relu_weight", "relu_bias", "forward_weight", "forward_bias"));
  const BucketAssignment ours = Assign(BucketRule::kDefault);
  EXPECT_THAT(ours.buckets[0].parameters, ElementsAre("act.bias", "act.weight", "lin.bias", "lin.weight"));
  EXPECT_EQ(ours.buckets[0].bytes, 64);
}

TEST_F(ReferenceRule, SeesAMethodsArgumentsUnlessCalledOnAFunctionsResult) {
  Node* x = Method("mul", {Input("x"), Parameter("on_placeholder", 40)});
  x = Method("mul", {x, Parameter("on_method", 20)});
  x = Method("mul", {Relu(x), Parameter("on_function", 8)});
  Output(x);
  const BucketAssignment assignment = Assign(BucketRule::kReference);
  EXPECT_THAT(assignment.buckets[0].parameters, ElementsAre("on_method", "on_placeholder"));
  EXPECT_THAT(Default(), ElementsAre(68));
}

TEST_F(ReferenceRule, ReportsAsJson) {
  Output(Mul(Input("x"), Parameter("p", 8)));
  EXPECT_THAT(Assign(BucketRule::kReference).ToJson(),
              AllOf(HasSubstr("\"rule\":\"reference\""), HasSubstr("\"path\":[\"single_bucket\"]")));
}

}  // namespace
}  // namespace ddpopt
