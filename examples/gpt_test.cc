#include "examples/gpt.h"

#include <cmath>

#include "ATen/Context.h"
#include "ATen/ops/allclose.h"
#include "ATen/ops/randint.h"
#include "c10/core/GradMode.h"
#include "gtest/gtest.h"

namespace ddpopt::examples {
namespace {

GptConfig Small() { return {.vocab = 50, .context = 8, .width = 16, .heads = 2, .layers = 2, .table = 100}; }

GptInput Random(int64_t batch, int64_t time) {
  return {at::randint(0, 50, {batch, time}, at::kLong), at::randint(0, 100, {batch, time}, at::kLong),
          at::randint(0, 100, {batch, time}, at::kLong)};
}

TEST(Gpt, StartsNearUniform) {
  at::manual_seed(3);
  Gpt net(Small());
  const GptInput in = Random(4, 8);
  const double loss = net->forward(in.characters, in.pairs, in.triples, at::randint(0, 50, {4, 8}, at::kLong)).item<double>();
  EXPECT_NEAR(loss, std::log(50.0), 0.05);
}

TEST(Gpt, SeesThePastOnly) {
  at::manual_seed(3);
  c10::NoGradGuard no_grad;
  Gpt net(Small());
  GptInput in = Random(1, 8);
  const at::Tensor before = net->Logits(in).clone();
  in.characters.select(1, 5).fill_(49).sub_(in.characters.select(1, 4));
  in.pairs.select(1, 5).fill_(7);
  in.triples.select(1, 5).fill_(8);
  const at::Tensor after = net->Logits(in);
  EXPECT_TRUE(at::allclose(before.narrow(1, 0, 5), after.narrow(1, 0, 5), 1e-5, 1e-7));
  for (int64_t i = 5; i < 8; ++i) EXPECT_FALSE(at::allclose(before.select(1, i), after.select(1, i), 1e-5, 1e-7)) << i;
}

TEST(Gpt, ShorterTextGivesThePrefix) {
  at::manual_seed(3);
  c10::NoGradGuard no_grad;
  Gpt net(Small());
  const GptInput in = Random(1, 8);
  const auto cut = [](const at::Tensor& t) { return t.narrow(1, 0, 3); };
  const at::Tensor part = net->Logits({cut(in.characters), cut(in.pairs), cut(in.triples)});
  EXPECT_TRUE(at::allclose(part, net->Logits(in).narrow(1, 0, 3), 1e-4, 1e-6));
  EXPECT_THROW(net->Logits(Random(1, 9)), c10::Error);
}

TEST(Gpt, EveryParameterGetsAGradient) {
  Gpt net(Small());
  const GptInput in = Random(2, 8);
  net->forward(in.characters, in.pairs, in.triples, in.characters).backward();
  for (const auto& parameter : net->named_parameters()) EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
}

TEST(Gpt, RefusesBadSizes) {
  GptConfig config = Small();
  config.heads = 3;
  EXPECT_THROW(Gpt{config}, c10::Error);
}

}  // namespace
}  // namespace ddpopt::examples
