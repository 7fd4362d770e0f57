#include "ddpopt/capture/pt2/tree_spec.h"

#include <string>
#include <vector>

#include "ATen/core/Dict.h"
#include "ATen/core/List.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using c10::IValue;
using ::testing::HasSubstr;
using testing::StatusIs;

constexpr char kLeaf[] = R"({"type": null, "context": null, "children_spec": []})";

std::string Tree(const std::string& type, const std::string& context, const std::vector<std::string>& children) {
  std::string text = R"({"type": ")" + type + R"(", "context": ")" + context + R"(", "children_spec": [)";
  for (std::size_t i = 0; i < children.size(); ++i) text += (i == 0 ? "" : ", ") + children[i];
  return text + "]}";
}
std::string Document(const std::string& tree) { return "[1, " + tree + "]"; }

// ({"x": *, "inner": [*]}, *)
std::string Nested() {
  return Document(Tree("builtins.tuple", "null",
                       {Tree("builtins.dict", R"([\"x\", \"inner\"])", {kLeaf, Tree("builtins.list", "null", {kLeaf})}), kLeaf}));
}

IValue List(std::vector<IValue> values) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (IValue& value : values) list.push_back(std::move(value));
  return list;
}
IValue Dict(std::vector<std::pair<std::string, IValue>> entries) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (auto& [key, value] : entries) dict.insert(key, value);
  return dict;
}

TEST(TreeSpecTest, FlattensByTheRecordedOrderAndBack) {
  const absl::StatusOr<TreeSpec> spec = TreeSpec::Parse(Nested());
  DDPOPT_ASSERT_OK(spec);
  EXPECT_EQ(spec->ToString(), R"(({"x": *, "inner": [*]}, *))");
  EXPECT_EQ(spec->num_leaves(), 3u);
  const IValue value = c10::ivalue::Tuple::create({Dict({{"inner", List({2})}, {"x", 1}}), IValue()});
  const absl::StatusOr<std::vector<IValue>> leaves = spec->Flatten(value, "input");
  DDPOPT_ASSERT_OK(leaves);
  ASSERT_EQ(leaves->size(), 3u);
  EXPECT_EQ((*leaves)[0].toInt(), 1);
  EXPECT_EQ((*leaves)[1].toInt(), 2);
  EXPECT_TRUE((*leaves)[2].isNone());
  const absl::StatusOr<IValue> again = spec->Unflatten(*leaves);
  DDPOPT_ASSERT_OK(again);
  const auto dict = again->toTupleRef().elements()[0].toGenericDict();
  EXPECT_EQ(dict.at("x").toInt(), 1);
  EXPECT_EQ(dict.at("inner").toList().get(0).toInt(), 2);
}

TEST(TreeSpecTest, NamesThePlaceThatDoesNotFit) {
  const TreeSpec spec = *TreeSpec::Parse(Nested());
  const auto error = [&](const IValue& value) { return std::string(spec.Flatten(value, "input").status().message()); };
  EXPECT_EQ(error(3), "input: expected a tuple of 2, got a Int");
  EXPECT_EQ(error(c10::ivalue::Tuple::create({Dict({{"x", 1}, {"y", 2}}), 3})), R"(input[0]["inner"] is missing)");
  EXPECT_EQ(error(c10::ivalue::Tuple::create({Dict({{"x", 1}, {"inner", List({1, 2})}}), 3})),
            R"(input[0]["inner"]: expected a list of 1, got a list of 2)");
  EXPECT_THAT(spec.Unflatten({1, 2}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 leaves, but 2")));
}

TEST(TreeSpecTest, OtherDicts) {
  const absl::StatusOr<TreeSpec> spec = TreeSpec::Parse(Document(
      Tree("collections.defaultdict",
           R"({\"default_factory_module\": \"builtins\", \"default_factory_name\": \"int\", \"dict_context\": [3, 1]})", {kLeaf, kLeaf})));
  DDPOPT_ASSERT_OK(spec);
  EXPECT_EQ(spec->ToString(), "{3: *, 1: *}");
  EXPECT_EQ(spec->Unflatten({IValue("a"), IValue("b")})->toGenericDict().at(3).toStringRef(), "a");
}

TEST(TreeSpecTest, UnknownTypesGoFlatOnly) {
  const absl::StatusOr<TreeSpec> spec = TreeSpec::Parse(Document(Tree("my.Config", "null", {kLeaf, kLeaf})));
  DDPOPT_ASSERT_OK(spec);
  EXPECT_EQ(spec->num_leaves(), 2u);
  EXPECT_THAT(spec->Flatten(1, "input"), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("my.Config")));
  EXPECT_THAT(spec->Unflatten({1, 2}), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("my.Config")));
}

TEST(TreeSpecTest, DamagedText) {
  EXPECT_THAT(TreeSpec::Parse("[2, {}]"), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("protocol 2")));
  EXPECT_THAT(TreeSpec::Parse(Document(Tree("builtins.dict", R"([\"x\"])", {kLeaf, kLeaf}))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 keys")));
  EXPECT_THAT(TreeSpec::Parse(Document(Tree("builtins.dict", "[1.5]", {kLeaf}))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a key")));
  EXPECT_THAT(TreeSpec::Parse(Document(Tree("builtins.dict", "[", {kLeaf}))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[1].context")));
}

}  // namespace
}  // namespace ddpopt
