#include "base/for_each_tensor.h"

#include <optional>
#include <tuple>
#include <vector>

#include "ATen/core/List.h"
#include "ATen/ops/empty.h"
#include "gtest/gtest.h"

namespace ddpopt {
namespace {

using at::Tensor;
using c10::IValue;

std::vector<int64_t> SizesIn(const IValue& value) {
  std::vector<int64_t> sizes;
  ForEachTensor(value, [&](const Tensor& tensor) { sizes.push_back(tensor.size(0)); });
  return sizes;
}

using Sizes = std::vector<int64_t>;

TEST(ForEachTensor, LooksIntoListsAndTuples) {
  const Tensor one = at::empty({1}), two = at::empty({2}), three = at::empty({3});
  EXPECT_EQ(SizesIn(one), Sizes({1}));
  EXPECT_EQ(SizesIn(std::vector<Tensor>{two, Tensor(), one, two}), Sizes({2, 1, 2}));
  const c10::List<std::optional<Tensor>> indices({std::nullopt, three, Tensor()});
  EXPECT_EQ(SizesIn(indices), Sizes({3}));
  c10::impl::GenericList lists(c10::AnyType::get());
  lists.push_back(indices);
  lists.push_back(one);
  EXPECT_EQ(SizesIn(c10::ivalue::Tuple::create({IValue(two), IValue(lists), IValue(7)})), Sizes({2, 3, 1}));
}

TEST(ForEachTensor, OtherValuesHaveNone) {
  EXPECT_EQ(SizesIn(IValue()), Sizes());
  EXPECT_EQ(SizesIn(Tensor()), Sizes());
  EXPECT_EQ(SizesIn(std::vector<int64_t>{1, 2}), Sizes());
  EXPECT_EQ(SizesIn("text"), Sizes());
}

}  // namespace
}  // namespace ddpopt
