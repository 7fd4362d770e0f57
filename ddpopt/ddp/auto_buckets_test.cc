// On two ranks: bucket_policy kAuto.

#include "ddpopt/ddp/auto_buckets.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/distributed_test.h"
#include "torch/nn/modules/linear.h"

namespace ddpopt {
namespace {

using ::testing::AllOf;
using testing::ErrorOf;
using ::testing::HasSubstr;

const ProcessGroup& Group() { return testing::TestProcessGroup(); }

constexpr int64_t kLayers = 6, kWidth = 48;

// A chain of linears; host state decides whether rank 1 can be captured.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool reads_data = false) : reads_data(reads_data) {
    for (int64_t i = 0; i < kLayers; ++i) layers.push_back(register_module(absl::StrCat("layer", i), torch::nn::Linear(kWidth, kWidth)));
  }
  at::Tensor forward(at::Tensor x) {
    if (reads_data) x = x + x.sum().item<double>();
    for (auto& layer : layers) x = at::relu(layer->forward(x));
    return x.sum();
  }
  std::vector<torch::nn::Linear> layers;
  bool reads_data;
};
TORCH_MODULE(Net);

Net MakeNet(bool reads_data = false) {
  at::manual_seed(5);
  return Net(reads_data);
}

DdpOptions Auto() {
  DdpOptions options;
  options.bucket_policy = BucketPolicy::kAuto;
  return options;
}

at::Tensor Input() {
  at::manual_seed(static_cast<uint64_t>(100 + Group().rank()));
  return at::randn({16, kWidth});
}

TEST(AutoBuckets, AveragesGradientsAndReports) {
  Net net = MakeNet(), reference = MakeNet();
  auto ddp = DistributedDataParallel<Net>::Create(net, Group(), Auto());
  ASSERT_TRUE(ddp.ok()) << ddp.status();
  EXPECT_FALSE((*ddp)->core().auto_report().active);
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    reference->zero_grad();
    (*ddp)->forward(Input()).backward();
    reference->forward(Input()).backward();
    for (const auto& parameter : reference->named_parameters()) {
      at::Tensor mean = parameter.value().grad() / Group().world_size();
      ASSERT_TRUE(Group().AllReduceSum(mean).ok());
      EXPECT_TRUE(at::allclose(net->named_parameters()[parameter.key()].grad(), mean, 1e-5, 1e-6)) << parameter.key();
    }
  }
  EXPECT_FALSE((*ddp)->core().runs_eagerly());
  const AutoReport& report = (*ddp)->core().auto_report();
  EXPECT_TRUE(report.active);
  EXPECT_TRUE(report.measured);
  EXPECT_GT(report.backward, 0);
  EXPECT_GT(report.communication, 0);
  EXPECT_GE(report.exposed, 0);
  EXPECT_LE(report.exposed, report.exposed_of_caps + 0.02 * (report.forward + report.backward + report.exposed_of_caps));
  EXPECT_EQ(static_cast<int>((*ddp)->core().optimizer_buckets().size()), report.buckets);
  EXPECT_THAT((*ddp)->core().explain(),
              AllOf(HasSubstr("bucket_policy auto: "), HasSubstr("Expected of a step"), HasSubstr("Got in the mean of 3 steps")));
}

TEST(AutoBuckets, AllRanksHaveRank0sBuckets) {
  Net net = MakeNet();
  auto ddp = DistributedDataParallel<Net>::Create(net, Group(), Auto());
  ASSERT_TRUE(ddp.ok()) << ddp.status();
  (*ddp)->forward(Input()).backward();
  std::string mine;
  for (const auto& bucket : (*ddp)->core().reducer_buckets()) absl::StrAppend(&mine, bucket.bytes, ",", bucket.parameters.front(), ";");
  const auto all = Group().AllGatherText("tables", mine);
  ASSERT_TRUE(all.ok());
  for (const std::string& table : *all) EXPECT_EQ(table, mine);
}

TEST(AutoBuckets, AllRanksMeasureRank0sAllReduces) {
  const auto figures = MeasureAllReduce(Group(), at::kCPU, 1 << 20);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_GT(figures->model.Seconds(1 << 20), 0);
  EXPECT_GE(figures->slowdown, 0);
  EXPECT_LE(figures->slowdown, 0.9);
  const auto all =
      Group().AllGatherText("figures", absl::StrCat(figures->model.latency, " ", figures->model.seconds_per_byte, " ", figures->slowdown));
  ASSERT_TRUE(all.ok());
  for (const std::string& text : *all) EXPECT_EQ(text, (*all)[0]);
}

TEST(AutoBuckets, ARankThatCannotBeCapturedMakesAllRunEagerly) {
  Net net = MakeNet(/*reads_data=*/Group().rank() == 1);
  auto ddp = DistributedDataParallel<Net>::Create(net, Group(), Auto());
  ASSERT_TRUE(ddp.ok()) << ddp.status();
  (*ddp)->forward(Input()).backward();
  EXPECT_TRUE((*ddp)->core().runs_eagerly());
  EXPECT_TRUE((*ddp)->core().CheckGradientsEqual().ok());
}

TEST(AutoBuckets, TooLittleMemoryIsAnErrorOnEveryRank) {
  DdpOptions options = Auto();
  options.bucket_memory_limit_mb = 1e-3;
  Net net = MakeNet();
  auto ddp = DistributedDataParallel<Net>::Create(net, Group(), options);
  ASSERT_TRUE(ddp.ok()) << ddp.status();
  EXPECT_THAT(ErrorOf([&] { (*ddp)->forward(Input()); }),
              AllOf(HasSubstr("bucket_policy kAuto"), HasSubstr("no buckets fit in memory_limit_bytes (1048)")));
}

TEST(AutoBuckets, OptionsThatContradict) {
  const auto error = [](DdpOptions options) {
    return std::string(DistributedDataParallel<Net>::Create(MakeNet(), Group(), std::move(options)).status().message());
  };
  DdpOptions options = Auto();
  options.bucket_cap_mb = 5;
  EXPECT_THAT(error(options), HasSubstr("bucket_policy is kAuto"));
  options = DdpOptions();
  options.bucket_memory_limit_mb = 5;
  EXPECT_THAT(error(options), HasSubstr("bucket_memory_limit_mb is for bucket_policy kAuto"));
  options = Auto();
  options.bucket_memory_limit_mb = -5;
  EXPECT_THAT(error(options), HasSubstr("bucket_memory_limit_mb must be a number >= 0"));
  options = DdpOptions();
  if (Group().rank() == 1) options.bucket_policy = BucketPolicy::kAuto;
  EXPECT_THAT(error(options), HasSubstr("bucket_policy"));
}

}  // namespace
}  // namespace ddpopt
