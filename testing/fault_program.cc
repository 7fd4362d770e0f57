// A small training run that something goes wrong in, for the fault campaign: it saves checkpoints, goes on from the last when it is started
// again, and writes its final parameters.
//
//   fault_program --folder=DIR --out=FILE --steps=N --fault=KIND --fault_rank=R --fault_step=K --fault_point=P --fault_after=MICROSECONDS
//
// The fault happens in the first start alone, on one rank, at step K: before the forward (0), between forward and backward (1), before the
// optimizer's step (2), after the save (3), or within backward (4), when some buckets are on their way; or at the program's start (5). With
// --fault_after a timer waits so long from there, so that it comes in the midst of whatever runs then.
//
// What comes from outside (interrupt, link_down) finds FILE.started, and is waited for before the forward of step K+H (--fault_hold=H):
// FILE.come tells that it has come. Without a fault FILE.times says how long set-up and a step took, in microseconds.

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
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
  int64_t steps = 8, rank = 0, step = 0, point = 0, after = -1, hold = 0;
  bool from_outside() const { return fault == "interrupt" || fault == "link_down"; }
};

constexpr int64_t kInBackward = 4, kAtStart = 5;

// Does something later, in a thread of its own.
class Timer {
 public:
  ~Timer() { Await(); }
  void Start(std::chrono::microseconds after, std::function<void()> what) {
    thread_ = std::thread([after, what = std::move(what)] {
      std::this_thread::sleep_for(after);
      what();
    });
  }
  void Await() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

void Pause(int /*signal*/) {
  const timespec time = {0, 700'000'000};
  nanosleep(&time, nullptr);
}

// Flips one bit of the newest checkpoint, or cuts it.
absl::Status DamageNewest(const std::string& folder, int64_t seed) {
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListCheckpoints(folder));
  if (paths.empty()) return absl::NotFoundError("there is no checkpoint to damage");
  DDPOPT_ASSIGN_OR_RETURN(std::string content, ReadFile(paths.front()));
  if (seed % 3 == 0) {
    content.resize(static_cast<std::size_t>(seed * 7919) % content.size());
  } else {
    content[static_cast<std::size_t>(seed * 7919) % content.size()] ^= static_cast<char>(1 << (seed % 8));
  }
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
  if (plan.from_outside() && first_start) DDPOPT_RETURN_IF_ERROR(WriteFile(plan.out + ".started", ""));
  // What a timer can do, too.
  struct sigaction action = {};
  action.sa_handler = Pause;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  const auto strike = [is, main = pthread_self()] {
    if (is("kill")) kill(getpid(), SIGKILL);
    if (is("stop")) kill(getpid(), SIGSTOP);
    if (is("slow")) pthread_kill(main, SIGUSR1);
  };
  Timer timer;
  if (faulty && plan.point == kAtStart) timer.Start(std::chrono::microseconds(plan.after), strike);
  const auto begin = std::chrono::steady_clock::now();

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
    if (!first_start) return absl::OkStatus();
    // On every rank.
    const bool waits = plan.from_outside() && state.step == plan.step + plan.hold && point == (plan.hold == 0 ? plan.point : 0);
    for (int i = 0; i < 3000 && waits && access((plan.out + ".come").c_str(), F_OK) != 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (!faulty || state.step != plan.step || point != plan.point) return absl::OkStatus();
    if (plan.after >= 0) {
      timer.Start(std::chrono::microseconds(plan.after), strike);
    } else {
      strike();
    }
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
  if (faulty && plan.point == kInBackward) {
    net->second->weight.register_hook([&](const at::Tensor& gradient) {
      if (const absl::Status status = fault(kInBackward); !status.ok()) throw std::runtime_error(std::string(status.message()));
      return gradient;
    });
  }
  const auto set_up = std::chrono::steady_clock::now();
  auto first_step = set_up;  // its end
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
    if (first_step == set_up) first_step = std::chrono::steady_clock::now();
  }
  const auto trained = std::chrono::steady_clock::now();
  timer.Await();
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
  if (plan.fault == "none" && plan.steps > 1) {
    const auto microseconds = [](auto duration) { return std::chrono::duration_cast<std::chrono::microseconds>(duration).count(); };
    DDPOPT_RETURN_IF_ERROR(WriteFile(plan.out + ".times", absl::StrCat(microseconds(set_up - begin), " ",
                                                                       microseconds(trained - first_step) / (plan.steps - 1))));
  }
  return WriteFile(plan.out, bytes);
}

int Main(int argc, char** argv) {
  Plan plan;
  Flags flags;
  flags.Text("folder", &plan.folder, "a folder");
  flags.Text("out", &plan.out, "a file");
  flags.Text("fault", &plan.fault, "a kind of fault");
  for (const auto& [name, value] :
       {std::pair("steps", &plan.steps), {"fault_rank", &plan.rank}, {"fault_step", &plan.step}, {"fault_point", &plan.point},
        {"fault_after", &plan.after}, {"fault_hold", &plan.hold}}) {
    flags.Integer(name, value, -1, 100'000'000, "a whole number, -1 or above");
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
