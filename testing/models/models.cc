#include "testing/models/models.h"

#include <cstddef>
#include <utility>

#include "ATen/ops/arange.h"
#include "ATen/ops/rand.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/where.h"
#include "testing/models/bert.h"
#include "testing/models/convnet.h"
#include "testing/models/dlrm.h"
#include "testing/models/exported_twins.h"
#include "testing/models/gpt2.h"
#include "testing/models/llama.h"
#include "testing/models/mlp.h"
#include "testing/models/moe.h"
#include "testing/models/recurrent.h"
#include "testing/models/resnet.h"
#include "testing/models/t5.h"
#include "testing/models/tcn.h"
#include "testing/models/unet.h"
#include "testing/models/vae.h"
#include "testing/models/vit.h"

namespace ddpopt::testing {
namespace {

using Batch = std::vector<at::Tensor>;

template <typename Impl, std::size_t... I>
at::Tensor Forward(torch::nn::Module& module, const Batch& batch, std::index_sequence<I...> /*indices*/) {
  return module.as<Impl>()->forward(batch[I]...);
}

// `inputs`: how many tensors Impl::forward takes.
template <typename Impl, std::size_t inputs, typename Config>
Model Of(std::string name, const Config& config, std::function<Batch()> batch) {
  return {std::move(name), [config] { return std::make_shared<Impl>(config); }, std::move(batch),
          [](torch::nn::Module& module, const Batch& values) {
            TORCH_CHECK(values.size() == inputs, "the model takes ", inputs, " tensors, not ", values.size());
            return Forward<Impl>(module, values, std::make_index_sequence<inputs>());
          },
          true};
}

// The same for an Impl without a config, of two tensors.
template <typename Impl>
Model Twin(std::string name, std::function<Batch()> batch) {
  return {std::move(name), [] { return std::make_shared<Impl>(); }, std::move(batch),
          [](torch::nn::Module& module, const Batch& values) { return module.as<Impl>()->forward(values.at(0), values.at(1)); }, true};
}

// Whole numbers from low to high - 1.
at::Tensor Numbers(int64_t low, int64_t high, at::IntArrayRef sizes) { return at::randint(low, high, sizes, at::kLong); }

std::vector<Model> MakeModels() {
  std::vector<Model> models;
  models.push_back(Of<MlpImpl, 2>("mlp", MlpConfig{}, [] { return Batch{at::randn({6, 12}), Numbers(0, 5, {6})}; }));
  models.push_back(Of<ConvnetImpl, 2>("convnet", ConvnetConfig{}, [] { return Batch{at::randn({4, 3, 16, 16}), Numbers(0, 5, {4})}; }));
  models.push_back(Of<ConvnetImpl, 2>("convnet_channels_last", ConvnetConfig{}, [] {
    return Batch{at::randn({4, 3, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast), Numbers(0, 5, {4})};
  }));
  models.push_back(Of<ResnetImpl, 2>("resnet", ResnetConfig{}, [] { return Batch{at::randn({2, 3, 33, 33}), Numbers(0, 5, {2})}; }));
  models.push_back(Of<BertImpl, 5>("bert", BertConfig{}, [] {
    const at::Tensor masked = at::where(Numbers(0, 4, {3, 7}) == 0, Numbers(0, 31, {3, 7}), -100);
    return Batch{Numbers(1, 31, {3, 7}), Numbers(0, 2, {3, 7}), at::arange(7) >= Numbers(4, 8, {3, 1}), masked, Numbers(0, 2, {3})};
  }));
  models.back().bf16_autocast = false;  // MultiheadAttention with a padding mask dispatches on float and double alone
  models.push_back(Of<Gpt2Impl, 2>("gpt2", Gpt2Config{}, [] { return Batch{Numbers(0, 29, {2, 8}), Numbers(0, 29, {2, 8})}; }));
  models.push_back(Of<LlamaImpl, 2>("llama", LlamaConfig{}, [] { return Batch{Numbers(0, 31, {2, 9}), Numbers(0, 31, {2, 9})}; }));
  models.push_back(Of<T5Impl, 3>(
      "t5", T5Config{}, [] { return Batch{Numbers(0, 37, {2, 9}), Numbers(0, 37, {2, 6}), Numbers(0, 37, {2, 6})}; }));
  models.push_back(
      Of<VitImpl, 2>("vit", VitConfig{}, [] { return Batch{at::randn({2, 3, 16, 16}), at::softmax(at::randn({2, 5}), -1)}; }));
  const auto sentences = [] { return Batch{Numbers(0, 23, {3, 6}), Numbers(0, 4, {3})}; };
  using Cell = RecurrentConfig::Cell;
  models.push_back(Of<RecurrentImpl, 2>("lstm", RecurrentConfig{.cell = Cell::kLstm}, sentences));
  models.push_back(Of<RecurrentImpl, 2>("gru", RecurrentConfig{.cell = Cell::kGru}, sentences));
  models.push_back(Of<RecurrentImpl, 2>("rnn", RecurrentConfig{.cell = Cell::kTanh, .bidirectional = false}, sentences));
  models.push_back(
      Of<UnetImpl, 2>("unet", UnetConfig{}, [] { return Batch{at::randn({2, 3, 12, 16}), at::rand({2, 1, 12, 16}).round()}; }));
  models.push_back(Of<DlrmImpl, 4>("dlrm", DlrmConfig{}, [] {
    return Batch{at::randn({5, 6}), Numbers(0, 40, {5, 3}), at::rand({5, 3}), at::rand({5}).round()};
  }));
  models.push_back(Of<TcnImpl, 2>("tcn", TcnConfig{}, [] { return Batch{at::randn({2, 3, 20}), at::randn({2, 3, 20})}; }));
  models.push_back(Of<VaeImpl, 1>("vae", VaeConfig{}, [] { return Batch{at::rand({3, 1, 8, 8})}; }));
  models.push_back(Of<MoeImpl, 2>("moe", MoeConfig{}, [] { return Batch{at::randn({7, 8}), at::randn({7, 8})}; }));
  models.push_back(Twin<ConvnetBnImpl>("convnet_bn", [] { return Batch{at::randn({4, 3, 16, 16}), Numbers(0, 10, {4})}; }));
  models.push_back(Twin<CustomLinearImpl>("custom_linear", [] { return Batch{at::randn({6, 32}), Numbers(0, 10, {6})}; }));
  models.push_back(Twin<UnusedParamsImpl>("unused_params", [] { return Batch{at::randn({6, 64}), Numbers(0, 10, {6})}; }));
  return models;
}

}  // namespace

const std::vector<Model>& AllModels() {
  static const std::vector<Model>& models = *new std::vector<Model>(MakeModels());
  return models;
}

}  // namespace ddpopt::testing
