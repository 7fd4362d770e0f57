// A module of one's own, trained data-parallel on two ranks that the program starts itself.

#include <cstdio>
#include <stdexcept>
#include <string>

#include "absl/status/statusor.h"
#include "ddpopt/ddpopt.h"
#include "torch/torch.h"

struct NetImpl : torch::nn::Module {
  NetImpl() : hidden(register_module("hidden", torch::nn::Linear(8, 32))), out(register_module("out", torch::nn::Linear(32, 1))) {}

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y) {
    return torch::mse_loss(out(torch::relu(hidden(x))), y);
  }

  torch::nn::Linear hidden, out;
};
TORCH_MODULE(Net);

template <typename T>
T ValueOrThrow(absl::StatusOr<T> result) {
  if (!result.ok()) throw std::runtime_error(std::string(result.status().message()));
  return *std::move(result);
}

int main(int argc, char** argv) try {
  if (auto status = ddpopt::MaybeLaunchSelf(argc, argv, 2)) return *status;
  const ddpopt::ProcessGroup group = ValueOrThrow(ddpopt::InitProcessGroup());

  torch::manual_seed(0);  // the same run every time
  Net net;
  auto ddp = ValueOrThrow(ddpopt::DistributedDataParallel<Net>::Create(net, group));
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  torch::manual_seed(group.rank());  // every rank draws data of its own
  for (int step = 1; step <= 10; ++step) {
    const torch::Tensor x = torch::randn({64, 8});
    const torch::Tensor y = x.sum(1, /*keepdim=*/true);
    optimizer.zero_grad();
    const torch::Tensor loss = ddp->forward(x, y);
    loss.backward();
    optimizer.step();
    if (group.rank() == 0) std::printf("step %d: loss %.4f\n", step, loss.item<double>());
  }
  if (group.rank() == 0) std::printf("trained on %d ranks\n", group.world_size());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "train: %s\n", error.what());
  return 1;
}
