// A small training run that something goes wrong in, for the fault campaign: it saves checkpoints, goes on from the last when it is started
// again, and writes its final parameters.
//
//   fault_program --folder=DIR --out=FILE --steps=N --fault=KIND --fault_rank=R --fault_step=K --fault_point=P
//
// The fault happens in the first start alone, on one rank, at step K: before the forward (0), between forward and backward (1), before the
// optimizer's step (2), or after the save (3).

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/full.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/flags.h"
#include "base/status.h"
#include "ddpopt/checkpoint/checkpoint.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "ddpopt/distributed/process_group.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/adam.h"

namespace ddpopt {
namespace {

struct Net : torch::nn::Module {
  explicit Net(int64_t width)
      : first(register_module("first", torch::nn::Linear(8, width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(width))),
        drop(register_module("drop", torch::nn::Dropout(0.3))),
        second(register_module("second", torch::nn::Linear(width, width))),
        last(register_module("last", torch::nn::Linear(width, 4))) {}
  // Another tag is another kind of call, which computes the same.
  at::Tensor forward(at::Tensor x, at::Tensor y, int64_t /*tag*/) {
    x = drop->forward(norm->forward(first->forward(x)).relu());
    return at::cross_entropy_loss(last->forward(second->forward(x).relu()), y);
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear second, last;
};

struct Plan {
  std::string folder, out, fault = "none";
  int64_t steps = 8, rank = 0, step = 0, point = 0;
};

// Flips one bit of the newest checkpoint.
absl::Status DamageNewest(const std::string& folder, int64_t seed) {
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListCheckpoints(folder));
  if (paths.empty()) return absl::NotFoundError("there is no checkpoint to damage");
  DDPOPT_ASSIGN_OR_RETURN(std::string content, ReadFile(paths.front()));
  content[static_cast<std::size_t>(seed * 7919) % content.size()] ^= static_cast<char>(1 << (seed % 8));
  return WriteFile(paths.front(), content);
}

std::string Filler(const std::string& folder) { return folder + "/filler"; }

// Of a small disk of its own: what is more is given up.
absl::Status FillDisk(const std::string& folder) {
  const int fd = open(Filler(folder).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  const std::string block(4096, 'x');
  int blocks = 0;
  while (blocks < 10'000 && write(fd, block.data(), block.size()) > 0) ++blocks;
  const int error = errno;
  close(fd);
  return error == ENOSPC && blocks < 10'000 ? absl::OkStatus() : absl::InternalError("the disk can't be filled");
}

absl::Status Train(const Plan& plan) {
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const bool first_start = restarts == nullptr || std::string(restarts) == "0";
  const char* rank_text = std::getenv("RANK");
  const bool faulty = first_start && rank_text != nullptr && std::string(rank_text) == std::to_string(plan.rank);
  const auto is = [&](const char* kind) { return faulty && plan.fault == kind; };
  if (!first_start) unlink(Filler(plan.folder).c_str());
  if (is("wrong_world_size")) setenv("WORLD_SIZE", "7", 1);

  InitOptions options;
  options.timeout = std::chrono::seconds(20);
  options.stall_timeout = std::chrono::milliseconds(plan.fault == "link_down" ? 2500 : 5000);
  options.debug = plan.fault == "out_of_order";
  DDPOPT_ASSIGN_OR_RETURN(const ProcessGroup group, InitProcessGroup(options));
  at::set_num_threads(1);
  at::manual_seed(5);
  auto net = std::make_shared<Net>(is("mismatching_models") ? 17 : 16);
  DdpOptions ddp_options;
  ddp_options.bucket_cap_mb = 0.001;
  DDPOPT_ASSIGN_OR_RETURN(const auto ddp, DistributedDataParallel<std::shared_ptr<Net>>::Create(net, group, ddp_options));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
  at::manual_seed(100 + static_cast<uint64_t>(group.rank()));
  at::Generator data = at::detail::createCPUGenerator(1000 + static_cast<uint64_t>(group.rank()));
  CheckpointState state;
  state.AddModule(*net);
  state.AddOptimizer("adam", optimizer);
  state.AddGenerator("default", at::detail::getDefaultCPUGenerator());
  state.AddGenerator("data", data);
  const CheckpointRanks ranks = {group.rank(), group.world_size(),
                                 [&](const std::string& what, const std::string& mine) { return group.AllGatherText(what, mine); }};
  const absl::StatusOr<LoadedCheckpoint> loaded = LoadCheckpoint(plan.folder, &state, ranks);
  if (!loaded.ok() && !absl::IsNotFound(loaded.status())) return loaded.status();
  if (loaded.ok() && group.rank() == 0) {
    for (const std::string& damaged : loaded->passed_over) std::fprintf(stderr, "passed over: %s\n", damaged.c_str());
    std::fprintf(stderr, "resumed at step %d\n", static_cast<int>(loaded->step));
  }

  // Once in a start.
  const auto fault = [&](int64_t point) -> absl::Status {
    if (!first_start || state.step != plan.step || point != plan.point) return absl::OkStatus();
    // What comes from outside is waited for, on every rank: this file tells that it has come.
    for (int i = 0; i < 3000 && (plan.fault == "interrupt" || plan.fault == "link_down") && access((plan.out + ".come").c_str(), F_OK) != 0;
         ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (!faulty) return absl::OkStatus();
    if (is("kill")) raise(SIGKILL);
    if (is("stop")) raise(SIGSTOP);
    if (is("slow")) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    if (is("exception")) throw std::runtime_error("an exception of the user's");
    if (is("corrupt_checkpoint")) {
      DDPOPT_RETURN_IF_ERROR(DamageNewest(plan.folder, plan.step + 1));
      return absl::AbortedError("the newest checkpoint was damaged");
    }
    if (is("out_of_order")) {
      at::Tensor extra = at::full({3}, 1.0);
      return group.AllReduceSum(extra);
    }
    return absl::OkStatus();
  };
  while (state.step < plan.steps) {
    int64_t tag = 0;
    if (is("recompiles_alone") && state.step == plan.step) tag = 1;
    if (is("falls_back_alone")) tag = state.step;
    DDPOPT_RETURN_IF_ERROR(fault(0));
    const at::Tensor x = at::randn({6, 8}, data), y = at::randint(0, 4, {6}, data, at::kLong);
    optimizer.zero_grad();
    const at::Tensor loss = ddp->forward(x, y, tag);
    DDPOPT_RETURN_IF_ERROR(fault(1));
    loss.backward();
    DDPOPT_RETURN_IF_ERROR(fault(2));
    optimizer.step();
    ++state.step;
    if (is("full_disk") && state.step == plan.step + 1) DDPOPT_RETURN_IF_ERROR(FillDisk(plan.folder));
    if (is("file_size_limit") && state.step == plan.step + 1) {
      signal(SIGXFSZ, SIG_IGN);
      const rlimit limit = {100, RLIM_INFINITY};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    DDPOPT_RETURN_IF_ERROR(SaveCheckpoint(plan.folder, state, {}, ranks).status());
    --state.step;
    DDPOPT_RETURN_IF_ERROR(fault(3));
    ++state.step;
  }
  if (is("recompiles_alone") && ddp->core().num_recompiles() < 1) return absl::InternalError("it was not captured again");
  if (is("falls_back_alone") && !ddp->core().runs_eagerly()) return absl::InternalError("it did not fall back");
  std::string bytes;
  for (const at::Tensor& parameter : net->parameters())
    bytes.append(static_cast<const char*>(parameter.const_data_ptr()), parameter.nbytes());
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> all, group.AllGatherText("final parameters", bytes));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) return absl::InternalError(absl::StrCat("rank ", rank, " ended with other parameters than rank 0"));
  }
  if (group.rank() != 0) return absl::OkStatus();
  return WriteFile(plan.out, bytes);
}

int Main(int argc, char** argv) {
  Plan plan;
  Flags flags;
  flags.Text("folder", &plan.folder, "a folder");
  flags.Text("out", &plan.out, "a file");
  flags.Text("fault", &plan.fault, "a kind of fault");
  for (const auto& [name, value] :
       {std::pair("steps", &plan.steps), {"fault_rank", &plan.rank}, {"fault_step", &plan.step}, {"fault_point", &plan.point}}) {
    flags.Integer(name, value, 0, 1'000'000, "a whole number, 0 or above");
  }
  if (const absl::Status status = flags.Parse({argv + 1, argv + argc}); !status.ok()) {
    std::fprintf(stderr, "fault_program: %s\n", std::string(status.message()).c_str());
    return 2;
  }
  const absl::Status trained = CatchAsStatus("training", [&] { return Train(plan); });
  if (!trained.ok()) std::fprintf(stderr, "fault_program: %s\n", std::string(trained.message()).c_str());
  return trained.ok() ? 0 : 1;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
