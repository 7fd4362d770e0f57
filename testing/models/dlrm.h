#ifndef DDPOPT_TESTING_MODELS_DLRM_H_
#define DDPOPT_TESTING_MODELS_DLRM_H_

// A recommender: bags of categories, pairwise products of features, a click's probability.
//
//   Dlrm net(DlrmConfig{});
//   at::Tensor loss = net->forward(dense, bags, weights, clicked);
//
// dense: float [batch, features]; bags: int64 [batch, ids]; weights: float [batch, ids]; clicked: float [batch], 0 or 1.

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct DlrmConfig {
  int64_t features = 6, rows = 40, width = 8;
};

class DlrmImpl : public torch::nn::Module {
 public:
  explicit DlrmImpl(const DlrmConfig& config);
  at::Tensor forward(const at::Tensor& dense, const at::Tensor& bags, const at::Tensor& weights, const at::Tensor& clicked);

 private:
  torch::nn::Linear bottom1_{nullptr}, bottom2_{nullptr}, top1_{nullptr}, top2_{nullptr};
  torch::nn::EmbeddingBag sum_{nullptr}, mean_{nullptr};
};
TORCH_MODULE(Dlrm);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_DLRM_H_
