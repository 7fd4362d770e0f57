// Random graphs of everything a graph can hold: written and read back, in both forms, nothing may change.

#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fx_graph/constants.h"
#include "fx_graph/format.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/tensor_meta.h"
#include "fx_graph/text/json.h"
#include "fx_graph/text/parse.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/matchers.h"

namespace ddpopt::fx {
namespace {

using ::c10::IValue;
using ::ddpopt::testing::FindOperator;
using ::ddpopt::testing::IsOk;

class RandomGraph {
 public:
  explicit RandomGraph(uint64_t seed) : random_(seed) {}

  void Fill(Graph& g, int size) {
    for (int i = 0; i < size; ++i) {
      Node* node = nullptr;
      switch (Below(8)) {
        case 0:
          node = Below(2) == 0 ? g.Placeholder(absl::StrCat("arg_", i))
                               : g.CreateNode(Op::kPlaceholder, PathTarget{absl::StrCat("p", i)}, {Value(2)});
          break;
        case 1:
          node = g.GetAttr(absl::StrCat("layers.", Below(3), ".w"));
          break;
        case 2:
          node = g.CallModule(absl::StrCat("layers.", Below(3)), Args());
          break;
        case 3:
          node = g.CallMethod("view", Args(), Keywords());
          break;
        case 4:
          node =
              g.CreateNode(Op::kCallFunction, OpaqueTarget{Below(2) == 0 ? "operator.getitem" : "torch._C._nn.linear"}, Args(), Keywords());
          break;
        case 5:
          node = g.CreateNode(Op::kCallFunction, HigherOrderTarget{"cond"}, Args(), Keywords());
          break;
        case 6: {
          static constexpr int kDtypes[] = {0, 6, 15};
          node = g.CallFunction(FindOperator("aten::to", "dtype"), {Value(0), IValue(kDtypes[Below(3)])},
                                {{"memory_format", IValue(static_cast<int64_t>(Below(3)))}});
          break;
        }
        default:
          node = g.CallFunction(FindOperator("aten::cat"), {Argument::List(Args()), IValue(-1)});
          break;
      }
      if (Below(4) == 0) node->meta().type_expr = "torch.Tensor";
      if (Below(2) == 0) node->meta().val = Form();
      if (Below(4) == 0) node->meta().nn_module = absl::StrCat("layers.", Below(3));
      nodes_.push_back(node);
    }
    g.Output(Value(0));
  }

  std::size_t Below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }

 private:
  std::vector<Argument> Args() {
    std::vector<Argument> args;
    for (std::size_t i = Below(4); i > 0; --i) args.push_back(Value(0));
    return args;
  }

  Kwargs Keywords() {
    Kwargs kwargs;
    for (std::size_t i = Below(3); i > 0; --i) kwargs.emplace_back(absl::StrCat("k", i), Value(0));
    return kwargs;
  }

  Argument Value(int depth) {
    if (!nodes_.empty() && depth < 2 && Below(3) == 0) return nodes_[Below(nodes_.size())];
    switch (Below(depth > 3 ? 9 : 13)) {
      case 0:
        return Argument();
      case 1:
        return IValue(Below(2) == 0);
      case 2:
        return IValue(static_cast<int64_t>(random_()) >> Below(64));
      case 3: {
        const uint64_t bits = random_();
        double number;
        static_assert(sizeof(number) == sizeof(bits));
        std::memcpy(&number, &bits, sizeof(bits));
        return IValue(Below(2) == 0 ? number : static_cast<double>(static_cast<int64_t>(bits) >> 40) / 1000);
      }
      case 4:
        return IValue(c10::complex<double>(static_cast<double>(Below(3)) - 1, static_cast<double>(Below(1000)) / 7 - 70));
      case 5:
        return IValue(Text());
      case 6: {
        static const char* const kDevices[] = {"cpu", "cuda", "cuda:3", "meta"};
        return IValue(c10::Device(kDevices[Below(4)]));
      }
      case 7:
        return Below(2) == 0 ? DtypeConstant(static_cast<c10::ScalarType>(Below(12)))
                             : MemoryFormatConstant(static_cast<c10::MemoryFormat>(Below(4)));
      case 8:
        return Below(2) == 0 ? EllipsisConstant() : OpaqueConstant(Text(), Text());
      case 9:
        return Argument::List(Elements(depth));
      case 10:
        return Argument::Tuple(Elements(depth));
      case 11: {
        std::vector<Argument> elements = Elements(depth);
        if (elements.size() % 2 == 1) elements.pop_back();
        return Argument::Dict(std::move(elements));
      }
      default:
        return Argument::Slice(Value(depth + 1), Value(depth + 1), Value(depth + 1));
    }
  }

  std::vector<Argument> Elements(int depth) {
    std::vector<Argument> elements;
    for (std::size_t i = Below(4); i > 0; --i) elements.push_back(Value(depth + 1));
    return elements;
  }

  std::string Text() {
    static const char* const kTexts[] = {"mean", "",   "None", "cpu",      "1",    "a, b", "it's", "\"", "a: b", "%arg_0",
                                         "# x",  "\n", "\\",   "\xc3\xa9", "\xff", "\x01", "}",    ") ", "inf"};
    std::string text = kTexts[Below(std::size(kTexts))];
    if (Below(3) == 0) text += kTexts[Below(std::size(kTexts))];
    return text;
  }

  IValue Form() {
    TensorMeta meta;
    meta.dtype = Below(2) == 0 ? c10::ScalarType::Float : c10::ScalarType::BFloat16;
    for (std::size_t i = Below(3); i > 0; --i) {
      meta.sizes.push_back(static_cast<int64_t>(Below(4)));
      meta.strides.push_back(static_cast<int64_t>(Below(5)));
    }
    meta.storage_offset = static_cast<int64_t>(Below(2));
    meta.storage_nbytes = *MinimumStorageBytes(meta) + static_cast<int64_t>(Below(2) * 16);
    meta.requires_grad = Below(2) == 0;
    return IValue(*HollowTensor(meta));
  }

  std::mt19937_64 random_;
  std::vector<Node*> nodes_;
};

TEST(RoundTrip, RandomGraphs) {
  constexpr uint64_t kFirstSeed = 1000;
  std::printf("seeds from %llu\n", static_cast<unsigned long long>(kFirstSeed));
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Graph graph;
    RandomGraph random(seed);
    random.Fill(graph, static_cast<int>(1 + random.Below(30)));
    ASSERT_THAT(graph.Lint(), IsOk());

    const std::string exact = FormatGraph(graph, {.exact = true});
    const auto parsed = ParseGraph(exact);
    ASSERT_THAT(parsed, IsOk()) << exact;
    ASSERT_EQ(FormatGraph(**parsed, {.exact = true}), exact);
    ASSERT_EQ((*parsed)->ToString(), graph.ToString());

    const auto json = ToJson(graph);
    ASSERT_THAT(json, IsOk());
    const auto read = GraphFromJson(*json);
    ASSERT_THAT(read, IsOk()) << *json;
    ASSERT_EQ(*ToJson(**read), *json);
    ASSERT_EQ(FormatGraph(**read, {.exact = true}), exact);

    // Through text all is kept but metadata: JSON tells every value's exact kind.
    for (Node* node : graph.nodes()) {
      std::string type_expr = node->meta().type_expr;
      node->meta() = NodeMeta();
      node->meta().type_expr = std::move(type_expr);
    }
    ASSERT_EQ(*ToJson(**parsed), *ToJson(graph));
  }
}

}  // namespace
}  // namespace ddpopt::fx
