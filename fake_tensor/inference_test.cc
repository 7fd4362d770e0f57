// Inference tensors, with and without requires_grad, in and outside of inference mode: what autograd refuses, whose results require grad,
// and what is an inference tensor afterwards, on fakes as on real tensors.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "absl/strings/str_cat.h"
#include "c10/core/InferenceMode.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fake_tensor/test_helpers.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"

namespace ddpopt {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// An inference tensor, one that requires grad, a normal tensor, a leaf.
enum Operand { kInference, kInferenceLeaf, kNormal, kLeaf };

Tensors Operands() {
  Tensors made(4);
  {
    const c10::InferenceMode inference;
    made[kInference] = at::empty({2, 2});
    made[kInferenceLeaf] = at::empty({2, 2}).requires_grad_();
  }
  made[kNormal] = at::empty({2, 2});
  made[kLeaf] = at::empty({2, 2}).requires_grad_();
  return made;
}

// How often a result that a kernel composes was written to while it was made isn't told.
std::string Facts(const Tensor& tensor, bool is_operand = true) {
  if (!tensor.defined()) return "undefined; ";
  return absl::StrCat(tensor.requires_grad() ? "grad " : "", tensor.is_inference() ? "inference " : "", tensor.is_leaf() ? "leaf " : "",
                      !tensor.is_inference() && tensor.is_view() ? "view " : "",
                      is_operand && !tensor.is_inference() ? tensor._version() : 0, "; ");
}

struct Program {
  const char* name;
  std::function<std::string(Tensors)> run;
};

std::vector<Program> Programs() {
  std::vector<Program> programs;
  const std::pair<const char*, Tensor (*)(const Tensor&, const Tensor&)> operators[] = {
      {"add", [](const Tensor& a, const Tensor& b) { return a + b; }},
      {"mul", [](const Tensor& a, const Tensor& b) { return a * b; }},
      {"mm", [](const Tensor& a, const Tensor& b) { return at::mm(a, b); }},
      {"linear", [](const Tensor& a, const Tensor& b) { return at::linear(a, b); }},
      {"layer_norm", [](const Tensor& a, const Tensor& b) { return at::layer_norm(a, {2}, b.select(0, 0)); }},
      {"batch_norm",
       [](const Tensor& a, const Tensor& b) {
         return at::batch_norm(a, {}, {}, b.select(0, 0), b.select(0, 1).detach(), true, 0.1, 1e-5, false);
       }},
      {"where", [](const Tensor& a, const Tensor& b) { return at::where(a > 0, a, b); }},
      {"cat",
       [](const Tensor& a, const Tensor& b) {
         return at::cat({a, b});
       }},
      {"foreach", [](const Tensor& a, const Tensor& b) { return at::_foreach_mul(Tensors{a}, Tensors{b})[0]; }},
      {"relu", [](const Tensor& a, const Tensor&) { return at::relu(a); }},
      {"number", [](const Tensor& a, const Tensor&) { return a * 2; }},
      {"clone", [](const Tensor& a, const Tensor&) { return a.clone(); }},
      {"detach", [](const Tensor& a, const Tensor&) { return a.detach(); }},
      {"view", [](const Tensor& a, const Tensor&) { return a.view({4}); }},
      {"transposed", [](const Tensor& a, const Tensor&) { return a.t(); }},
      {"chunk", [](const Tensor& a, const Tensor&) { return a.chunk(2)[1]; }},
      {"bits", [](const Tensor& a, const Tensor&) { return a.view(at::kInt); }},
      {"to", [](const Tensor& a, const Tensor&) { return a.to(at::kDouble); }},
      {"add_", [](const Tensor& a, const Tensor& b) { return a.add_(b); }},
      {"mul_", [](const Tensor& a, const Tensor& b) { return a.mul_(b); }},
      {"copy_", [](const Tensor& a, const Tensor& b) { return a.copy_(b); }},
      {"foreach_", [](const Tensor& a, const Tensor& b) { return at::_foreach_add_(Tensors{a}, Tensors{b}), a; }},
      {"out=",
       [](const Tensor& a, const Tensor& b) {
         Tensor out = a;
         return at::add_out(out, b, b);
       }},
      {"view, zero_", [](const Tensor& a, const Tensor&) { return a.view({4}).zero_(); }},
      {"detach, zero_", [](const Tensor& a, const Tensor&) { return a.detach().zero_(); }},
      {"t_", [](const Tensor& a, const Tensor&) { return a.t_(); }},
      {"resize_",
       [](const Tensor& a, const Tensor&) {
         return a.resize_({3, 2});
       }},
      {"requires_grad_", [](const Tensor& a, const Tensor&) { return a.requires_grad_(); }},
      {"requires_grad_ off", [](const Tensor& a, const Tensor&) { return a.requires_grad_(false); }},
      {"set_data",
       [](const Tensor& a, const Tensor& b) {
         a.set_data(b);
         return a;
       }},
      {"version", [](const Tensor& a, const Tensor&) { return a._version() >= 0 ? a : Tensor(); }},
      {"mm of the view", [](const Tensor& a, const Tensor& b) { return at::mm(a.t(), b); }},
  };
  for (const auto& [name, op] : operators) {
    for (int a = 0; a < 4; ++a) {
      for (int b = 0; b < 4; ++b) {
        for (const bool inference : {false, true}) {
          programs.push_back({name, [op = op, a, b, inference](Tensors in) {
                                const c10::InferenceMode mode(inference);
                                const Tensor result = op(in[a], in[b]);
                                return absl::StrCat(Facts(result, false), Facts(in[a]), Facts(in[b]));
                              }});
          // Outside again: written to, and backward.
          programs.push_back({name, [op = op, a, b, inference](Tensors in) {
                                Tensor result;
                                {
                                  const c10::InferenceMode mode(inference);
                                  result = op(in[a], in[b]);
                                }
                                std::string facts = ErrorOf([&] { result.sum().backward(); });
                                absl::StrAppend(&facts, Facts(result, false), ErrorOf([&] { result.add_(1); }), Facts(result, false));
                                for (const Tensor& each : in) absl::StrAppend(&facts, Facts(each.is_leaf() ? each.grad() : Tensor()));
                                return facts;
                              }});
        }
      }
    }
  }
  return programs;
}

std::string OutcomeOf(const Program& program, const Tensors& operands) {
  std::string facts;
  const std::string error = ErrorOf([&] { facts = program.run(operands); });
  return error.substr(0, error.find('\n')) + ": " + facts;
}

TEST(InferenceTest, FakesAreAsRealTensors) {
  const auto mode = FakeTensorMode::Create();
  int index = 0, refused = 0, differ = 0;
  for (const Program& program : Programs()) {
    const std::string want = OutcomeOf(program, Operands());
    refused += want.rfind("no error", 0) != 0;
    // Made by operators, twice, so that the second answer may be the cache's, and from real ones.
    for (const char* how : {"made", "made again", "from real ones"}) {
      Tensors operands = how[0] == 'f' ? Operands() : Tensors();
      for (Tensor& operand : operands) operand = mode->FromReal(operand);
      const ModeGuard guard(mode);
      if (operands.empty()) operands = Operands();
      const std::string got = OutcomeOf(program, operands);
      if (got != want && ++differ <= 20)
        ADD_FAILURE() << program.name << " #" << index << ", " << how << ":\n  want " << want << "\n  got  " << got;
    }
    ++index;
  }
  EXPECT_EQ(differ, 0);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace ddpopt
