#include "fx_graph/passes/flops.h"

#include <vector>

#include "ATen/Functions.h"
#include "fx_graph/graph.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt::fx {
namespace {

using c10::IValue;
using ddpopt::testing::FindOperator;

at::Tensor Shape(at::IntArrayRef sizes) { return at::empty(sizes, at::device(at::kMeta)); }

double Count(const char* name, const char* overload, std::vector<IValue> arguments, std::vector<IValue> results) {
  return Flops(FindOperator(name, overload), arguments, results);
}

TEST(Flops, Products) {
  EXPECT_EQ(Count("aten::mm", "", {Shape({2, 3}), Shape({3, 5})}, {Shape({2, 5})}), 2 * 2 * 3 * 5);
  EXPECT_EQ(Count("aten::addmm", "", {Shape({5}), Shape({2, 3}), Shape({3, 5})}, {Shape({2, 5})}), 2 * 2 * 3 * 5);
  EXPECT_EQ(Count("aten::bmm", "", {Shape({7, 2, 3}), Shape({7, 3, 5})}, {Shape({7, 2, 5})}), 7 * 2 * 2 * 3 * 5);
  EXPECT_EQ(Count("aten::addbmm", "", {Shape({2, 5}), Shape({7, 2, 3}), Shape({7, 3, 5})}, {Shape({2, 5})}), 7 * 2 * 2 * 3 * 5);
  EXPECT_EQ(Count("aten::mm", "", {}, {}), 0);
  EXPECT_EQ(Count("aten::addmm_", "", {Shape({2, 5}), Shape({2, 3}), Shape({3, 5})}, {Shape({2, 5})}), 2 * 2 * 3 * 5);
}

TEST(Flops, Convolutions) {
  const std::vector<int64_t> one = {1, 1}, none = {0, 0};
  const at::Tensor x = Shape({2, 4, 8, 8}), w = Shape({6, 2, 3, 3}), y = Shape({2, 6, 6, 6});
  const double forward = 2.0 * (2 * 6 * 6 * 6) * (2 * 3 * 3);
  EXPECT_EQ(Count("aten::convolution", "", {x, w, IValue(), one, none, one, false, none, 2}, {y}), forward);
  EXPECT_EQ(Count("aten::convolution", "", {y, w, IValue(), one, none, one, true, none, 2}, {x}), forward);
  for (const bool input : {false, true}) {
    for (const bool weight : {false, true}) {
      EXPECT_EQ(Count("aten::convolution_backward", "",
                      {y, x, w, IValue(), one, none, one, false, none, 2, c10::List<bool>({input, weight, true})},
                      {input ? Shape({2, 4, 8, 8}) : at::Tensor(), weight ? w : at::Tensor(), Shape({6})}),
                forward * (input + weight));
    }
  }
}

TEST(Flops, Attention) {
  const at::Tensor q = Shape({2, 3, 7, 4}), k = Shape({2, 3, 9, 4}), v = Shape({2, 3, 9, 4});
  const double forward = 2.0 * 2 * 3 * 7 * 9 * (4 + 4);
  EXPECT_EQ(Count("aten::_scaled_dot_product_flash_attention_for_cpu", "", {q, k, v}, {q, Shape({2, 3, 7})}), forward);
  EXPECT_EQ(Count("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "", {q, q, k, v}, {q, k, v}), 2.5 * forward);
}

TEST(Flops, OtherArithmeticIsNotCounted) {
  EXPECT_EQ(Count("aten::add", "Tensor", {Shape({2}), Shape({2})}, {Shape({2})}), 0);
  EXPECT_EQ(Count("aten::linalg_vector_norm", "", {Shape({4, 4})}, {Shape({})}), 0);
  EXPECT_GT(Count("aten::linalg_inv_ex", "", {Shape({4, 4})}, {Shape({4, 4}), Shape({})}), 0);
  EXPECT_GT(Count("aten::_fft_r2c", "", {Shape({8})}, {Shape({5})}), 0);
}

TEST(Flops, OfNodes) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* y = graph.CallFunction(FindOperator("aten::mm", ""), {x, x});
  EXPECT_EQ(Flops(*y), 0);
  x->meta().val = Shape({4, 4});
  y->meta().val = Shape({4, 4});
  EXPECT_EQ(Flops(*y), 2 * 4 * 4 * 4);
  EXPECT_EQ(Flops(*x), 0);
}

}  // namespace
}  // namespace ddpopt::fx
