#ifndef DDPOPT_EXAMPLES_GPT_H_
#define DDPOPT_EXAMPLES_GPT_H_

// A small character-level GPT of ordinary LibTorch modules. Nothing in it knows of ddpopt.
//
// Each layer also adds an embedding of the last two or three characters from a table of its own. These tables hold most of the parameters,
// cost next to no arithmetic, and let so small a model read text after a minute or two.

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/modules/container/modulelist.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::examples {

struct GptConfig {
  int64_t vocab = 0;
  int64_t context = 64;  // characters seen at once
  int64_t width = 0;
  int64_t heads = 0;
  int64_t layers = 0;
  int64_t table = 0;  // rows of each layer's table of pairs or triples
};

// What the model reads: int64 [batch, time], each. A pair is a character and the one before it, a triple the last three; see corpus.h.
struct GptInput {
  at::Tensor characters, pairs, triples;
};

// Attention over the past, and an MLP, each on a normalised input and added to it.
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const GptConfig& config);
  // x: [batch, time, width]; grams: [batch, time], rows of the table; future: [time, time], true where a position would see a later one.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& grams, const at::Tensor& future);

 private:
  int64_t heads_;
  torch::nn::Embedding table_{nullptr};
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, proj_{nullptr}, up_{nullptr}, down_{nullptr};
};
TORCH_MODULE(Block);

class GptImpl : public torch::nn::Module {
 public:
  // Draws its parameters from LibTorch's default generator.
  explicit GptImpl(const GptConfig& config);
  // The mean loss in nats per character; `next`: the characters that follow.
  at::Tensor forward(const at::Tensor& characters, const at::Tensor& pairs, const at::Tensor& triples, const at::Tensor& next);
  // [batch, time, vocab]; time is at most config().context.
  at::Tensor Logits(const GptInput& input);

  const GptConfig& config() const { return config_; }

 private:
  GptConfig config_;
  torch::nn::Embedding token_{nullptr};
  at::Tensor position_;  // parameter [context, width]
  at::Tensor future_;    // buffer [context, context]
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace ddpopt::examples

#endif  // DDPOPT_EXAMPLES_GPT_H_
