// Products and convolutions of operands of different dtypes: LibTorch's Meta kernels accept what the real ones refuse.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "c10/core/ScalarType.h"
#include "c10/util/Exception.h"
#include "fake_tensor/sweep.h"

namespace ddpopt {
namespace {

struct Product {
  const char* op;
  std::vector<std::vector<int64_t>> shapes;  // of the operands, whose first two or three have dtypes of their own
  std::vector<c10::IValue> rest;
};

std::vector<Product> Products() {
  const auto pair = [](int64_t n) { return Ints({n, n}); };
  return {
      {"aten::mm", {{2, 3}, {3, 4}}, {}},
      {"aten::bmm", {{1, 2, 3}, {1, 3, 4}}, {}},
      {"aten::matmul", {{2, 3}, {3, 4}}, {}},
      {"aten::mv", {{2, 3}, {3}}, {}},
      {"aten::dot", {{3}, {3}}, {}},
      {"aten::linear", {{2, 3}, {4, 3}, {4}}, {}},
      {"aten::addmm", {{4}, {2, 3}, {3, 4}}, {}},
      {"aten::addmv", {{2}, {2, 3}, {3}}, {}},
      {"aten::baddbmm", {{1, 2, 4}, {1, 2, 3}, {1, 3, 4}}, {}},
      {"aten::addbmm", {{2, 4}, {1, 2, 3}, {1, 3, 4}}, {}},
      {"aten::conv2d", {{1, 2, 4, 4}, {3, 2, 3, 3}, {3}}, {}},
      {"aten::conv1d", {{1, 2, 4}, {3, 2, 3}, {3}}, {}},
      {"aten::convolution", {{1, 2, 4, 4}, {3, 2, 3, 3}, {3}}, {pair(1), pair(0), pair(1), false, pair(0), 1}},
      {"aten::convolution", {{1, 2, 4, 4}, {2, 3, 3, 3}, {3}}, {pair(1), pair(0), pair(1), true, pair(0), 1}},
  };
}

// Every pair of dtypes, one of the operands at a time having the second. What the real kernel says is asked, but of the pairs that mixed
// precision makes, of which a wrong answer trains on silently.
std::vector<SweepCase> Cases() {
  const std::vector<std::pair<at::ScalarType, at::ScalarType>> pairs = {
      {at::kHalf, at::kFloat},     {at::kFloat, at::kHalf},    {at::kBFloat16, at::kFloat},
      {at::kFloat, at::kBFloat16}, {at::kHalf, at::kBFloat16}, {at::kFloat, at::kDouble},
      {at::kLong, at::kFloat},     {at::kFloat, at::kLong},    {at::kFloat, at::kComplexFloat}};
  std::vector<SweepCase> cases;
  int number = 0;
  for (const Product& product : Products()) {
    ++number;
    for (const auto& [most, one] : pairs) {
      for (std::size_t other = 0; other < product.shapes.size(); ++other) {
        std::vector<c10::IValue> args;
        for (std::size_t i = 0; i < product.shapes.size(); ++i) args.emplace_back(NoGrad(product.shapes[i], i == other ? one : most));
        args.insert(args.end(), product.rest.begin(), product.rest.end());
        SweepCase c =
            OpCase(absl::StrCat("product", number, "_", c10::toString(most), "_", c10::toString(one), "_", other), product.op, args);
        bool rejected = product.shapes.size() == 2 && most != at::kLong && at::isFloatingType(most) && at::isFloatingType(one);
        if (!rejected) {
          try {
            c.run(c.inputs);
          } catch (const c10::Error&) {
            rejected = true;
          }
        }
        cases.push_back(rejected ? Rejected(std::move(c)) : std::move(c));
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Products, SweepTest, ::testing::ValuesIn(Cases()), SweepName);

}  // namespace
}  // namespace ddpopt
