// The README's snippet as a program: a module of one's own, trained on two ranks that the program starts itself.

#include <cstdio>
#include <exception>
#include <string>

#include "ATen/Context.h"
#include "ATen/ops/mse_loss.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/relu.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "ddpopt/ddpopt.h"
#include "ddpopt/distributed/launcher.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/pimpl.h"
#include "torch/optim/sgd.h"

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(8, 32))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(32, 1))};

  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return at::mse_loss(out->forward(at::relu(hidden->forward(x))), y); }
};
TORCH_MODULE(Net);

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "wrap_module: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Train() {
  auto group = ddpopt::InitProcessGroup();
  if (!group.ok()) return Fail(group.status());

  at::manual_seed(0);  // the same run every time
  Net net;
  auto ddp = ddpopt::DistributedDataParallel<Net>::Create(net, *group);
  if (!ddp.ok()) return Fail(ddp.status());

  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  at::manual_seed(static_cast<uint64_t>(group->rank()));  // every rank draws data of its own
  for (int step = 1; step <= 10; ++step) {
    const at::Tensor x = at::randn({64, 8});
    const at::Tensor y = x.sum(1, /*keepdim=*/true);
    optimizer.zero_grad();
    const at::Tensor loss = (*ddp)->forward(x, y);
    loss.backward();
    optimizer.step();
    if (group->rank() == 0) std::printf("step %d: loss %.4f\n", step, loss.item<double>());
  }

  const absl::Status equal = (*ddp)->core().CheckParametersEqual();
  if (!equal.ok()) return Fail(equal);
  if (group->rank() == 0) std::printf("parameters equal on %d ranks\n", group->world_size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (const absl::optional<int> status = ddpopt::MaybeLaunchSelf(argc, argv, 2)) return *status;
  try {
    return Train();
  } catch (const std::exception& error) {
    return Fail(absl::InternalError(error.what()));
  }
}
