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
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace ddpopt
