// Random numbers and optimizer steps on fakes.

#include <vector>

#include "fake_tensor/sweep.h"

namespace ddpopt {
namespace {

c10::IValue List(Tensors tensors) { return c10::IValue(std::move(tensors)); }
at::Tensor Steps() { return NoGrad({}); }

std::vector<SweepCase> Random() {
  return {
      OpCase("bernoulli", "aten::bernoulli", {T(F({4, 3}))}),
      OpCase("bernoulli_out", "aten::bernoulli.out", {NoGrad({4, 3})}, {{"out", Long({0})}}),
      OpCase("bernoulli_tensor", "aten::bernoulli_.Tensor", {NoGrad({4, 3}), NoGrad({3})}),
      Rejected(OpCase("bernoulli_int_probabilities", "aten::bernoulli_.Tensor", {NoGrad({3}), Long({3})})),
      Rejected(OpCase("bernoulli_probability", "aten::bernoulli.p", {NoGrad({3}), 1.5})),
      Rejected(OpCase("bernoulli_expanded", "aten::bernoulli_.float", {X(NoGrad({3}), 2), 0.5})),
      OpCase("uniform", "aten::uniform_", {NoGrad({4, 3}), -1.0, 1.0}),
      Rejected(OpCase("uniform_bounds", "aten::uniform_", {NoGrad({4, 3}), 1.0, -1.0})),
      Rejected(OpCase("uniform_int", "aten::uniform_", {Long({4, 3}), 0.0, 1.0})),
      Rejected(OpCase("normal_std", "aten::normal_", {NoGrad({4, 3}), 0.0, -1.0})),
      Rejected(OpCase("normal_expanded", "aten::normal_", {X(NoGrad({3}), 2), 0.0, 1.0})),
      Rejected(OpCase("log_normal_std", "aten::log_normal", {NoGrad({3}), 0.0, 0.0})),
      Rejected(OpCase("cauchy_int", "aten::cauchy", {Long({3}), 0.0, 1.0})),
      Rejected(OpCase("exponential_int", "aten::exponential", {Long({3}), 1.0})),
      Rejected(OpCase("geometric_probability", "aten::geometric_", {NoGrad({3}), 3.0})),
      OpCase("random_from_to", "aten::random_.from", {Long({3}), 2, 5}),
      Rejected(OpCase("random_range", "aten::random_.to", {NoGrad({3}, at::kByte), 300})),
      Rejected(OpCase("random_empty_range", "aten::random.from", {Long({3}), 5, 2})),
      OpCase("gamma", "aten::_standard_gamma", {T(F({4, 3}))}),
      OpCase("dirichlet", "aten::_sample_dirichlet", {NoGrad({4, 3})}),
      Rejected(OpCase("gamma_half", "aten::_standard_gamma", {NoGrad({3}, at::kHalf)})),
      OpCase("poisson", "aten::poisson", {T(F({4, 3}))}),
      OpCase("binomial", "aten::binomial", {T(NoGrad({4, 3})), NoGrad({3, 4})}),
      Rejected(OpCase("binomial_mixed", "aten::binomial", {NoGrad({3}), NoGrad({3}, at::kDouble)})),
      OpCase("multinomial", "aten::multinomial", {NoGrad({4, 3}), 2}),
      OpCase("multinomial_replaced", "aten::multinomial", {NoGrad({3}), 5, true}),
      Rejected(OpCase("multinomial_too_many", "aten::multinomial", {NoGrad({3}), 5, false})),
      Rejected(OpCase("multinomial_3d", "aten::multinomial", {NoGrad({2, 2, 3}), 1})),
      OpCase("native_dropout", "aten::native_dropout", {T(F({4, 3})), 0.5, true}),
      OpCase("native_dropout_eval", "aten::native_dropout", {T(F({4, 3})), 0.5, false}),
      OpCase("native_dropout_nothing", "aten::native_dropout", {NoGrad({0, 3}), 0.5, true}),
      OpCase("native_dropout_backward", "aten::native_dropout_backward", {NoGrad({3}, at::kHalf), NoGrad({3}, at::kBool), 2.0}),
      Rejected(OpCase("native_dropout_probability", "aten::native_dropout", {NoGrad({3}), 1.5, true})),
  };
}

std::vector<SweepCase> OptimizerSteps() {
  const std::vector<std::pair<std::string, c10::IValue>> adam = {
      {"lr", 0.1}, {"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0.0}, {"eps", 1e-8}, {"amsgrad", false}, {"maximize", false}};
  const auto params = [] { return List({NoGrad({4, 3}), NoGrad({3})}); };
  const std::vector<std::pair<std::string, c10::IValue>> sgd = {{"weight_decay", 0.0},  {"momentum", 0.9},   {"lr", 0.1},
                                                                {"dampening", 0.0},     {"nesterov", false}, {"maximize", false},
                                                                {"is_first_step", true}};
  return {
      OpCase("fused_adam", "aten::_fused_adam_", {params(), params(), params(), params(), List({}), List({Steps(), Steps()})}, adam),
      OpCase("fused_adamw", "aten::_fused_adamw_", {params(), params(), params(), params(), List({}), List({Steps(), Steps()})}, adam),
      Rejected(OpCase("fused_adam_counts", "aten::_fused_adam_",
                      {params(), List({NoGrad({4, 3})}), params(), params(), List({}), List({Steps(), Steps()})}, adam)),
      OpCase("fused_sgd", "aten::_fused_sgd_", {params(), params(), params()}, sgd),
      OpCase("fused_adagrad", "aten::_fused_adagrad_", {params(), params(), params(), List({Steps(), Steps()})},
             {{"lr", 0.1}, {"lr_decay", 0.0}, {"weight_decay", 0.0}, {"eps", 1e-8}, {"maximize", false}}),
      OpCase("amp_unscale", "aten::_amp_foreach_non_finite_check_and_unscale_", {params(), NoGrad({1}), NoGrad({1})}),
      Rejected(OpCase("amp_unscale_count", "aten::_amp_foreach_non_finite_check_and_unscale_", {params(), NoGrad({2}), NoGrad({1})})),
      OpCase("amp_update_scale", "aten::_amp_update_scale_", {NoGrad({1}), NoGrad({1}, at::kInt), NoGrad({1}), 2.0, 0.5, 100}),
      Rejected(OpCase("amp_update_scale_dtype", "aten::_amp_update_scale_", {NoGrad({1}), NoGrad({1}), NoGrad({1}), 2.0, 0.5, 100})),
  };
}

INSTANTIATE_TEST_SUITE_P(Random, SweepTest, ::testing::ValuesIn(Random()), SweepName);
INSTANTIATE_TEST_SUITE_P(Steps, SweepTest, ::testing::ValuesIn(OptimizerSteps()), SweepName);

}  // namespace
}  // namespace ddpopt
