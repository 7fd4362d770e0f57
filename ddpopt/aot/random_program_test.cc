// Random programs of views, writes, ties, reductions and random operators: compiled, they give what eager gives, in values, strides,
// gradients, what they write and which results share memory. AOT_PROGRAMS=N in the environment runs more, AOT_SEED=N begins elsewhere.

#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ddpopt/aot/aot_function.h"
#include "ddpopt/capture/tracer/trace_forward.h"
#include "gtest/gtest.h"
#include "testing/tensors.h"

namespace ddpopt {
namespace {

using c10::IValue;
using testing::Ramp;
using Tensors = std::vector<at::Tensor>;

constexpr int kSide = 4;  // all values are matrices of this many rows and columns, or views that are brought back to that

struct Step {
  int op;
  int a, b;  // of earlier values
  int n;     // a dimension, a place, a kind
};

// Inputs 0 and 1 require grad, 2 and 3 don't, and may be written to.
struct Program {
  std::vector<Step> steps;
  std::vector<int> outputs;
};

constexpr const char* kNames[] = {"sin",   "mul",     "add",      "matmul",   "t",           "row",       "narrow",  "softmax",
                                  "sum",   "mul_",    "zero_row", "add_view", "copy_narrow", "cat_split", "detach",  "no_grad",
                                  "where", "dropout", "index",    "flip",     "relu_",       "noise",     "mean_all"};
constexpr int kOps = sizeof(kNames) / sizeof(kNames[0]);

at::Tensor Do(const Step& step, const Tensors& values) {
  const at::Tensor a = values[step.a], b = values[step.b];
  const int place = step.n % kSide, dim = step.n % 2;
  switch (step.op) {
    case 0:
      return a.sin();
    case 1:
      return a * b;
    case 2:
      return at::add(a, b, 0.5 * (1 + step.n % 3));
    case 3:
      return at::matmul(a, b) * 0.25;
    case 4:
      return a.t();
    case 5:
      return a.select(dim, place).unsqueeze(dim).expand({kSide, kSide});
    case 6:
      return at::cat({a.narrow(dim, 0, 1 + place % 3), b.narrow(dim, 1 + place % 3, kSide - 1 - place % 3)}, dim);
    case 7:
      return at::softmax(a, dim);
    case 8:
      return a.sum({dim}, true).expand({kSide, kSide}) * 0.2;
    case 9:
      a.mul_(0.5);
      return a;
    case 10: {
      at::Tensor row = a.select(dim, place);
      row.zero_();
      return a + 1;
    }
    case 11: {
      at::Tensor view = a.t().narrow(0, 0, 2);
      view.add_(b.exp().narrow(0, 0, 2), 0.3);  // never of the memory that is written
      return view.sum() + b;
    }
    case 12: {
      at::Tensor part = a.narrow(dim, 1, 2);
      part.copy_(b.exp().narrow(dim, 0, 2));
      return a;
    }
    case 13: {
      const Tensors parts = at::cat({a, b}, 0).split(kSide, 0);
      return step.n % 3 == 0 ? parts[1] : parts[0];
    }
    case 14:
      return a.detach();
    case 15: {
      const at::NoGradGuard no_grad;
      return a.cos() + 1;
    }
    case 16:
      return at::where(a > 0.1, b, 0.3);
    case 17:
      return at::dropout(a, 0.5, true);
    case 18:
      return a.index_select(dim, at::arange(kSide - 1, -1, -1));
    case 19:
      return a.flip({dim}).contiguous();
    case 20:
      return (a * 1.5).relu_();
    case 21: {
      at::Tensor noise = at::empty_like(a, a.options().requires_grad(false));
      if (step.n % 4 == 0) noise.uniform_();
      if (step.n % 4 == 1) noise.normal_();
      if (step.n % 4 == 2) noise.exponential_();
      if (step.n % 4 == 3) return at::bernoulli(a.detach().abs(), 0.4) * b;
      return noise * b;
    }
    default:
      return a.mean() + b;
  }
}

Tensors Execute(const Program& program, Tensors values) {
  for (const Step& step : program.steps) values.push_back(Do(step, values));
  Tensors outputs;
  for (const int output : program.outputs) outputs.push_back(values[output]);
  return outputs;
}

Program Random(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  Program program;
  const int steps = 2 + below(8);
  for (int i = 0; i < steps; ++i) program.steps.push_back({below(kOps), below(4 + i), below(4 + i), below(12)});
  const int outputs = 1 + below(3);
  // The last value, and any others.
  program.outputs.push_back(3 + steps);
  for (int i = 1; i < outputs; ++i) program.outputs.push_back(below(4 + steps));
  return program;
}

std::string Text(const Program& program) {
  std::string text;
  int value = 4;
  for (const Step& step : program.steps)
    absl::StrAppend(&text, "  %", value++, " = ", kNames[step.op], "(%", step.a, ", %", step.b, ", ", step.n, ")\n");
  return absl::StrCat(text, "  return %", absl::StrJoin(program.outputs, ", %"), "\n");
}

Tensors Inputs() {
  return {Ramp({kSide, kSide}).requires_grad_(), (Ramp({kSide, kSide}) + 0.2).t().contiguous().requires_grad_(), Ramp({kSide, kSide}) * 0.7,
          Ramp({kSide, kSide}).cos()};
}

struct Outcome {
  std::string error;
  Tensors inputs, outputs;
};

template <typename Fn>
Outcome Train(Fn fn) {
  Outcome outcome;
  outcome.inputs = Inputs();
  at::manual_seed(3);
  try {
    outcome.outputs = fn(outcome.inputs);
    at::Tensor loss = at::zeros({});
    int weight = 1;
    for (const at::Tensor& output : outcome.outputs) {
      if (output.requires_grad()) loss = loss + (output * output).sum() * weight++;
    }
    if (loss.requires_grad()) loss.backward();
  } catch (const c10::Error& error) {
    outcome.error = error.what_without_backtrace();
  }
  return outcome;
}

std::string Difference(const Outcome& want, const Outcome& got) {
  if (want.outputs.size() != got.outputs.size()) return "the number of results";
  const auto differ = [](const at::Tensor& a, const at::Tensor& b) {
    if (a.defined() != b.defined()) return true;
    return a.defined() && !at::equal(a.detach(), b.detach());
  };
  for (std::size_t i = 0; i < want.outputs.size(); ++i) {
    const at::Tensor &a = want.outputs[i], &b = got.outputs[i];
    if (differ(a, b)) return absl::StrCat("result ", i);
    if (a.strides() != b.strides()) return absl::StrCat("strides of result ", i);
    if (a.requires_grad() != b.requires_grad()) return absl::StrCat("requires_grad of result ", i);
    for (std::size_t k = 0; k < want.outputs.size(); ++k) {
      if (a.is_alias_of(want.outputs[k]) != b.is_alias_of(got.outputs[k])) return absl::StrCat("results ", i, " and ", k, " share memory");
    }
    for (std::size_t k = 0; k < want.inputs.size(); ++k) {
      if (a.is_alias_of(want.inputs[k]) != b.is_alias_of(got.inputs[k])) return absl::StrCat("result ", i, " shares memory with input ", k);
      if (a.is_same(want.inputs[k]) != b.is_same(got.inputs[k])) return absl::StrCat("result ", i, " is input ", k);
    }
  }
  for (std::size_t i = 0; i < want.inputs.size(); ++i) {
    if (differ(want.inputs[i], got.inputs[i])) return absl::StrCat("content of input ", i);
    if (!want.inputs[i].is_leaf()) continue;  // was written to
    // Sums of several gradients may be taken in another order.
    const at::Tensor &a = want.inputs[i].grad(), &b = got.inputs[i].grad();
    if (a.defined() != b.defined()) return absl::StrCat("whether input ", i, " has a gradient");
    if (a.defined() && !at::allclose(a, b, 1e-5, 1e-6)) return absl::StrCat("gradient of input ", i);
  }
  return "";
}

int FromEnvironment(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoi(text);
}

// The default partition, and those that compute again what is cheap, half of the rest, and everything.
AotOptions OptionsOf(int seed) {
  AotOptions options;
  options.poison_workspace = true;
  if (seed % 4 == 0) return options;
  options.partition.kind = PartitionKind::kMinCut;
  options.partition.memory_budget = 1 - 0.5 * (seed % 4 - 1);
  return options;
}

TEST(RandomProgram, CompiledIsEager) {
  const int programs = FromEnvironment("AOT_PROGRAMS", 600), first = FromEnvironment("AOT_SEED", 1);
  int compared = 0, wrong_for_eager = 0, refused = 0;
  for (int seed = first; seed < first + programs && !HasFailure(); ++seed) {
    const Program program = Random(static_cast<uint32_t>(seed));
    const Outcome want = Train([&](const Tensors& in) { return Execute(program, in); });
    if (!want.error.empty()) {
      ++wrong_for_eager;  // a leaf that requires grad is written to, or what backward needs
      continue;
    }
    auto traced = TraceFunction([&](Tensors in) { return Execute(program, in); }, FakeTensorMode::Create(), Inputs());
    if (!traced.ok()) {
      ASSERT_EQ(traced.status().code(), absl::StatusCode::kUnimplemented) << "seed " << seed << "\n" << Text(program) << traced.status();
      ++refused;
      continue;
    }
    auto compiled = AotFunction::Compile(*traced->module, traced->fake_inputs, OptionsOf(seed));
    if (!compiled.ok()) {
      ASSERT_EQ(compiled.status().code(), absl::StatusCode::kUnimplemented) << "seed " << seed << "\n"
                                                                            << Text(program) << compiled.status();
      ++refused;
      continue;
    }
    const Outcome got = Train([&](const Tensors& in) {
      Tensors outputs;
      const IValue result = (*compiled)->Call(std::vector<IValue>(in.begin(), in.end()));
      for (const IValue& element : result.toListRef()) outputs.push_back(element.toTensor());
      return outputs;
    });
    ASSERT_EQ(got.error, "") << "seed " << seed << "\n" << Text(program) << (*compiled)->joint().module->graph().ToString();
    ASSERT_EQ(Difference(want, got), "") << "seed " << seed << "\n" << Text(program) << (*compiled)->joint().module->graph().ToString();
    ++compared;
  }
  std::cout << "seeds " << first << " to " << first + programs - 1 << ": " << compared << " compared, " << wrong_for_eager
            << " that eager refuses, " << refused << " that can't be compiled\n";
  EXPECT_GT(compared, programs / 2);
}

}  // namespace
}  // namespace ddpopt
