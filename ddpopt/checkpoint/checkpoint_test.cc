#include "ddpopt/checkpoint/checkpoint.h"

#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "ATen/ops/imag.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/adagrad.h"
#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/optim/lbfgs.h"
#include "torch/optim/rmsprop.h"
#include "torch/optim/sgd.h"

namespace ddpopt {
namespace {

using ::ddpopt::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string NewFolder() {
  std::string folder = absl::StrCat(::testing::TempDir(), "/checkpoints.XXXXXX");
  return mkdtemp(folder.data());
}

at::Generator DefaultGenerator() { return at::detail::getDefaultCPUGenerator(); }

torch::nn::Sequential Net() {
  return torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), torch::nn::Dropout(0.4), torch::nn::Linear(8, 2));
}

// A run whose every step draws random numbers, writes buffers and has the optimizer remember.
template <typename Optimizer, typename Options>
struct TrainingRun {
  explicit TrainingRun(Options options) : net(Net()), optimizer(net->parameters(), options) {
    state.AddModule(*net, "net");
    state.AddOptimizer("optimizer", optimizer);
    state.AddGenerator("cpu", DefaultGenerator());
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) {
      // LBFGS computes the loss itself, several times.
      optimizer.step([&] {
        optimizer.zero_grad();
        at::Tensor loss = net->forward(at::randn({6, 4})).pow(2).mean();
        loss.backward();
        return loss;
      });
      ++state.step;
    }
  }
  torch::nn::Sequential net;
  Optimizer optimizer;
  CheckpointState state;
};

template <typename Optimizer, typename Options>
void ExpectGoesOnBitForBit(Options options) {
  SCOPED_TRACE(typeid(Optimizer).name());
  const std::string folder = NewFolder();
  at::manual_seed(3);
  TrainingRun<Optimizer, Options> undisturbed(options);
  undisturbed.Steps(3);
  undisturbed.state.numbers["epoch"] = -7;
  undisturbed.state.texts["data"] = "part \"2\"\n";
  DDPOPT_ASSERT_OK(SaveCheckpoint(folder, undisturbed.state));
  undisturbed.Steps(4);
  const at::Tensor random = at::randn({3});

  at::manual_seed(99);
  Options other = options;
  other.lr(17);
  TrainingRun<Optimizer, Options> resumed(other);
  resumed.Steps(1);  // state of its own, which goes
  const auto loaded = LoadCheckpoint(folder, &resumed.state);
  DDPOPT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->step, 3);
  EXPECT_EQ(loaded->world_size, 1);
  EXPECT_TRUE(loaded->random_state_restored);
  EXPECT_THAT(loaded->passed_over, IsEmpty());
  EXPECT_EQ(resumed.state.step, 3);
  EXPECT_EQ(resumed.state.numbers["epoch"], -7);
  EXPECT_EQ(resumed.state.texts["data"], "part \"2\"\n");
  resumed.Steps(4);
  EXPECT_TRUE(random.equal(at::randn({3})));
  const auto expected = undisturbed.net->named_parameters(), got = resumed.net->named_parameters();
  for (const auto& item : expected) EXPECT_TRUE(item.value().equal(got[item.key()])) << item.key();
  for (const auto& item : undisturbed.net->named_buffers())
    EXPECT_TRUE(item.value().equal(resumed.net->named_buffers()[item.key()])) << item.key();
}

TEST(Checkpoint, EveryOptimizerGoesOnBitForBit) {
  ExpectGoesOnBitForBit<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  ExpectGoesOnBitForBit<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true));
  ExpectGoesOnBitForBit<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).betas({0.8, 0.95}));
  ExpectGoesOnBitForBit<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  ExpectGoesOnBitForBit<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.01).lr_decay(0.1));
  ExpectGoesOnBitForBit<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1).max_iter(3).history_size(2));
}

TEST(Checkpoint, TensorsOfAllKinds) {
  const std::string folder = NewFolder();
  at::manual_seed(1);
  const at::Tensor base = at::randn({4, 6}), tied = at::randn({3}).requires_grad_();
  const at::Tensor complex = at::view_as_complex(at::randn({2, 2})).conj();
  const std::vector<std::pair<std::string, at::Tensor>> tensors = {
      {"transposed", base.t()},
      {"slice", base.slice(1, 1, 4)},
      {"bf16", at::randn({5}).to(at::kBFloat16)},
      {"bool", at::randn({7}) > 0},
      {"scalar", at::zeros({}, at::kLong) + 41},
      {"empty", at::zeros({0, 3})},
      {"also empty", at::zeros({0, 3})},
      {"complex", complex},
      {"its conjugate", complex.conj()},
      {"its negative imaginary part", at::imag(complex)},
      {"expanded", at::randn({3, 1}).expand({3, 4})},
      {"tied", tied},
      {"tied again", tied},
      {"name with / and .. and \"", at::zeros({1})},
  };
  CheckpointState state;
  std::vector<at::Tensor> before;
  for (const auto& [name, tensor] : tensors) {
    state.AddTensor(name, tensor);
    before.push_back(tensor.detach().clone());
  }
  DDPOPT_ASSERT_OK(SaveCheckpoint(folder, state));
  for (const auto& entry : tensors) {
    c10::NoGradGuard no_grad;
    if (entry.first != "expanded") at::Tensor(entry.second).zero_();
  }
  const auto version = tied._version();
  DDPOPT_ASSERT_OK(LoadCheckpoint(folder, &state));
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(tensors[i].second.equal(before[i])) << tensors[i].first;
  EXPECT_GT(tied._version(), version);  // autograd is to know
}

// A small state that a damaged file can be tried on often.
struct Small {
  explicit Small(int64_t size = 6) : weight(at::zeros({size})) { state.AddTensor("weight", weight); }
  absl::StatusOr<std::string> Save(const std::string& folder, int64_t step, CheckpointOptions options = {}) {
    state.step = step;
    weight.fill_(static_cast<double>(step));
    return SaveCheckpoint(folder, state, options);
  }
  at::Tensor weight;
  CheckpointState state;
};

std::string Content(const std::string& path) { return *ReadFile(path); }

TEST(Checkpoint, EveryAlteredByteAndEveryTruncationIsFound) {
  const std::string folder = NewFolder();
  Small small;
  const auto path = small.Save(folder, 5);
  DDPOPT_ASSERT_OK(path);
  DDPOPT_ASSERT_OK(VerifyCheckpoint(*path));
  const std::string whole = Content(*path);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    DDPOPT_ASSERT_OK(WriteFile(*path, damaged));
    const absl::Status status = VerifyCheckpoint(*path);
    ASSERT_FALSE(status.ok()) << "byte " << i;
    ASSERT_THAT(std::string(status.message()), HasSubstr(*path)) << "byte " << i;
  }
  for (std::size_t size = 0; size < whole.size(); ++size) {
    DDPOPT_ASSERT_OK(WriteFile(*path, whole.substr(0, size)));
    ASSERT_FALSE(VerifyCheckpoint(*path).ok()) << "cut to " << size;
  }
  DDPOPT_ASSERT_OK(WriteFile(*path, whole + "x"));
  EXPECT_FALSE(VerifyCheckpoint(*path).ok());
  // What was there is unharmed by all that.
  EXPECT_THAT(LoadCheckpoint(folder, &small.state), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no checkpoint that is whole")));
  EXPECT_TRUE(small.weight.equal(at::zeros({6}) + 5));
}

TEST(Checkpoint, NamesTheRecordThatWasAltered) {
  const std::string folder = NewFolder();
  Small small;
  const auto path = small.Save(folder, 5);
  DDPOPT_ASSERT_OK(path);
  std::string damaged = Content(*path);
  const std::size_t contents = damaged.find("\"world_size\"");
  ASSERT_NE(contents, std::string::npos);
  damaged[contents] = '\'';
  DDPOPT_ASSERT_OK(WriteFile(*path, damaged));
  EXPECT_THAT(VerifyCheckpoint(*path),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("record \"contents\""), HasSubstr("expected checksum"))));
  damaged = Content(*path).substr(0, 300);
  DDPOPT_ASSERT_OK(WriteFile(*path, damaged));
  EXPECT_THAT(VerifyCheckpoint(*path), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("expected an end mark")));
  DDPOPT_ASSERT_OK(WriteFile(*path, std::string(500, 'x')));
  EXPECT_THAT(VerifyCheckpoint(*path), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected a checkpoint")));
}

TEST(Checkpoint, ADamagedOneIsPassedOverAndTheWholeOnesAreKept) {
  const std::string folder = NewFolder();
  Small small;
  for (const int64_t step : {10, 20, 30}) DDPOPT_ASSERT_OK(small.Save(folder, step));
  EXPECT_THAT(*ListCheckpoints(folder), ElementsAre(HasSubstr("checkpoint-000000000030.ckpt"), HasSubstr("checkpoint-000000000020.ckpt")));
  const std::string newest = ListCheckpoints(folder)->front();
  std::string damaged = Content(newest);
  damaged[damaged.size() / 2] ^= 1;
  DDPOPT_ASSERT_OK(WriteFile(newest, damaged));
  auto loaded = LoadCheckpoint(folder, &small.state);
  DDPOPT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->step, 20);
  EXPECT_TRUE(small.weight.equal(at::zeros({6}) + 20));
  EXPECT_THAT(loaded->passed_over, ElementsAre(AllOf(HasSubstr(newest), HasSubstr("was altered"))));
  // Two whole ones stay: the damaged one between them doesn't count.
  DDPOPT_ASSERT_OK(small.Save(folder, 40));
  EXPECT_EQ(ListCheckpoints(folder)->size(), 3);
  DDPOPT_ASSERT_OK(small.Save(folder, 50));
  EXPECT_THAT(*ListCheckpoints(folder), ElementsAre(HasSubstr("50.ckpt"), HasSubstr("40.ckpt")));
  CheckpointOptions one;
  one.keep = 1;
  DDPOPT_ASSERT_OK(small.Save(folder, 60, one));
  EXPECT_EQ(ListCheckpoints(folder)->size(), 1);
}

TEST(Checkpoint, AnotherRunsCheckpointOfALaterStepIsInTheWay) {
  const std::string folder = NewFolder();
  Small small;
  DDPOPT_ASSERT_OK(small.Save(folder, 100));
  EXPECT_THAT(small.Save(folder, 10),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("000000000100.ckpt\" is of a later step than 10"), HasSubstr("save elsewhere"))));
  EXPECT_THAT(*ListCheckpoints(folder), ElementsAre(HasSubstr("100.ckpt")));
  // A damaged one isn't: the run has passed over it.
  DDPOPT_ASSERT_OK(WriteFile(ListCheckpoints(folder)->front(), "damaged"));
  DDPOPT_ASSERT_OK(small.Save(folder, 10));
  EXPECT_EQ(LoadCheckpoint(folder, &small.state)->step, 10);
}

// An optimizer whose state can be saved, but not loaded.
class Unloadable : public torch::optim::SGD {
 public:
  using SGD::SGD;
  void load(torch::serialize::InputArchive& /*archive*/) override { throw std::runtime_error("this state isn't mine"); }
};

TEST(Checkpoint, WhatCannotBeLoadedChangesNothing) {
  const std::string folder = NewFolder();
  at::manual_seed(1);
  torch::nn::Linear linear(3, 2);
  torch::optim::Adam adam(linear->parameters(), 0.1);
  Unloadable second(linear->parameters(), 0.1);
  CheckpointState state;
  state.AddModule(*linear);
  state.AddOptimizer("adam", adam);
  state.AddOptimizer("second", second);
  state.AddGenerator("cpu", DefaultGenerator());
  const auto step = [&] {
    linear->forward(at::randn({4, 3})).sum().backward();
    adam.step();
    ++state.step;
  };
  step();
  DDPOPT_ASSERT_OK(SaveCheckpoint(folder, state));
  step();
  adam.param_groups()[0].options().set_lr(0.7);
  const at::Tensor weight = linear->weight.detach().clone(), random = DefaultGenerator().get_state();
  const auto* param_state = static_cast<torch::optim::AdamParamState*>(adam.state().at(linear->weight.unsafeGetTensorImpl()).get());
  const at::Tensor average = param_state->exp_avg().clone();
  EXPECT_THAT(LoadCheckpoint(folder, &state),
              StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("optimizer \"second\""), HasSubstr("this state isn't mine"))));
  EXPECT_EQ(state.step, 2);
  EXPECT_TRUE(linear->weight.equal(weight));
  EXPECT_TRUE(DefaultGenerator().get_state().equal(random));
  EXPECT_EQ(adam.param_groups()[0].options().get_lr(), 0.7);
  ASSERT_EQ(adam.state().at(linear->weight.unsafeGetTensorImpl()).get(), param_state);
  EXPECT_EQ(param_state->step(), 2);
  EXPECT_TRUE(param_state->exp_avg().equal(average));
}

TEST(Checkpoint, SaysWhatIsMissingOrDoesNotFit) {
  const std::string folder = NewFolder();
  Small small;
  EXPECT_THAT(LoadCheckpoint(folder, &small.state), StatusIs(absl::StatusCode::kNotFound, HasSubstr("has no checkpoint")));
  EXPECT_THAT(LoadCheckpoint(folder + "/none", &small.state), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none\"")));
  DDPOPT_ASSERT_OK(small.Save(folder + "/deep/below", 1));

  at::manual_seed(1);
  torch::nn::Linear linear(3, 2);
  torch::optim::SGD optimizer(linear->parameters(), 0.1);
  CheckpointState saved;
  saved.AddModule(*linear);
  saved.AddOptimizer("optimizer", optimizer);
  saved.AddGenerator("cpu", DefaultGenerator());
  DDPOPT_ASSERT_OK(SaveCheckpoint(folder, saved));
  const auto expect = [&](CheckpointState& state, const std::string& text) {
    EXPECT_THAT(LoadCheckpoint(folder, &state),
                StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("checkpoint-000000000000.ckpt"), HasSubstr(text))));
  };
  torch::nn::Linear wider(4, 2);
  CheckpointState state;
  state.AddModule(*wider);
  expect(state, "tensor \"weight\" is Float [2, 3], the run's is Float [2, 4]");
  state = {};
  state.AddTensor("weight", linear->weight);
  expect(state, "has tensor \"bias\", the run has none");
  state.AddTensor("bias", linear->bias);
  state.AddTensor("scale", linear->bias);
  expect(state, "has no tensor \"scale\", the run has one");
  state = {};
  state.AddModule(*linear);
  torch::optim::Adam adam(linear->parameters(), 0.1);
  state.AddOptimizer("optimizer", adam);
  expect(state, "optimizer \"optimizer\" is a torch::optim::SGD, the run's is a torch::optim::Adam");
  state = {};
  state.AddModule(*linear);
  torch::optim::SGD less({linear->weight}, 0.1);
  state.AddOptimizer("optimizer", less);
  expect(state, "parameter groups of 2 parameters, the run's of 1");
  state = {};
  state.AddModule(*linear);
  state.AddOptimizer("optimizer", optimizer);
  expect(state, "has generators [cpu], the run []");

  saved.AddTensor("weight", linear->weight);
  EXPECT_THAT(SaveCheckpoint(folder, saved),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("two tensors of the checkpoint are named \"weight\"")));
  small.state.step = -1;
  EXPECT_THAT(SaveCheckpoint(folder, small.state),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step must be 0 or more, got -1")));
}

void ExpectLastOneStays(const std::string& folder, Small& large, const std::string& cause) {
  const absl::Status status = large.Save(folder, 2).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               AllOf(HasSubstr("checkpoint-000000000002.ckpt"), HasSubstr(cause), HasSubstr("000000000001.ckpt"))));
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++entries;
  EXPECT_EQ(entries, 1);  // nothing half written
}

TEST(Checkpoint, ALimitOfTheFileSizeLeavesTheLastOne) {
  const std::string folder = NewFolder();
  Small large(20'000);
  DDPOPT_ASSERT_OK(large.Save(folder, 1));
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  // Wherever in the file it comes.
  for (const rlim_t bytes : {0, 10, 50'000, 80'000, 80'200}) {
    rlimit limit = before;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
    ExpectLastOneStays(folder, large, "File too large");
    setrlimit(RLIMIT_FSIZE, &before);
  }
  signal(SIGXFSZ, handler);
  const auto loaded = LoadCheckpoint(folder, &large.state);
  DDPOPT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->step, 1);
}

TEST(Checkpoint, AFullDiskLeavesTheLastOne) {
  const std::string folder = NewFolder();
  if (mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=120k") != 0)
    GTEST_SKIP() << "mounting a small disk needs root: " << std::strerror(errno);
  Small large(20'000);
  EXPECT_TRUE(large.Save(folder, 1).ok());
  ExpectLastOneStays(folder, large, "No space left on device");
  EXPECT_EQ(umount(folder.c_str()), 0);
}

// Whenever a saving process is killed, there is a whole checkpoint, no older than the last that it has told of.
TEST(Checkpoint, AKilledSaverLeavesAWholeOne) {
  const uint32_t seed = 1;
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  at::set_num_threads(1);
  Small large(200'000);
  const std::string folder = NewFolder();
  DDPOPT_ASSERT_OK(large.Save(folder, 0));
  int64_t last = 0;
  for (int run = 0; run < 12; ++run) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      for (int64_t step = last + 1;; ++step) {
        if (!large.Save(folder, step).ok()) _exit(1);
        if (write(ends[1], &step, sizeof(step)) != sizeof(step)) _exit(1);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20'000 + random() % 40'000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    close(ends[1]);
    int64_t told = last, step = 0;
    while (read(ends[0], &step, sizeof(step)) == sizeof(step)) told = step;
    close(ends[0]);
    const auto loaded = LoadCheckpoint(folder, &large.state);
    DDPOPT_ASSERT_OK(loaded);
    EXPECT_GE(loaded->step, told);
    EXPECT_TRUE(large.weight.equal(at::zeros({200'000}) + loaded->step));
    last = loaded->step;
  }
  EXPECT_GT(last, 0);
  // What they left half written goes with the next save.
  DDPOPT_ASSERT_OK(large.Save(folder, last + 1));
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".ckpt.")));
}

// Ranks as threads.
class Exchange {
 public:
  explicit Exchange(int size) : texts_(size) {}
  CheckpointRanks Of(int rank) {
    return {rank, static_cast<int>(texts_.size()),
            [this, rank](const std::string& what, const std::string& mine) -> absl::StatusOr<std::vector<std::string>> {
              std::unique_lock<std::mutex> lock(mutex_);
              texts_[rank] = what + "\n" + mine;
              const int round = round_;
              if (++arrived_ == static_cast<int>(texts_.size())) {
                arrived_ = 0;
                ++round_;
                results_ = texts_;
                changed_.notify_all();
              }
              changed_.wait(lock, [&] { return round_ != round; });
              std::vector<std::string> result;
              for (const std::string& text : results_) {
                if (text.substr(0, text.find('\n')) != what) return absl::InternalError("ranks exchange different things");
                result.push_back(text.substr(text.find('\n') + 1));
              }
              return result;
            }};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_, results_;
  int arrived_ = 0, round_ = 0;
};

void OnRanks(int size, const std::function<void(int, const CheckpointRanks&)>& run) {
  Exchange exchange(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&, rank] { run(rank, exchange.Of(rank)); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Checkpoint, RanksHaveRandomStatesOfTheirOwnAndOneFile) {
  const std::string folder = NewFolder();
  std::vector<at::Tensor> next(3);
  OnRanks(3, [&](int rank, const CheckpointRanks& ranks) {
    at::Generator generator = at::detail::createCPUGenerator(100 + rank);
    Small small;
    small.state.AddGenerator("data", generator);
    small.state.numbers["rank"] = rank;
    small.weight.fill_(rank);
    const auto saved = SaveCheckpoint(folder, small.state, {}, ranks);
    DDPOPT_EXPECT_OK(saved);
    EXPECT_THAT(*saved, HasSubstr("checkpoint-000000000000.ckpt"));
    next[rank] = at::randn({3}, generator);
  });
  OnRanks(3, [&](int rank, const CheckpointRanks& ranks) {
    at::Generator generator = at::detail::createCPUGenerator(7);
    Small small;
    small.state.AddGenerator("data", generator);
    const auto loaded = LoadCheckpoint(folder, &small.state, ranks);
    DDPOPT_EXPECT_OK(loaded);
    EXPECT_TRUE(at::randn({3}, generator).equal(next[rank]));
    EXPECT_EQ(small.state.numbers["rank"], 0);
    EXPECT_TRUE(small.weight.equal(at::zeros({6})));
  });
  OnRanks(2, [&](int, const CheckpointRanks& ranks) {
    at::Generator generator = at::detail::createCPUGenerator(7), same = at::detail::createCPUGenerator(7);
    Small small;
    small.state.AddGenerator("data", generator);
    const auto loaded = LoadCheckpoint(folder, &small.state, ranks);
    DDPOPT_EXPECT_OK(loaded);
    EXPECT_FALSE(loaded->random_state_restored);
    EXPECT_EQ(loaded->world_size, 3);
    EXPECT_TRUE(at::randn({3}, generator).equal(at::randn({3}, same)));
  });
}

TEST(Checkpoint, AnErrorOnOneRankIsOneOnAll) {
  const std::string folder = NewFolder();
  Small first;
  DDPOPT_ASSERT_OK(first.Save(folder, 1));
  OnRanks(2, [&](int rank, const CheckpointRanks& ranks) {
    Small small(rank == 0 ? 6 : 7);
    small.weight.fill_(3);
    EXPECT_THAT(
        LoadCheckpoint(folder, &small.state, ranks),
        StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("Float [6]"), HasSubstr(rank == 0 ? "on rank 1: " : ".ckpt"))));
    EXPECT_EQ(small.weight[0].item<double>(), 3);  // on both, untouched
    if (rank == 1) small.state.step = -3;
    EXPECT_THAT(SaveCheckpoint(folder, small.state, {}, ranks), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got -3")));
  });
  // Another folder than rank 0's.
  const std::string other = NewFolder();
  DDPOPT_ASSERT_OK(Small(6).Save(other, 1));
  Small changed(6);
  changed.state.numbers["x"] = 1;
  DDPOPT_ASSERT_OK(changed.Save(other, 1));
  OnRanks(2, [&](int rank, const CheckpointRanks& ranks) {
    Small small;
    EXPECT_THAT(LoadCheckpoint(rank == 0 ? folder : other, &small.state, ranks),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another file than rank 0's")));
  });
}

}  // namespace
}  // namespace ddpopt
