#include "testing/models/dlrm.h"

#include <optional>

#include "ATen/core/List.h"
#include "ATen/ops/binary_cross_entropy.h"
#include "ATen/ops/bmm.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/index.h"
#include "ATen/ops/relu.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/tril_indices.h"
#include "c10/core/ScalarType.h"
#include "c10/util/Exception.h"
#include "torch/enum.h"

namespace ddpopt::testing {

DlrmImpl::DlrmImpl(const DlrmConfig& config) {
  const int64_t width = config.width;
  bottom1_ = register_module("bottom1", torch::nn::Linear(config.features, 2 * width));
  bottom2_ = register_module("bottom2", torch::nn::Linear(2 * width, width));
  sum_ = register_module("sum", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(config.rows, width).mode(torch::kSum)));
  mean_ = register_module("mean", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(config.rows, width).mode(torch::kMean)));
  top1_ = register_module("top1", torch::nn::Linear(width + 3, width));
  top2_ = register_module("top2", torch::nn::Linear(width, 1));
}

at::Tensor DlrmImpl::forward(const at::Tensor& dense, const at::Tensor& bags, const at::Tensor& weights, const at::Tensor& clicked) {
  const at::Tensor x = at::relu(bottom2_->forward(at::relu(bottom1_->forward(dense))));
  const at::Tensor features = at::stack({x, sum_->forward(bags, {}, weights), mean_->forward(bags)}, 1);
  const at::Tensor products = at::bmm(features, features.transpose(1, 2));
  const at::Tensor pairs = at::tril_indices(3, 3, -1, bags.options());
  const c10::List<std::optional<at::Tensor>> below({std::nullopt, pairs.select(0, 0), pairs.select(0, 1)});
  const at::Tensor h = at::relu(top1_->forward(at::cat({x, at::index(products, below)}, 1)));
  return at::binary_cross_entropy(at::sigmoid(top2_->forward(h)).squeeze(-1), clicked);
}

}  // namespace ddpopt::testing
