// Whose memory results see. Operators that hand an input back or a view of it do so on every call, also one that the cache answers, and
// what is written through the result reaches the input: the same versions, history and refusals as on real tensors.

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/InferenceMode.h"
#include "fake_tensor/cross_ref/cross_ref.h"
#include "fake_tensor/cross_ref/generator.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fake_tensor/sweep.h"
#include "fake_tensor/test_helpers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/call_outcome.h"

namespace ddpopt {
namespace {

using at::Tensor;
using ::testing::IsEmpty;

struct Named {
  const char* name;
  std::function<Tensors(const Tensor&)> run;
};

// Compositions and methods; the sweep writes to their results and calls them twice.
std::vector<Named> Operators() {
  return {
      {"to_dtype", [](const Tensor& x) { return Tensors{x.to(x.scalar_type())}; }},
      {"to_options", [](const Tensor& x) { return Tensors{x.to(x.options())}; }},
      {"to_other", [](const Tensor& x) { return Tensors{x.to(x.options(), false, false, at::MemoryFormat::Preserve)}; }},
      {"to_copy", [](const Tensor& x) { return Tensors{x.to(x.options(), false, true)}; }},
      {"to_double", [](const Tensor& x) { return Tensors{x.to(at::kDouble)}; }},
      {"type_as", [](const Tensor& x) { return Tensors{x.type_as(x)}; }},
      {"contiguous", [](const Tensor& x) { return Tensors{x.contiguous()}; }},
      {"contiguous_last", [](const Tensor& x) { return Tensors{x.contiguous(at::MemoryFormat::ChannelsLast)}; }},
      {"dropout_eval", [](const Tensor& x) { return Tensors{at::dropout(x, 0.5, false)}; }},
      {"feature_dropout_eval", [](const Tensor& x) { return Tensors{at::feature_dropout(x, 0.5, false)}; }},
      {"alpha_dropout_eval", [](const Tensor& x) { return Tensors{at::alpha_dropout(x, 0.5, false)}; }},
      {"reshape_same", [](const Tensor& x) { return Tensors{x.reshape(x.sizes())}; }},
      {"reshape_flat", [](const Tensor& x) { return Tensors{x.reshape({x.numel()})}; }},
      {"reshape_as", [](const Tensor& x) { return Tensors{x.reshape_as(x)}; }},
      {"view_as", [](const Tensor& x) { return Tensors{x.view_as(x)}; }},
      {"expand_as", [](const Tensor& x) { return Tensors{x.expand_as(x)}; }},
      {"expand_more",
       [](const Tensor& x) {
         return Tensors{x.unsqueeze(0).expand({3, -1, -1, -1, -1})};
       }},
      {"broadcast_to", [](const Tensor& x) { return Tensors{x.broadcast_to(x.sizes())}; }},
      {"flatten", [](const Tensor& x) { return Tensors{x.flatten(1)}; }},
      {"flatten_one", [](const Tensor& x) { return Tensors{x.select(0, 0).select(0, 0).select(0, 0).flatten()}; }},
      {"ravel", [](const Tensor& x) { return Tensors{at::ravel(x)}; }},
      {"unflatten",
       [](const Tensor& x) {
         return Tensors{x.unflatten(3, {2, 3})};
       }},
      {"resolve_conj", [](const Tensor& x) { return Tensors{x.resolve_conj()}; }},
      {"resolve_neg", [](const Tensor& x) { return Tensors{x.resolve_neg()}; }},
      {"conj", [](const Tensor& x) { return Tensors{x.conj()}; }},
      {"real", [](const Tensor& x) { return Tensors{at::real(x)}; }},
      {"positive", [](const Tensor& x) { return Tensors{x.positive()}; }},
      {"squeeze_nothing", [](const Tensor& x) { return Tensors{x.squeeze()}; }},
      {"squeeze_dim", [](const Tensor& x) { return Tensors{x.squeeze(1)}; }},
      {"squeeze_unsqueeze", [](const Tensor& x) { return Tensors{x.unsqueeze(1).squeeze(1)}; }},
      {"atleast_1d", [](const Tensor& x) { return Tensors{at::atleast_1d(x)}; }},
      {"alias", [](const Tensor& x) { return Tensors{at::alias(x)}; }},
      {"detach", [](const Tensor& x) { return Tensors{x.detach()}; }},
      {"data", [](const Tensor& x) { return Tensors{x.variable_data()}; }},
      {"tensor_data", [](const Tensor& x) { return Tensors{x.tensor_data()}; }},
      {"permute",
       [](const Tensor& x) {
         return Tensors{x.permute({3, 1, 0, 2})};
       }},
      {"transpose", [](const Tensor& x) { return Tensors{x.transpose(0, 3)}; }},
      {"movedim", [](const Tensor& x) { return Tensors{x.movedim(0, 2)}; }},
      {"swapaxes", [](const Tensor& x) { return Tensors{x.swapaxes(1, 2)}; }},
      {"matrix_transpose", [](const Tensor& x) { return Tensors{x.mT()}; }},
      {"adjoint", [](const Tensor& x) { return Tensors{x.adjoint()}; }},
      {"select", [](const Tensor& x) { return Tensors{x.select(2, 1)}; }},
      {"slice_whole", [](const Tensor& x) { return Tensors{x.slice(0)}; }},
      {"slice_steps", [](const Tensor& x) { return Tensors{x.slice(3, 1, 6, 2)}; }},
      {"narrow", [](const Tensor& x) { return Tensors{x.narrow(2, 1, 2)}; }},
      {"unfold", [](const Tensor& x) { return Tensors{x.unfold(3, 2, 2)}; }},
      {"diagonal", [](const Tensor& x) { return Tensors{x.diagonal(1, 2, 3)}; }},
      {"as_strided",
       [](const Tensor& x) {
         return Tensors{x.as_strided({1, 2}, {1, 1})};
       }},
      {"view_dtype", [](const Tensor& x) { return Tensors{x.view(at::kInt)}; }},
      {"unsafe_view", [](const Tensor& x) { return Tensors{at::_unsafe_view(x, x.sizes())}; }},
      {"reshape_alias", [](const Tensor& x) { return Tensors{at::_reshape_alias(x, x.sizes(), x.strides())}; }},
      {"chunk", [](const Tensor& x) { return x.chunk(2, 2); }},
      {"unsafe_chunk", [](const Tensor& x) { return x.unsafe_chunk(2, 2); }},
      {"tensor_split", [](const Tensor& x) { return x.tensor_split(3, 2); }},
      {"split", [](const Tensor& x) { return x.split(2, 3); }},
      {"split_with_sizes",
       [](const Tensor& x) {
         return x.split_with_sizes({1, 3}, 2);
       }},
      {"unsafe_split", [](const Tensor& x) { return x.unsafe_split(2, 3); }},
      {"unbind", [](const Tensor& x) { return x.unbind(2); }},
      {"hsplit", [](const Tensor& x) { return x.hsplit(1); }},
      {"view_of_view",
       [](const Tensor& x) {
         return Tensors{x.transpose(0, 1).select(0, 0), x.transpose(0, 1)};
       }},
      {"real_of_complex", [](const Tensor& x) { return Tensors{at::real(at::complex(x, x))}; }},
      {"imag_of_conj", [](const Tensor& x) { return Tensors{at::imag(at::complex(x, x).conj())}; }},
      {"neg_view", [](const Tensor& x) { return Tensors{at::_neg_view(x)}; }},
      {"view_as_real", [](const Tensor& x) { return Tensors{at::view_as_real(at::complex(x, x))}; }},
      {"view_as_complex", [](const Tensor& x) { return Tensors{at::view_as_complex(x.unfold(3, 2, 2))}; }},
  };
}

std::vector<SweepCase> Cases() {
  const std::vector<std::pair<const char*, Tensor>> layouts = {
      {"plain", NoGrad({2, 3, 4, 6})},
      {"leaf", F({2, 3, 4, 6})},
      {"transposed", T(NoGrad({2, 3, 6, 4}))},
      {"transposed_leaf", T(F({2, 3, 6, 4}))},
      {"expanded", X(NoGrad({3, 4, 6}), 2)},
      {"channels_last", ChannelsLast({2, 3, 4, 6})},
      {"sliced", NoGrad({2, 3, 4, 13}).slice(3, 1, 13, 2).detach()},
      {"no_elements", NoGrad({2, 0, 4, 6})},
  };
  std::vector<SweepCase> cases;
  for (const Named& op : Operators()) {
    for (const auto& [layout, x] : layouts) {
      const Tensor copy = at::empty_strided(x.sizes(), x.strides()).fill_(1).requires_grad_(x.requires_grad());
      SweepCase c{absl::StrCat(op.name, "_", layout), {copy}, [run = op.run](const Tensors& in) { return run(in[0]); }, false};
      try {
        const at::NoGradGuard no_grad;
        op.run(x);
      } catch (const c10::Error&) {
        c.rejected = true;  // view() of such strides, select() where nothing is
      }
      cases.push_back(std::move(c));
    }
    // Of an input that autograd knows: the result's history and the input's bond.
    cases.push_back({absl::StrCat(op.name, "_computed"),
                     {F({2, 3, 4, 6})},
                     [run = op.run](const Tensors& in) {
                       const Tensor y = in[0] * 2;
                       Tensors results = run(y);
                       results.push_back(y);
                       return results;
                     },
                     false});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Aliasing, SweepTest, ::testing::ValuesIn(Cases()), SweepName);

// Changing what may not be changed: autograd's own words.
TEST(AliasingTest, RefusedWritesAreEagersRefusals) {
  const std::vector<std::pair<const char*, std::function<void(const Tensor&)>>> writes = {
      {"a leaf", [](const Tensor& x) { x.add_(1); }},
      {"a view of a leaf", [](const Tensor& x) { x.select(0, 0).mul_(2); }},
      {"a slice of a view of a leaf", [](const Tensor& x) { x.t().slice(0, 0, 1).zero_(); }},
      {"out= that is a leaf",
       [](const Tensor& x) {
         Tensor out = x;
         at::add_out(out, x.detach(), 1);
       }},
      {"a leaf's list operator", [](const Tensor& x) { at::_foreach_add_({x}, 1); }},
      {"a part of several", [](const Tensor& x) { (x * 1).chunk(2)[0].add_(1); }},
      {"one of unbind", [](const Tensor& x) { (x * 1).unbind()[1].add_(1); }},
      {"one of split", [](const Tensor& x) { (x * 1).split(1)[1].zero_(); }},
      {"an expanded tensor",
       [](const Tensor& x) {
         x.detach().unsqueeze(0).expand({3, 2, 4}).add_(1);
       }},
      {"a view made without grad",
       [](const Tensor& x) {
         const Tensor y = x * 1;
         Tensor view;
         {
           const at::NoGradGuard no_grad;
           view = y.t();
         }
         view.add_(x.t());
       }},
      {"what a formula saved",
       [](const Tensor& x) {
         const Tensor y = x.exp();
         const Tensor z = y.sum();
         y.add_(1);
         z.backward();
       }},
      {"what a formula saved, through a view",
       [](const Tensor& x) {
         const Tensor y = x.sigmoid();
         y.t().select(0, 0).zero_();
         y.sum().backward();
       }},
      {"into a smaller one", [](const Tensor& x) { x.detach().select(0, 0).add_(x.detach()); }},
      {"detached, then its metadata",
       [](const Tensor& x) {
         x.detach().resize_({100});
         x.data().t_();
       }},
      {"an inference tensor",
       [](const Tensor& x) {
         Tensor y;
         {
           const c10::InferenceMode inference;
           y = x * 2;
         }
         y.add_(x);
       }},
      {"a saved inference tensor",
       [](const Tensor& x) {
         Tensor y;
         {
           const c10::InferenceMode inference;
           y = x.detach() * 2;
         }
         (x * y).sum().backward();
       }},
  };
  for (const auto& [name, write] : writes) {
    const auto mode = FakeTensorMode::Create();
    for (const int pass : {1, 2}) {
      const Tensor real = at::ones({2, 4}).requires_grad_();
      const Tensor fake = mode->FromReal(real);
      const int64_t version = real._version();
      const std::string want = ErrorOf([&] { write(real); });
      const std::string got = ErrorOf([&] {
        const ModeGuard guard(mode);
        write(fake);
      });
      // Up to the node's or tensor's address or name in a long hint.
      EXPECT_EQ(got.substr(0, got.find_first_of("\n;")), want.substr(0, want.find_first_of("\n;"))) << name << ", pass " << pass;
      EXPECT_EQ(fake._version(), real._version() - version) << name;
    }
  }
}

// Whether the operator's result is a view, by its schema, or the copy that replaces one.
bool IsView(const c10::FunctionSchema& schema) {
  if (absl::EndsWith(schema.name(), "_copy") && schema.name() != "aten::_to_copy") return true;
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
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

std::vector<int64_t> VersionsOf(const Tensors& tensors) {
  std::vector<int64_t> versions;
  for (const Tensor& tensor : tensors) versions.push_back(tensor.defined() ? tensor._version() : 0);
  return versions;
}

// What the call says of aliasing, and whose versions a write to each of its results counts.
std::string Describe(const c10::OperatorHandle& op, const Tensors& inputs, std::vector<c10::IValue> arguments) {
  std::vector<std::string> lines;
  const auto add = [&](std::string line, const std::vector<int64_t>& before, const std::vector<int64_t>& after) {
    for (std::size_t i = 0; i < before.size(); ++i) absl::StrAppend(&line, " ", after[i] - before[i]);
    lines.push_back(std::move(line));
  };
  try {
    Tensors all = inputs;
    const std::vector<int64_t> at_first = VersionsOf(inputs);
    Flatten(cross_ref::Run(op, std::move(arguments)), &all);
    add("the call changes", at_first, VersionsOf(inputs));
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all[i].defined()) continue;
      std::string line = absl::StrCat("tensor ", i, all[i].is_view() ? " view" : "");
      for (std::size_t k = 0; k < i; ++k) {
        if (all[k].defined() && StorageOf(all[k]) == StorageOf(all[i])) absl::StrAppend(&line, " shares ", k);
      }
      const std::vector<int64_t> before = VersionsOf(all);
      const std::string error = ErrorOf([&] {
        const at::NoGradGuard no_grad;
        all[i].zero_();
      });
      add(absl::StrCat(line, error == "no error" ? " written, changes" : " refused, changes"), before, VersionsOf(all));
    }
  } catch (const std::exception&) {
    lines.emplace_back("refused");
  }
  return absl::StrJoin(lines, "\n");
}

TEST(AliasingTest, ViewsAndTheirCopiesOfRandomInputs) {
  constexpr uint64_t kCalls = 200;
  int operators = 0, calls = 0;
  for (const c10::OperatorHandle& op : cross_ref::Operators({}, /*with_unfinished=*/true)) {
    if (!IsView(op.schema()) || op.schema().is_mutable()) continue;
    ++operators;
    for (uint64_t seed = 0; seed < kCalls; ++seed) {
      const std::optional<cross_ref::Call> call = cross_ref::RandomCall(op, seed);
      if (!call.has_value()) continue;
      ++calls;
      const auto mode = FakeTensorMode::Create();
      for (int pass = 0; pass < 2; ++pass) {
        // The outcome, and what writes do afterwards, each of tensors of their own.
        cross_ref::MadeCall real = Make(*call);
        cross_ref::MadeCall fake = Make(*call);
        std::vector<c10::IValue> arguments;
        Tensors tensors;
        for (const c10::IValue& argument : fake.arguments) arguments.push_back(mode->FromReal(argument));
        for (const Tensor& tensor : fake.tensors) tensors.push_back(mode->FromReal(tensor));
        const ::ddpopt::testing::Outcome want =
            ::ddpopt::testing::Observe(real.tensors, [&] { return cross_ref::Run(op, real.arguments); });
        const ::ddpopt::testing::Outcome outcome = ::ddpopt::testing::Observe(tensors, [&] {
          const ModeGuard guard(mode);
          return cross_ref::Run(op, arguments);
        });
        EXPECT_EQ(::ddpopt::testing::Difference(want, outcome), "") << call->ToString() << ", seed " << seed << ", pass " << pass;
      }
      for (int pass = 0; pass < 2; ++pass) {
        cross_ref::MadeCall made = Make(*call);
        std::vector<c10::IValue> arguments;
        Tensors tensors;
        for (const c10::IValue& argument : made.arguments) arguments.push_back(mode->FromReal(argument));
        for (const Tensor& tensor : made.tensors) tensors.push_back(mode->FromReal(tensor));
        const std::string faked = [&] {
          const ModeGuard guard(mode);
          return Describe(op, tensors, arguments);
        }();
        EXPECT_EQ(faked, Describe(op, made.tensors, made.arguments)) << call->ToString() << ", seed " << seed << ", pass " << pass;
      }
    }
  }
  EXPECT_GT(operators, 40);
  EXPECT_GT(calls, 4000);
}

}  // namespace
}  // namespace ddpopt
