#include "fake_tensor/sweep.h"

#include <algorithm>

#include "ATen/core/List.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/ones_like.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "interpreter/call_operator.h"
#include "gmock/gmock.h"
#include "interpreter/mode_stack.h"
#include "torch/csrc/autograd/autograd.h"

namespace ddpopt {
namespace {

using at::Tensor;
using c10::IValue;

// Shape, strides unless there are no elements, offset, dtype, device, requires_grad.
std::string Meta(const Tensor& t) {
  if (!t.defined()) return "undefined";
  std::vector<std::string> strides;
  for (int64_t i = 0; i < t.dim(); ++i) strides.push_back(t.numel() == 0 ? "_" : absl::StrCat(t.stride(i)));
  return absl::StrCat(c10::toString(t.scalar_type()), "[", absl::StrJoin(t.sizes(), ","), "] strides (", absl::StrJoin(strides, ","),
                      ") at ", t.storage_offset(), " of ", t.storage().nbytes(), " bytes, ", t.device().str(),
                      t.requires_grad() ? ", grad" : "", t.is_leaf() ? "" : ", history");
}

// Which earlier tensors each one is, or shares memory with.
std::vector<std::string> Aliases(const Tensors& tensors) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    for (std::size_t j = 0; j < i; ++j) {
      if (!tensors[j].defined()) continue;
      if (tensors[i].is_same(tensors[j])) {
        out.push_back(absl::StrCat(i, " is ", j));
      } else if (tensors[i].storage().unsafeGetStorageImpl() == tensors[j].storage().unsafeGetStorageImpl()) {
        out.push_back(absl::StrCat(i, " shares ", j));
      }
    }
  }
  return out;
}

// Of an error: what follows names what differs between the two runs.
std::string FirstSentence(absl::string_view text) { return std::string(text.substr(0, text.find_first_of(".\n"))); }

struct Observed {
  std::vector<std::string> meta;
  std::vector<std::string> aliases;
};

// Writes to each result: whether autograd and the kernel let it, and whose versions and history that changes.
void WriteThrough(const Tensors& inputs, const Tensors& outputs, Observed* observed) {
  Tensors all = inputs;
  all.insert(all.end(), outputs.begin(), outputs.end());
  std::vector<int64_t> versions;
  for (const Tensor& tensor : all) versions.push_back(tensor.defined() ? tensor._version() : 0);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) continue;
    const absl::Status status = CatchAsStatus("write", [&] { outputs[i].zero_(); });
    std::string text = status.ok() ? "written" : FirstSentence(status.message());
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (!all[k].defined()) continue;
      absl::StrAppend(&text, " ", all[k]._version() - versions[k], all[k].requires_grad() ? "g" : "", all[k].is_leaf() ? "l" : "");
    }
    observed->meta.push_back(absl::StrCat("result ", i, ": ", text));
  }
}

Observed Observe(const SweepCase& c, const Tensors& inputs) {
  std::vector<int64_t> versions;
  for (const Tensor& input : inputs) versions.push_back(input.defined() ? input._version() : 0);
  Tensors all = inputs;
  const Tensors outputs = c.run(inputs);
  all.insert(all.end(), outputs.begin(), outputs.end());

  Tensors roots;
  Tensors tangents;
  Tensors leaves;
  for (const Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    roots.push_back(output);
    tangents.push_back(at::ones_like(output));
  }
  for (const Tensor& input : inputs) {
    if (input.defined() && input.requires_grad() && input.is_leaf()) leaves.push_back(input);
  }
  Observed observed;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) observed.meta.push_back(absl::StrCat("input ", i, " changed ", inputs[i]._version() - versions[i], " times"));
  }
  for (const Tensor& output : outputs) {
    const bool is_input = std::any_of(inputs.begin(), inputs.end(), [&](const Tensor& input) { return input.is_same(output); });
    if (output.defined() && !is_input) observed.meta.push_back(output.is_view() ? "a view" : "no view");
  }
  observed.aliases = Aliases(all);
  if (!roots.empty() && !leaves.empty()) {
    const Tensors grads = torch::autograd::grad(roots, leaves, tangents, false, false, /*allow_unused=*/true);
    all.insert(all.end(), grads.begin(), grads.end());
  }
  for (const Tensor& tensor : all) observed.meta.push_back(Meta(tensor));
  WriteThrough(inputs, outputs, &observed);
  return observed;
}

// Replaces each tensor of an argument by visit(tensor).
template <typename Visit>
IValue MapTensors(const IValue& value, const Visit& visit) {
  if (value.isTensor()) return visit(value.toTensor());
  if (!value.isList()) return value;
  const c10::List<IValue> list = value.toList();
  c10::impl::GenericList mapped(list.elementType());
  for (std::size_t i = 0; i < list.size(); ++i) mapped.push_back(MapTensors(list.get(i), visit));
  return mapped;
}

void AppendTensors(const IValue& value, Tensors* out) {
  if (value.isTensor()) {
    out->push_back(value.toTensor());
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) AppendTensors(element, out);
  } else if (value.isTuple()) {
    for (const IValue& element : value.toTupleRef().elements()) AppendTensors(element, out);
  }
}

}  // namespace

void PrintTo(const SweepCase& c, std::ostream* os) { *os << c.name; }

std::string SweepName(const ::testing::TestParamInfo<SweepCase>& info) { return info.param.name; }

SweepCase OpCase(std::string name, const char* op, std::vector<IValue> args, std::vector<std::pair<std::string, IValue>> kwargs) {
  const std::string full = op;
  const std::size_t dot = full.find('.');
  const c10::OperatorHandle handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(full.substr(0, dot).c_str(), dot == full.npos ? "" : full.substr(dot + 1).c_str());
  SweepCase c;
  c.name = std::move(name);
  for (const IValue& arg : args) AppendTensors(arg, &c.inputs);
  for (const auto& kwarg : kwargs) AppendTensors(kwarg.second, &c.inputs);
  c.run = [handle, args = std::move(args), kwargs = std::move(kwargs)](const Tensors& inputs) {
    std::size_t next = 0;
    const auto visit = [&](const Tensor&) { return inputs[next++]; };
    std::vector<IValue> given;
    for (const IValue& arg : args) given.push_back(MapTensors(arg, visit));
    std::vector<std::pair<std::string, IValue>> given_kwargs;
    for (const auto& [key, value] : kwargs) given_kwargs.emplace_back(key, MapTensors(value, visit));
    Tensors results;
    AppendTensors(CallOperator(handle, std::move(given), std::move(given_kwargs)), &results);
    return results;
  };
  return c;
}

SweepCase Rejected(SweepCase c) {
  c.rejected = true;
  return c;
}

Tensor F(at::IntArrayRef sizes) { return at::ones(sizes).mul_(0.5).requires_grad_(); }
Tensor NoGrad(at::IntArrayRef sizes, at::ScalarType dtype) { return at::ones(sizes, dtype); }
Tensor Long(at::IntArrayRef sizes) { return at::ones(sizes, at::kLong); }
Tensor As(at::ScalarType dtype, const Tensor& t) {
  Tensor as = t.detach().to(dtype);
  return t.requires_grad() && (as.is_floating_point() || as.is_complex()) ? as.requires_grad_() : as;
}
Tensor ChannelsLast(at::IntArrayRef sizes) {
  return at::ones(sizes).contiguous(sizes.size() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast).requires_grad_();
}
Tensor T(const Tensor& t) { return t.detach().transpose(-1, -2).requires_grad_(t.requires_grad()); }
Tensor X(const Tensor& t, int64_t n) {
  std::vector<int64_t> sizes = t.sizes().vec();
  sizes.insert(sizes.begin(), n);
  return t.detach().unsqueeze(0).expand(sizes).requires_grad_(t.requires_grad());
}
IValue Bools(std::initializer_list<bool> values) { return IValue(c10::List<bool>(values)); }

TEST_P(SweepTest, FakeAgreesWithReal) {
  const SweepCase& c = GetParam();
  const auto mode = FakeTensorMode::Create();
  const auto observe_fakes = [&](Observed* observed) {
    Tensors fakes;
    for (const Tensor& t : c.inputs) fakes.push_back(mode->FromReal(t));
    return CatchAsStatus("fake run", [&] {
      ModeGuard guard(mode);
      *observed = Observe(c, fakes);
    });
  };
  Observed fake;
  Observed again;
  const absl::Status fake_status = observe_fakes(&fake);
  // Of new fakes of the same metadata: now the answers come from the cache.
  const absl::Status again_status = observe_fakes(&again);
  // Later, since in-place cases change their inputs.
  Observed real;
  const absl::Status real_status = CatchAsStatus("real run", [&] { real = Observe(c, c.inputs); });
  ASSERT_EQ(c.rejected, !real_status.ok()) << real_status.message();
  ASSERT_EQ(c.rejected, !fake_status.ok()) << fake_status.message();
  ASSERT_EQ(c.rejected, !again_status.ok()) << again_status.message();
  if (c.rejected) {
    EXPECT_THAT(std::string(fake_status.message()), ::testing::Not(::testing::HasSubstr("has no fake rule")));
    return;
  }
  EXPECT_EQ(fake.meta, real.meta);
  EXPECT_EQ(fake.aliases, real.aliases);
  EXPECT_EQ(again.meta, real.meta) << "the second time";
  EXPECT_EQ(again.aliases, real.aliases) << "the second time";
}

// A program may use the helpers alone.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SweepTest);

}  // namespace ddpopt
