// What is known of fakes' data is true: operators called at random on operands that are all known, beside the same call on real tensors.
// Afterwards each operand and each result is unknown or holds just what its real twin does, whatever the operator wrote, openly (in-place,
// out=) or not (running statistics).

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Functions.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/DispatchKey.h"
#include "c10/core/GradMode.h"
#include "c10/util/Exception.h"
#include "fake_tensor/cross_ref/cross_ref.h"
#include "fake_tensor/cross_ref/generator.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/mode_stack.h"
#include "torch/csrc/api/include/torch/types.h"

namespace ddpopt {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

class Quiet final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

// Bit by bit, so that NaN is itself; a view of other bits as bool is true wherever there is one.
bool SameData(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (a.scalar_type() == at::kBool) return at::equal(a.view(at::kByte).ne(0), b.view(at::kByte).ne(0));
  const Tensor x = a.resolve_conj().resolve_neg().contiguous();
  const Tensor y = b.resolve_conj().resolve_neg().contiguous();
  return x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

std::string Untrue(const Tensor& fake, const Tensor& real) {
  if (!fake.defined() || !real.defined()) return "";
  const std::optional<Tensor> known = FakeTensorMode::KnownValue(fake);
  if (!known.has_value() || SameData(*known, real)) return "";
  return absl::StrCat(c10::str("known as ", *known, ", is ", real));
}

void Flatten(const c10::IValue& value, Tensors* tensors) {
  if (value.isTensor()) tensors->push_back(value.toTensor());
  if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorVector()) tensors->push_back(tensor);
  }
  if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) Flatten(element, tensors);
  }
}

// The arguments as known fakes. A tensor that is passed twice is one fake; one that shares memory with another has none.
std::optional<std::vector<c10::IValue>> KnownArguments(FakeTensorMode& mode, const cross_ref::MadeCall& made, Tensors* fakes) {
  std::map<const c10::TensorImpl*, Tensor> known;
  std::set<const c10::StorageImpl*> storages;
  for (const Tensor& tensor : made.tensors) {
    Tensor& fake = known[tensor.unsafeGetTensorImpl()];
    if (!fake.defined()) {
      if (!storages.insert(tensor.storage().unsafeGetStorageImpl()).second) return std::nullopt;
      fake = mode.FromConstant(tensor);
    }
    fakes->push_back(fake);
  }
  std::vector<c10::IValue> arguments;
  for (const c10::IValue& argument : made.arguments) {
    if (argument.isTensor()) {
      arguments.emplace_back(known.at(argument.toTensor().unsafeGetTensorImpl()));
    } else if (argument.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : argument.toTensorVector()) list.push_back(known.at(tensor.unsafeGetTensorImpl()));
      arguments.emplace_back(std::move(list));
    } else if (argument.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor>& tensor : argument.toOptionalTensorVector()) {
        list.push_back(tensor.has_value() ? std::optional<Tensor>(known.at(tensor->unsafeGetTensorImpl())) : std::nullopt);
      }
      arguments.emplace_back(std::move(list));
    } else {
      arguments.push_back(argument);
    }
  }
  return arguments;
}

bool Ran(const std::function<void()>& call) {
  try {
    call();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

struct Counts {
  int calls = 0, known_results = 0, operators = 0;
};

// All aten operators that can be called at random, compositions included if a recipe works for them.
Counts CheckAll(const std::vector<c10::OperatorHandle>& operators, uint64_t seeds) {
  at::set_num_threads(1);
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard no_warnings(&quiet);
  FakeTensorModeOptions options;
  options.constant_limit = 1 << 20;
  Counts counts;
  for (const c10::OperatorHandle& op : operators) {
    // Their real kernels read beyond operands: where an index points elsewhere, where strides are those of expanded tensors.
    if (absl::StartsWith(op.schema().name(), "aten::adaptive_max_pool3d_backward") ||
        absl::StartsWith(op.schema().name(), "aten::native_layer_norm_backward")) {
      continue;
    }
    ++counts.operators;
    const auto mode = FakeTensorMode::Create(options);
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      const std::optional<cross_ref::Call> call = cross_ref::RandomCall(op, seed, {.damage = false, .dtype = std::nullopt});
      if (!call.has_value()) continue;
      for (int pass = 0; pass < 2; ++pass) {  // the second time from the cache
        cross_ref::MadeCall made = Make(*call);
        Tensors fakes;
        std::optional<std::vector<c10::IValue>> arguments = KnownArguments(*mode, made, &fakes);
        if (!arguments.has_value()) break;
        Tensors real_results, fake_results;
        const bool ran = Ran([&] { Flatten(cross_ref::Run(op, made.arguments), &real_results); });
        const bool ran_on_fakes = Ran([&] {
          const ModeGuard guard(mode);
          Flatten(cross_ref::Run(op, std::move(*arguments)), &fake_results);
        });
        if (!ran || !ran_on_fakes) break;
        ++counts.calls;
        for (std::size_t i = 0; i < fakes.size(); ++i) {
          EXPECT_EQ(Untrue(fakes[i], made.tensors[i]), "") << "operand tensor " << i << " of " << call->ToString() << ", seed " << seed;
        }
        for (std::size_t i = 0; i < std::min(real_results.size(), fake_results.size()); ++i) {
          EXPECT_EQ(Untrue(fake_results[i], real_results[i]), "") << "result " << i << " of " << call->ToString() << ", seed " << seed;
          counts.known_results += fake_results[i].defined() && FakeTensorMode::KnownValue(fake_results[i]).has_value();
        }
      }
    }
  }
  return counts;
}

TEST(KnownValuesTest, OfEveryOperator) {
  const Counts counts = CheckAll(cross_ref::Operators({}, /*with_unfinished=*/true), 6);
  EXPECT_GT(counts.operators, 900);
  EXPECT_GT(counts.calls, 5000);
  EXPECT_GT(counts.known_results, 1000);
}

// Operators that take statistics to update: by their schemas no argument is written.
TEST(KnownValuesTest, RunningStatisticsAreNoLongerKnown) {
  const auto mode = FakeTensorMode::Create();
  const auto known = [&](double value) { return mode->FromConstant(at::full({2}, value)); };
  const Tensor x = mode->FromReal(at::ones({3, 2, 4}));
  struct Case {
    const char* name;
    void (*run)(const Tensor& x, const Tensor& mean, const Tensor& var);
  };
  const Case cases[] = {
      {"batch_norm",
       [](const Tensor& x, const Tensor& mean, const Tensor& var) { at::batch_norm(x, {}, {}, mean, var, true, 0.1, 1e-5, false); }},
      {"instance_norm",
       [](const Tensor& x, const Tensor& mean, const Tensor& var) { at::instance_norm(x, {}, {}, mean, var, true, 0.1, 1e-5, false); }},
      {"native_batch_norm",
       [](const Tensor& x, const Tensor& mean, const Tensor& var) { at::native_batch_norm(x, {}, {}, mean, var, true, 0.1, 1e-5); }},
      {"_batch_norm_impl_index", [](const Tensor& x, const Tensor& mean,
                                    const Tensor& var) { at::_batch_norm_impl_index(x, {}, {}, mean, var, true, 0.1, 1e-5, false); }},
      {"batch_norm_update_stats",
       [](const Tensor& x, const Tensor& mean, const Tensor& var) { at::batch_norm_update_stats(x, mean, var, 0.1); }},
      {"_native_batch_norm_legit",
       [](const Tensor& x, const Tensor& mean, const Tensor& var) {
         Tensor m = mean, v = var;
         at::_native_batch_norm_legit(x, {}, {}, m, v, true, 0.1, 1e-5);
       }},
      {"_batch_norm_with_update",
       [](const Tensor& x, const Tensor& mean, const Tensor& var) {
         Tensor m = mean, v = var;
         at::_batch_norm_with_update(x, {}, {}, m, v, 0.1, 1e-5);
       }},
      {"rrelu_with_noise's noise",
       [](const Tensor&, const Tensor& mean, const Tensor& var) {
         Tensor noise = var;
         at::rrelu_with_noise(mean, noise, 0.1, 0.3, true);
         mean.zero_();
       }},
      {"embedding_renorm_",
       [](const Tensor&, const Tensor& mean, const Tensor& var) {
         Tensor weight = mean.unsqueeze(1);
         at::embedding_renorm_(weight, at::empty_like(mean, at::kLong), 0.5, 2);
         var.zero_();
       }},
  };
  for (const Case& c : cases) {
    for (int pass = 0; pass < 2; ++pass) {
      const Tensor mean = known(0), var = known(1);
      c.run(x, mean, var);
      EXPECT_FALSE(FakeTensorMode::KnownValue(mean).has_value()) << c.name << ", pass " << pass;
      EXPECT_FALSE(FakeTensorMode::KnownValue(var).has_value()) << c.name << ", pass " << pass;
    }
  }
  // Evaluation only reads them.
  const Tensor mean = known(0), var = known(1);
  at::batch_norm(x, {}, {}, mean, var, /*training=*/false, 0.1, 1e-5, false);
  at::native_batch_norm(x, {}, {}, mean, var, /*training=*/false, 0.1, 1e-5);
  EXPECT_TRUE(FakeTensorMode::KnownValue(mean).has_value());
  EXPECT_TRUE(FakeTensorMode::KnownValue(var).has_value());
}

}  // namespace
}  // namespace ddpopt
