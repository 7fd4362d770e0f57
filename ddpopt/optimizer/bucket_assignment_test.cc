#include "ddpopt/optimizer/bucket_assignment.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "fx_graph/graph_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/calls.h"

namespace ddpopt {
namespace {

using testing::FindOperator;
using c10::IValue;
using fx::Argument;
using fx::Node;
using Kind = fx::GraphModule::AttrKind;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Builds graphs of byte-sized steps: parameters are float, so that one element is 4 bytes.
class Builder {
 public:
  Builder() : gm(std::make_shared<fx::GraphModule>()) {}

  at::Tensor Parameter(const std::string& path, int64_t numel, bool requires_grad = true) {
    at::Tensor tensor = at::zeros({numel}).set_requires_grad(requires_grad);
    Attr(path, tensor, Kind::kParameter);
    return tensor;
  }
  void Attr(const std::string& path, IValue value, Kind kind) { ASSERT_TRUE(gm->AddAttr(path, std::move(value), kind).ok()); }
  Node* Input(const std::string& name = "x") { return gm->graph().Placeholder(name); }
  Node* Get(const std::string& path) { return gm->graph().GetAttr(path); }
  Node* Mul(Argument a, Argument b) { return gm->graph().CallFunction(FindOperator("aten::mul", "Tensor"), {std::move(a), std::move(b)}); }
  Node* Relu(Node* a) { return gm->graph().CallFunction(FindOperator("aten::relu"), {a}); }
  // A graph x * p0 * p1 * ... with parameters of these many bytes.
  static Builder Chain(const std::vector<int64_t>& bytes) {
    Builder b;
    Node* x = b.Input();
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const std::string path = "p" + std::to_string(i);
      b.Attr(path, at::zeros({bytes[i]}, at::kHalf).to(at::kFloat8_e4m3fn).set_requires_grad(true), Kind::kParameter);
      x = b.Mul(x, b.Get(path));
    }
    b.gm->graph().Output(x);
    return b;
  }

  std::shared_ptr<fx::GraphModule> gm;
};

BucketOptions Caps(absl::optional<int64_t> cap, absl::optional<int64_t> first_cap = absl::nullopt) {
  BucketOptions options;
  options.bucket_cap_bytes = cap;
  options.first_bucket_cap_bytes = first_cap;
  return options;
}

std::vector<int64_t> BytesOf(const BucketAssignment& assignment) {
  std::vector<int64_t> bytes;
  for (const Bucket& bucket : assignment.buckets) bytes.push_back(bucket.bytes);
  return bytes;
}

std::vector<int64_t> BucketBytes(const fx::GraphModule& gm, const BucketOptions& options) {
  auto assignment = AssignBuckets(gm, options);
  EXPECT_TRUE(assignment.ok()) << assignment.status();
  if (!assignment.ok()) return {};
  // Every computing node lies in exactly one bucket, in graph order.
  std::size_t nodes = 0;
  int last = 0;
  for (const Node* node : gm.graph().nodes()) {
    const auto found = assignment->bucket_of.find(node);
    if (found == assignment->bucket_of.end()) continue;
    EXPECT_GE(found->second, last);
    last = found->second;
    ++nodes;
  }
  std::size_t listed = 0;
  for (const Bucket& bucket : assignment->buckets) listed += bucket.nodes.size();
  EXPECT_EQ(nodes, listed);
  EXPECT_EQ(nodes, assignment->bucket_of.size());
  return BytesOf(*assignment);
}

TEST(BucketAssignment, ClosesAtTheCapToTheByte) {
  // From the back: 60 and then 40 is 100 bytes.
  const Builder b = Builder::Chain({50, 50, 40, 60});
  EXPECT_THAT(BucketBytes(*b.gm, Caps(99)), ElementsAre(100, 100));
  EXPECT_THAT(BucketBytes(*b.gm, Caps(100)), ElementsAre(100, 100));
  EXPECT_THAT(BucketBytes(*b.gm, Caps(101)), ElementsAre(50, 150));
}

TEST(BucketAssignment, MayOvershoot) {
  const Builder b = Builder::Chain({10, 500, 99, 1});
  EXPECT_THAT(BucketBytes(*b.gm, Caps(101)), ElementsAre(10, 600));
}

TEST(BucketAssignment, FirstCapHoldsForTheBucketReducedFirst) {
  const Builder b = Builder::Chain({40, 40, 40, 40, 40});
  EXPECT_THAT(BucketBytes(*b.gm, Caps(80, 40)), ElementsAre(80, 80, 40));
  EXPECT_THAT(BucketBytes(*b.gm, Caps(80, 39)), ElementsAre(80, 80, 40));
  EXPECT_THAT(BucketBytes(*b.gm, Caps(80, 41)), ElementsAre(40, 80, 80));
  // Only the cap: the first cap equals it.
  EXPECT_THAT(BucketBytes(*b.gm, Caps(80)), ElementsAre(40, 80, 80));
}

TEST(BucketAssignment, Defaults) {
  constexpr int64_t kMiB = 1 << 20;
  const Builder b = Builder::Chain({10 * kMiB, 24 * kMiB, 1 * kMiB, 1 * kMiB, 1 * kMiB - 1, 1});
  EXPECT_THAT(BucketBytes(*b.gm, {}), ElementsAre(10 * kMiB, 26 * kMiB, 1 * kMiB));
  // An explicit first cap may be as large as the default cap, not larger.
  EXPECT_THAT(BucketBytes(*b.gm, Caps(absl::nullopt, 25 * kMiB)), ElementsAre(10 * kMiB, 27 * kMiB));
  EXPECT_EQ(AssignBuckets(*b.gm, Caps(absl::nullopt, 25 * kMiB + 1)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(BucketAssignment, RefusesBadCaps) {
  const Builder b = Builder::Chain({40});
  const auto message = [&](const BucketOptions& options) { return std::string(AssignBuckets(*b.gm, options).status().message()); };
  EXPECT_THAT(message(Caps(10, 11)), HasSubstr("first_bucket_cap_bytes (11) is above bucket_cap_bytes (10)"));
  EXPECT_THAT(message(Caps(-1)), HasSubstr("bucket_cap_bytes is negative: -1"));
  EXPECT_THAT(message(Caps(10, -2)), HasSubstr("first_bucket_cap_bytes is negative: -2"));
  EXPECT_TRUE(AssignBuckets(*b.gm, Caps(10, 10)).ok());
}

TEST(BucketAssignment, OneBucketMeansNoSplit) {
  const Builder b = Builder::Chain({40, 40});
  EXPECT_THAT(BucketBytes(*b.gm, Caps(1000)), ElementsAre(80));
  const Builder none = Builder::Chain({});
  EXPECT_THAT(BucketBytes(*none.gm, {}), ElementsAre(0));
}

TEST(BucketAssignment, CapZeroGivesEachParameterItsOwnBucket) {
  Builder b;
  b.Parameter("p", 2);
  b.Parameter("q", 3);
  Node* x = b.Relu(b.Mul(b.Relu(b.Mul(b.Input(), b.Get("p"))), b.Get("q")));
  b.gm->graph().Output(x);
  EXPECT_THAT(BucketBytes(*b.gm, Caps(0)), ElementsAre(8, 12));
}

// What nobody uses outside can't be a piece of its own: its node would return nothing and the gradient would have no way in.
TEST(BucketAssignment, ExtendsABucketOfInPlaceStepsOnly) {
  Builder b;
  b.Parameter("p", 10);
  b.Parameter("q", 20);
  b.Parameter("r", 5);
  b.Attr("state", at::zeros({1}), Kind::kBuffer);
  Node* x = b.Input();
  Node* first = b.Mul(x, b.Get("p"));
  Node* second = b.Relu(first);
  b.gm->graph().CallFunction(FindOperator("aten::add_", "Tensor"), {b.Get("state"), b.Get("r")});
  b.gm->graph().CallFunction(FindOperator("aten::mul_", "Tensor"), {b.Get("state"), b.Get("q")});
  b.gm->graph().Output(b.Mul(second, b.Get("q")));

  // mul_ joins the last step, whose value is used. add_ alone has nothing to hand on, until relu joins it.
  auto assignment = AssignBuckets(*b.gm, Caps(1));
  ASSERT_TRUE(assignment.ok());
  ASSERT_THAT(BytesOf(*assignment), ElementsAre(40, 20, 80));
  EXPECT_EQ(assignment->buckets[1].extended_by_nodes, 1);
  EXPECT_EQ(assignment->buckets[1].bytes_before_extension, 20);
  EXPECT_EQ(assignment->buckets[2].extended_by_nodes, 0);

  // With the in-place steps last, nothing of theirs is used.
  Builder c;
  c.Parameter("p", 10);
  c.Parameter("q", 20);
  c.Parameter("r", 5);
  c.Attr("state", at::zeros({1}), Kind::kBuffer);
  Node* y = c.Relu(c.Mul(c.Input(), c.Get("p")));
  c.gm->graph().CallFunction(FindOperator("aten::add_", "Tensor"), {c.Get("state"), c.Get("r")});
  c.gm->graph().CallFunction(FindOperator("aten::mul_", "Tensor"), {c.Get("state"), c.Get("q")});
  c.gm->graph().Output(y);
  assignment = AssignBuckets(*c.gm, Caps(80));
  ASSERT_TRUE(assignment.ok());
  ASSERT_THAT(BytesOf(*assignment), ElementsAre(40, 100));
  EXPECT_EQ(assignment->buckets[1].extended_by_nodes, 2);  // add_ and relu
  EXPECT_EQ(assignment->buckets[1].bytes_before_extension, 80);
  EXPECT_THAT(assignment->buckets[1].parameters, ElementsAre("q", "r"));
  EXPECT_THAT(assignment->ToTable(), HasSubstr("extended by 2 nodes from 80 B"));
}

TEST(BucketAssignment, ATiedParameterCountsOnceAtItsEarliestUse) {
  Builder b;
  const at::Tensor shared = b.Parameter("embedding.weight", 100);
  b.Attr("head.weight", shared, Kind::kParameter);
  b.Parameter("middle.weight", 50);
  Node* x = b.Mul(b.Input(), b.Get("embedding.weight"));
  x = b.Mul(x, b.Get("middle.weight"));
  x = b.Mul(x, b.Get("head.weight"));
  b.gm->graph().Output(x);
  auto assignment = AssignBuckets(*b.gm, Caps(200));
  ASSERT_TRUE(assignment.ok());
  EXPECT_THAT(BytesOf(*assignment), ElementsAre(400, 200));
  EXPECT_THAT(assignment->buckets[0].parameters, ElementsAre("embedding.weight"));
  EXPECT_THAT(assignment->buckets[1].parameters, ElementsAre("middle.weight"));
}

TEST(BucketAssignment, FindsParametersInNestedAndKeywordArguments) {
  Builder b;
  b.Parameter("in_list", 10);
  b.Parameter("by_keyword", 20);
  Node* x = b.Input();
  Node* cat = b.gm->graph().CallFunction(FindOperator("aten::cat"), {Argument::List({x, b.Get("in_list")})});
  Node* add = b.gm->graph().CallFunction(FindOperator("aten::add", "Tensor"), {cat}, {{"other", b.Get("by_keyword")}});
  b.gm->graph().Output(Argument::Tuple({add}));
  auto assignment = AssignBuckets(*b.gm, Caps(80));
  ASSERT_TRUE(assignment.ok());
  EXPECT_THAT(BytesOf(*assignment), ElementsAre(40, 80));
}

TEST(BucketAssignment, FindsParametersInsideSubmodules) {
  Builder b;
  const at::Tensor known = b.Parameter("outer.known", 10);
  auto inner = std::make_shared<fx::GraphModule>();
  ASSERT_TRUE(inner->AddAttr("weight", at::zeros({5}).requires_grad_(), Kind::kParameter).ok());
  ASSERT_TRUE(inner->AddAttr("alias", known, Kind::kParameter).ok());
  Node* a = inner->graph().Placeholder("a");
  Node* y = inner->graph().CallFunction(FindOperator("aten::mul", "Tensor"), {a, inner->graph().GetAttr("weight")});
  inner->graph().Output(inner->graph().CallFunction(FindOperator("aten::mul", "Tensor"), {y, inner->graph().GetAttr("alias")}));
  ASSERT_TRUE(b.gm->AddSubmodule("block", {inner, nullptr}).ok());
  b.gm->graph().Output(b.gm->graph().CallModule("block", {b.Input()}));
  auto assignment = AssignBuckets(*b.gm, Caps(80));
  ASSERT_TRUE(assignment.ok());
  EXPECT_THAT(BytesOf(*assignment), ElementsAre(60));
  EXPECT_THAT(assignment->buckets[0].parameters, ElementsAre("outer.known", "block.weight"));
}

TEST(BucketAssignment, FrozenIntegerIgnoredAndBuffersNeverCount) {
  Builder b;
  b.Parameter("p", 10);
  b.Parameter("frozen", 100, /*requires_grad=*/false);
  const at::Tensor ignored = b.Parameter("ignored", 100);
  b.Attr("ignored_alias", ignored, Kind::kParameter);
  b.Attr("integer", at::zeros({100}, at::kLong), Kind::kParameter);
  b.Attr("buffer", at::zeros({100}).requires_grad_(), Kind::kBuffer);
  b.Attr("constant", at::zeros({100}).requires_grad_(), Kind::kConstant);
  Node* x = b.Input();
  for (const char* path : {"p", "frozen", "ignored", "ignored_alias", "integer", "buffer", "constant"}) x = b.Mul(x, b.Get(path));
  b.gm->graph().Output(x);
  BucketOptions options = Caps(1);
  options.ignored_parameters = {"ignored"};
  auto assignment = AssignBuckets(*b.gm, options);
  ASSERT_TRUE(assignment.ok());
  ASSERT_THAT(BytesOf(*assignment), ElementsAre(40));
  EXPECT_THAT(assignment->buckets[0].parameters, ElementsAre("p"));
}

TEST(BucketAssignment, UnusedParametersGoToTheBucketReducedLast) {
  Builder b = Builder::Chain({40, 50});
  b.Parameter("unused", 3);
  b.Parameter("unused_frozen", 3, /*requires_grad=*/false);
  auto assignment = AssignBuckets(*b.gm, Caps(1));
  ASSERT_TRUE(assignment.ok());
  EXPECT_THAT(BytesOf(*assignment), ElementsAre(52, 50));
  EXPECT_THAT(assignment->buckets[0].parameters, ElementsAre("p0", "unused"));
  // Without a single node too.
  Builder empty;
  empty.Parameter("unused", 3);
  empty.gm->graph().Output(empty.Input());
  EXPECT_THAT(BucketBytes(*empty.gm, {}), ElementsAre(12));
}

TEST(BucketAssignment, AParameterlessFirstPieceIsFolded) {
  Builder b;
  b.Parameter("p", 10);
  b.Parameter("q", 20);
  Node* pre = b.Relu(b.Input());
  Node* x = b.Mul(pre, b.Get("p"));
  b.gm->graph().Output(b.Mul(x, b.Get("q")));
  auto assignment = AssignBuckets(*b.gm, Caps(40));
  ASSERT_TRUE(assignment.ok());
  ASSERT_THAT(BytesOf(*assignment), ElementsAre(40, 80));
  EXPECT_THAT(assignment->buckets[0].nodes, ElementsAre(pre, x));
  EXPECT_EQ(assignment->bucket_of.at(pre), 0);
}

TEST(BucketAssignment, ParametersStandInTheOrderOfReadiness) {
  const Builder b = Builder::Chain({1, 2, 3, 4});
  auto assignment = AssignBuckets(*b.gm, Caps(6, 4));
  ASSERT_TRUE(assignment.ok());
  ASSERT_EQ(assignment->buckets.size(), 2u);
  EXPECT_THAT(assignment->buckets[0].parameters, ElementsAre("p2", "p1", "p0"));
  EXPECT_THAT(assignment->buckets[1].parameters, ElementsAre("p3"));
}

TEST(BucketAssignment, PlaceholdersCanBeParameters) {
  Builder b;
  Node* p = b.Input("p_weight");
  p->meta().is_parameter = true;
  Node* x = b.Input();
  b.gm->graph().Output(b.Mul(x, p));
  EXPECT_THAT(std::string(AssignBuckets(*b.gm, {}).status().message()), HasSubstr("%p_weight"));
  p->meta().val = at::zeros({7}).requires_grad_();
  auto assignment = AssignBuckets(*b.gm, {});
  ASSERT_TRUE(assignment.ok());
  EXPECT_THAT(assignment->buckets[0].parameters, ElementsAre("p_weight"));
  EXPECT_EQ(assignment->buckets[0].bytes, 28);
}

TEST(BucketAssignment, Reports) {
  const Builder b = Builder::Chain({40, 2048, 60});
  auto assignment = AssignBuckets(*b.gm, Caps(60));
  ASSERT_TRUE(assignment.ok());
  EXPECT_THAT(assignment->ToTable(), HasSubstr("2.00 KiB"));
  const auto json = nlohmann::json::parse(assignment->ToJson());
  ASSERT_EQ(json["buckets"].size(), 3u);
  EXPECT_EQ(json["buckets"][1]["bytes"], 2048);
  EXPECT_EQ(json["buckets"][2]["parameters"], nlohmann::json::array({"p2"}));
}

// Case 4: the same model gives the same buckets, however its parameters are written.
TEST(BucketAssignment, EveryFormGivesTheSameBuckets) {
  const auto weight = [](int64_t numel) { return at::zeros({numel}).set_requires_grad(true); };
  const std::vector<int64_t> sizes = {10, 20, 5, 40};
  std::vector<std::vector<int64_t>> buckets;
  for (const std::string form : {"get_attr at the use", "get_attr at the top", "placeholders", "modules"}) {
    Builder b;
    fx::Graph& g = b.gm->graph();
    Node* x = b.Input();
    std::vector<Node*> top;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::string path = "layers." + std::to_string(i) + ".weight";
      if (form == "modules") continue;
      if (form == "placeholders") {
        top.push_back(b.Input(path));
        top.back()->meta().is_parameter = true;
        top.back()->meta().val = weight(sizes[i]);
        continue;
      }
      b.Attr(path, weight(sizes[i]), Kind::kParameter);
      if (form == "get_attr at the top") top.push_back(b.Get(path));
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::string path = "layers." + std::to_string(i);
      if (form == "modules") {
        auto leaf = std::make_shared<fx::GraphModule>();  // a module without a graph
        ASSERT_TRUE(leaf->AddAttr("weight", weight(sizes[i]), Kind::kParameter).ok());
        ASSERT_TRUE(b.gm->AddSubmodule(path, {leaf, nullptr}).ok());
        // Case 3: called by its method or as a module.
        x = i % 2 == 0 ? g.CallModule(path, {x}) : g.CallMethod("forward", {b.Get(path), x});
      } else {
        x = b.Mul(x, form == "get_attr at the use" ? b.Get(path + ".weight") : top[i]);
      }
      x = b.Relu(x);
    }
    g.Output(x);
    buckets.push_back(BucketBytes(*b.gm, Caps(101)));
    EXPECT_EQ(buckets.back(), (std::vector<int64_t>{140, 160})) << form;
    auto assignment = AssignBuckets(*b.gm, Caps(101));
    ASSERT_TRUE(assignment.ok());
    EXPECT_THAT(assignment->buckets[0].parameters, ElementsAre("layers.2.weight", "layers.1.weight", "layers.0.weight")) << form;
    EXPECT_THAT(assignment->warnings, IsEmpty());
    EXPECT_EQ(assignment->inactive_reason, "");
  }
}

// Cases 1 and 2: what get_attr reads need not be a parameter.
TEST(BucketAssignment, AttributesThatAreNoParametersCostNothing) {
  Builder b;
  b.Parameter("p", 10);
  b.Attr("tensor", at::zeros({100}), Kind::kConstant);
  b.Attr("table.size", IValue(7), Kind::kConstant);
  ASSERT_TRUE(b.gm->AddSubmodule("conv.parametrizations", {std::make_shared<fx::GraphModule>(), nullptr}).ok());
  Node* x = b.Mul(b.Mul(b.Input(), b.Get("tensor")), b.Get("table.size"));
  x = b.gm->graph().CallMethod("apply", {b.Get("conv.parametrizations"), x});
  b.gm->graph().Output(b.Mul(x, b.Get("p")));
  EXPECT_THAT(BucketBytes(*b.gm, {}), ElementsAre(40));
  Builder missing;
  missing.gm->graph().Output(missing.Relu(missing.Get("no.such")));
  const auto refused = AssignBuckets(*missing.gm, {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(refused.status().message()), AllOf(HasSubstr("%relu"), HasSubstr("\"no.such\"")));
}

TEST(BucketAssignment, EachBucketCanHaveItsCap) {
  const Builder b = Builder::Chain({40, 40, 40, 40, 40, 40, 40});
  BucketOptions options;
  options.bucket_cap_bytes_list = {40, 120, 80};
  EXPECT_THAT(BucketBytes(*b.gm, options), ElementsAre(40, 80, 120, 40));  // the last one holds for all that follow
  options.bucket_cap_bytes_list = {0};
  EXPECT_THAT(BucketBytes(*b.gm, options).size(), 7u);
  const auto message = [&] { return std::string(AssignBuckets(*b.gm, options).status().message()); };
  options.bucket_cap_bytes_list = {40, -1};
  EXPECT_THAT(message(), HasSubstr("bucket_cap_bytes_list[1] is negative: -1"));
  options.bucket_cap_bytes_list = {40, 80};
  options.first_bucket_cap_bytes = 30;
  EXPECT_THAT(message(), AllOf(HasSubstr("bucket_cap_bytes_list ([40, 80])"), HasSubstr("first_bucket_cap_bytes (30)")));
}

TEST(BucketAssignment, BucketsCanEndWhereTheUserSays) {
  Builder b = Builder::Chain({10, 20, 30, 40});
  std::vector<Node*> steps;
  for (Node* node : b.gm->graph().nodes()) {
    if (node->op() == fx::Op::kCallFunction) steps.push_back(node);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i]->meta().nn_module = i < 2 ? "blocks.1" : "blocks.1.inner";
  steps[3]->meta().nn_module = "blocks.10";
  const auto bytes = [&](std::vector<std::string> ends) {
    BucketOptions options;
    options.bucket_ends = std::move(ends);
    return BucketBytes(*b.gm, options);
  };
  EXPECT_THAT(bytes({"p1"}), ElementsAre(30, 70));
  EXPECT_THAT(bytes({std::string(steps[0]->name()), "p2"}), ElementsAre(10, 50, 40));
  EXPECT_THAT(bytes({"p2", "parameter:p0"}), ElementsAre(10, 50, 40));
  EXPECT_THAT(bytes({"blocks.1"}), ElementsAre(60, 40));  // its last node is an inner module's
  EXPECT_THAT(bytes({"module:blocks.1.inner"}), ElementsAre(60, 40));
  EXPECT_THAT(bytes({std::string(steps[3]->name())}), ElementsAre(100));  // the graph's end
}

TEST(BucketAssignment, BadBucketEndsAreRefusedByName) {
  Builder b;
  b.Parameter("p", 10);
  b.Parameter("q", 10);
  b.Parameter("frozen", 10, /*requires_grad=*/false);
  Node* x = b.gm->graph().CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{"my.op"}, {b.Input(), b.Get("p")}, {}, "q");
  b.gm->graph().Output(b.Mul(b.Mul(x, b.Get("q")), b.Get("frozen")));
  const auto message = [&](const std::string& end, absl::optional<int64_t> cap = absl::nullopt) {
    BucketOptions options = Caps(cap);
    options.bucket_ends = {end};
    const auto assignment = AssignBuckets(*b.gm, options);
    EXPECT_EQ(assignment.status().code(), assignment.ok() ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument);
    return std::string(assignment.status().message());
  };
  for (const char* unknown : {"nothing", "frozen", "x", "module:q"}) EXPECT_THAT(message(unknown), HasSubstr(unknown));
  EXPECT_THAT(message("q"), AllOf(HasSubstr("ambiguous"), HasSubstr("as node it means %q"), HasSubstr("\"parameter:q\"")));
  EXPECT_EQ(message("node:q"), "");
  EXPECT_THAT(message("node:q", 100), AllOf(HasSubstr("bucket_ends (node:q)"), HasSubstr("bucket_cap_bytes (100)")));
}

TEST(BucketAssignment, ChosenEndsThatEndNothingAreSaid) {
  Builder b;
  b.Parameter("p", 10);
  b.Parameter("q", 20);
  Node* pre = b.Relu(b.Input());
  Node* x = b.Mul(b.Mul(pre, b.Get("p")), b.Get("q"));
  Node* post = b.Relu(b.Relu(x));
  b.gm->graph().Output(post);
  BucketOptions options;
  options.bucket_ends = {"q", "p"};
  auto assignment = AssignBuckets(*b.gm, options);
  ASSERT_TRUE(assignment.ok()) << assignment.status();
  EXPECT_THAT(BytesOf(*assignment), ElementsAre(40, 80));
  EXPECT_THAT(assignment->warnings, ElementsAre(HasSubstr("\"q\"")));
  options.bucket_ends = {std::string(pre->name())};
  assignment = AssignBuckets(*b.gm, options);
  ASSERT_TRUE(assignment.ok());
  EXPECT_THAT(BytesOf(*assignment), ElementsAre(120));
  EXPECT_TRUE(assignment->fused_preamble);
  EXPECT_THAT(assignment->warnings, ElementsAre(HasSubstr("none of the chosen bucket ends")));
}

TEST(BucketAssignment, OneBucketBelowTheCapIsNoWarning) {
  const auto assignment = AssignBuckets(*Builder::Chain({40, 40}).gm, Caps(1000));
  ASSERT_TRUE(assignment.ok());
  EXPECT_THAT(assignment->warnings, IsEmpty());
  EXPECT_THAT(assignment->inactive_reason, AllOf(HasSubstr("80"), HasSubstr("1000")));
  EXPECT_THAT(assignment->Path(), ElementsAre("single_bucket"));
  EXPECT_THAT(assignment->ToTable(), HasSubstr("not cut: its 80 bytes"));
}

// Case 4: a graph that can't be cut although it should be.
TEST(BucketAssignment, AGraphAboveTheCapInOneBucketIsAWarningWithItsReason) {
  const auto warning = [](const Builder& b, const BucketOptions& options) {
    const auto assignment = AssignBuckets(*b.gm, options);
    EXPECT_TRUE(assignment.ok()) << assignment.status();
    EXPECT_EQ(assignment->buckets.size(), 1u);
    EXPECT_EQ(assignment->warnings.size(), 1u);
    EXPECT_THAT(assignment->ToTable(), HasSubstr("warning: "));
    return assignment->warnings.empty() ? "" : assignment->warnings[0];
  };
  const Builder one = Builder::Chain({400});
  EXPECT_THAT(warning(one, Caps(100)), AllOf(HasSubstr("400 bytes"), HasSubstr("cap is 100"), HasSubstr("only at %mul")));

  Builder opaque;
  const at::Tensor w = opaque.Parameter("w", 100);
  auto body = std::make_shared<fx::GraphModule>();
  ASSERT_TRUE(body->AddAttr("w", w, Kind::kParameter).ok());
  body->graph().Output(body->graph().GetAttr("w"));
  ASSERT_TRUE(opaque.gm->AddSubmodule("body", {body, nullptr}).ok());
  Node* x = opaque.gm->graph().CreateNode(fx::Op::kCallFunction, fx::HigherOrderTarget{"wrap"}, {opaque.Get("body"), opaque.Input()});
  opaque.gm->graph().Output(x);
  EXPECT_THAT(warning(opaque, Caps(100)), AllOf(HasSubstr("%wrap"), HasSubstr("opaque region")));

  Builder mutating;
  mutating.Parameter("p", 10);
  mutating.Attr("state", at::zeros({1}), Kind::kBuffer);
  for (int i = 0; i < 3; ++i) {
    mutating.gm->graph().CallFunction(FindOperator("aten::add_", "Tensor"), {mutating.Get("state"), mutating.Get("p")});
  }
  mutating.gm->graph().Output(mutating.Input());
  EXPECT_THAT(warning(mutating, Caps(4)), HasSubstr("the cap is reached only at %add_"));  // p counts once, at its first use

  Builder frozen;
  frozen.Parameter("frozen", 10, /*requires_grad=*/false);
  frozen.Parameter("ignored", 10);
  frozen.gm->graph().Output(frozen.Mul(frozen.Get("frozen"), frozen.Get("ignored")));
  BucketOptions ignore;
  ignore.ignored_parameters = {"ignored"};
  EXPECT_THAT(warning(frozen, ignore), HasSubstr("no parameter counts: 1 do not require a gradient, 1 are ignored"));

  Builder none;
  none.gm->graph().Output(none.Relu(none.Input()));
  EXPECT_THAT(warning(none, {}), HasSubstr("the graph has no parameters"));
}

TEST(BucketAssignment, MixedDtypesAndDevicesAreSeparateParts) {
  Builder b;
  b.Parameter("p", 10);
  b.Attr("half", at::zeros({10}, at::kHalf).set_requires_grad(true), Kind::kParameter);
  b.Attr("far", at::zeros({10}, at::TensorOptions().device(at::kMeta)).set_requires_grad(true), Kind::kParameter);
  b.Parameter("q", 5);
  Node* x = b.Input();
  for (const char* path : {"p", "half", "far", "q"}) x = b.Mul(x, b.Get(path));
  b.gm->graph().Output(x);
  const auto assignment = AssignBuckets(*b.gm, Caps(1000));
  ASSERT_TRUE(assignment.ok());
  ASSERT_EQ(assignment->buckets.size(), 1u);
  const std::vector<Bucket::Group>& groups = assignment->buckets[0].groups;
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].bytes, 60);
  EXPECT_EQ(groups[0].parameters, 2);
  EXPECT_EQ(groups[1].device.type(), at::kMeta);
  EXPECT_EQ(groups[2].dtype, at::kHalf);
  EXPECT_THAT(assignment->ToTable(),
              HasSubstr("reduced in 3 parts: Float on cpu: 60 B in 2; Float on meta: 40 B in 1; Half on cpu: 20 B in 1"));
  EXPECT_EQ(nlohmann::json::parse(assignment->ToJson())["buckets"][0]["groups"].size(), 3u);
}

TEST(BucketAssignment, SumsPass32Bits) {
  Builder b;
  Node* x = b.Input();
  for (int i = 0; i < 3; ++i) {
    const std::string path = "p" + std::to_string(i);
    b.Attr(path, at::zeros({1 << 30}, at::TensorOptions().device(at::kMeta)).set_requires_grad(true), Kind::kParameter);
    x = b.Mul(x, b.Get(path));
  }
  b.gm->graph().Output(x);
  EXPECT_THAT(BucketBytes(*b.gm, Caps(int64_t{1} << 40)), ElementsAre(int64_t{12} << 30));
}

}  // namespace
}  // namespace ddpopt
