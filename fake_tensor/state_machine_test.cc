// Random programs over a pool of tensors, run on fakes and, as a shadow, on real tensors: new tensors, views and views of views, writes
// through any alias, metadata changed in place, set_data, conversions of real tensors that change between, operators on shapes seen before
// (cache hits), constants, lazy conjugation and negation, backward passes and what is done to gradients, some steps in inference mode or
// without gradients. After each step everything that a program can see of the two pools is compared: metadata, which tensors are the same
// or share memory, versions, histories, gradients, and the elements that the fakes claim to know.
//
// STATE_MACHINE_PROGRAMS and STATE_MACHINE_SEED set how many programs run, and the first one's seed. A program that fails is made shorter
// and printed.

#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "c10/core/GradMode.h"
#include "c10/core/InferenceMode.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fake_tensor/test_helpers.h"
#include "gtest/gtest.h"
#include "interpreter/mode_stack.h"
#include "testing/call_outcome.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/generated/variable_factories.h"

namespace ddpopt {
namespace {

using at::Tensor;
using testing::TensorFacts;

constexpr int64_t kConstantLimit = 8;

// One line of a program. A step's result is named by the step's number, so that steps can be left out.
struct Step {
  int id = 0;
  int kind = 0;
  int a = -1, b = -1;          // operands, or -1
  std::array<uint32_t, 5> r{};  // what the step draws its sizes, dimensions and numbers from
};

using Program = std::vector<Step>;

// What the real tensor `outside` is to a program once it is converted: the fake itself, or in the shadow run a real tensor that behaves as
// the fake should. `outside` itself is never given to an operator of the program.
class Shadows {
 public:
  Tensor Convert(const Tensor& outside) {
    const auto found = tensors_.find(outside.unsafeGetTensorImpl());
    if (found != tensors_.end()) {
      if (auto known = found->second.lock(); known.defined()) {
        Tensor shadow(std::move(known));
        if (Agree(shadow, outside) && StoragesAgree(shadow, outside)) return shadow;
      }
    }
    Tensor shadow;
    // (set_data may have given its base another storage.)
    if (outside.is_view() && StorageOf(Tensor(outside._base())) == StorageOf(outside)) {
      const Tensor base = Convert(Tensor(outside._base()));
      if (base.storage().nbytes() == outside.storage().nbytes()) {
        c10::AutoGradMode grad(!base.requires_grad() || outside.requires_grad());
        shadow = base.as_strided(outside.sizes(), outside.strides(), outside.storage_offset());
      }
    }
    if (!shadow.defined()) {
      c10::NoGradGuard no_grad;
      shadow = at::empty({0}, outside.options());
      shadow.unsafeGetTensorImpl()->set_storage_keep_dtype(StorageFor(outside));
      shadow.unsafeGetTensorImpl()->set_storage_offset(outside.storage_offset());
      shadow.unsafeGetTensorImpl()->set_sizes_and_strides(outside.sizes(), outside.strides());
    }
    // A view that was there before its base required grad does so too, as a leaf.
    if (shadow.requires_grad() && outside.is_leaf() && !shadow.is_leaf()) shadow = shadow.detach();
    if (outside.requires_grad() && !shadow.requires_grad()) shadow.requires_grad_();
    tensors_.insert_or_assign(outside.unsafeGetTensorImpl(), c10::weak_intrusive_ptr<c10::TensorImpl>(shadow.getIntrusivePtr()));
    return shadow;
  }

 private:
  // A fake is given out again while it has the real tensor's metadata.
  static bool Agree(const Tensor& a, const Tensor& b) {
    return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset() && a.dtype() == b.dtype() &&
           a.requires_grad() == b.requires_grad() && a.is_leaf() == b.is_leaf();
  }
  // ... and lies in the storage that stands for the real one's.
  bool StoragesAgree(const Tensor& shadow, const Tensor& outside) const {
    const auto found = storages_.find(StorageOf(outside));
    return found != storages_.end() && found->second._unsafe_get_target() == shadow.storage().unsafeGetStorageImpl() &&
           shadow.storage().nbytes() == outside.storage().nbytes();
  }

  c10::Storage StorageFor(const Tensor& outside) {
    const auto found = storages_.find(StorageOf(outside));
    if (found != storages_.end()) {
      if (auto known = found->second.lock(); known.defined() && known->nbytes() == outside.storage().nbytes()) {
        return c10::Storage(std::move(known));
      }
    }
    const auto bytes = static_cast<int64_t>(outside.storage().nbytes());
    c10::Storage storage = at::zeros({bytes}, at::kByte).storage();
    storages_.insert_or_assign(StorageOf(outside), c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl().lock()));
    return storage;
  }

  std::map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl>> tensors_;
  std::map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

// A pool of tensors and what a step can ask of it.
class World {
 public:
  // Fake if there is a mode.
  explicit World(std::shared_ptr<FakeTensorMode> mode) : mode_(std::move(mode)) {}

  bool fake() const { return mode_ != nullptr; }

  Tensor Convert(const Tensor& outside) { return fake() ? mode_->FromReal(outside) : shadows_.Convert(outside); }

  // Of a real tensor that nobody else has.
  Tensor Constant(const Tensor& value) { return fake() ? mode_->FromConstant(value) : value; }

  const std::shared_ptr<FakeTensorMode>& mode() const { return mode_; }

  std::map<int, Tensor> tensors;  // by the step that made them
  std::map<int, Tensor> outside;  // real in both worlds
  std::map<int, int64_t> versions;  // of `tensors` when their steps made them; factories count their own writes

 private:
  std::shared_ptr<FakeTensorMode> mode_;
  Shadows shadows_;
};

// What a step did to what is known of elements.
enum class Effect {
  kNone,
  kView,      // the result shares the first operand's memory, or has its data where it can't
  kPure,      // the result follows from the operands
  kWrite,     // the first operand's elements
  kConstant,  // the result is made from numbers
  kOther,     // whatever is known must be right, no more is asked
};

class Context {
 public:
  Context(World& world, const Step& step) : world(world), step_(step) {}

  const Tensor& a() const { return world.tensors.at(step_.a); }
  const Tensor& b() const { return world.tensors.at(step_.b); }
  std::string A() const { return absl::StrCat("t", step_.a); }
  std::string B() const { return absl::StrCat("t", step_.b); }
  // A number from 0 to n - 1, the i-th of the step's.
  int64_t Pick(int i, int64_t n) const { return n <= 0 ? 0 : static_cast<int64_t>(step_.r[static_cast<std::size_t>(i)] % n); }
  int64_t Dim(int i) const { return Pick(i, a().dim()); }

  // The step's line; without a result if it has none.
  template <typename... Parts>
  void Say(const Parts&... parts) {
    text = absl::StrCat(parts...);
  }
  void Result(Tensor tensor) { result = std::move(tensor); }

  World& world;
  std::string text;
  Tensor result;
  std::optional<std::string> value;  // a number that the program got

 private:
  const Step& step_;
};

struct Kind {
  const char* name;
  int weight;
  int operands;  // tensors of the pool
  Effect effect;
  std::function<void(Context&)> run;
  bool outside = false;  // `a` is one of the tensors outside, or the step makes one
};

const std::vector<std::vector<int64_t>>& Shapes() {
  static const auto& shapes = *new std::vector<std::vector<int64_t>>{{},     {1},    {3},       {4},          {2, 3},   {3, 2},   {2, 2},
                                                                     {2, 3}, {1, 3}, {2, 1, 3}, {2, 2, 2, 2}, {0, 3}, {2, 3, 2}};
  return shapes;
}

std::string Text(at::IntArrayRef sizes) { return absl::StrCat("{", absl::StrJoin(sizes, ", "), "}"); }

at::IntArrayRef Shape(const Context& c, int i) {
  return Shapes()[static_cast<std::size_t>(c.Pick(i, static_cast<int64_t>(Shapes().size())))];
}

at::ScalarType Dtype(const Context& c, int i) {
  constexpr at::ScalarType kTypes[] = {at::kFloat, at::kFloat, at::kFloat,    at::kFloat,        at::kDouble,      at::kLong,
                                       at::kLong,  at::kBool,  at::kBFloat16, at::kComplexFloat, at::kComplexFloat};
  return kTypes[c.Pick(i, std::size(kTypes))];
}

std::string Name(at::ScalarType type) { return absl::StrCat("k", c10::toString(type)); }

// Different small numbers of that dtype; real.
Tensor Numbers(const Context& c, at::IntArrayRef sizes, at::ScalarType type) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  const Tensor numbers = (at::arange(numel, at::kLong) * (c.Pick(2, 5) + 1) + c.Pick(3, 7)).remainder(11).reshape(sizes);
  if (!at::isComplexType(type)) return numbers.to(type).clone();
  return at::complex(numbers.to(at::kFloat), numbers.to(at::kFloat) + 1).to(type).clone();
}

// LibTorch resizes those with lazy conjugation or negation past the dispatcher.
Tensor Out(const Context& c) {
  TORCH_CHECK(!c.a().is_conj() && !c.a().is_neg(), "left out");
  return c.a();
}

// A permutation drawn from one number.
std::vector<int64_t> Permutation(int64_t dims, int64_t draw) {
  std::vector<int64_t> order;
  std::vector<int64_t> left;
  for (int64_t d = 0; d < dims; ++d) left.push_back(d);
  while (!left.empty()) {
    const auto at = static_cast<std::ptrdiff_t>(draw % static_cast<int64_t>(left.size()));
    draw /= 3;
    order.push_back(left[static_cast<std::size_t>(at)]);
    left.erase(left.begin() + at);
  }
  return order;
}

std::vector<Kind> MakeKinds() {
  std::vector<Kind> kinds;
  // Steps that make tensors from nothing.
  kinds.push_back({"empty", 4, 0, Effect::kOther, [](Context& c) {
                     c.Say("empty(", Text(Shape(c, 0)), ", ", Name(Dtype(c, 1)), ")");
                     c.Result(at::empty(Shape(c, 0), Dtype(c, 1)));
                   }});
  kinds.push_back({"full", 3, 0, Effect::kOther, [](Context& c) {
                     c.Say("full(", Text(Shape(c, 0)), ", ", c.Pick(2, 3), ", ", Name(Dtype(c, 1)), ")");
                     c.Result(at::full(Shape(c, 0), c.Pick(2, 3), Dtype(c, 1)));
                   }});
  kinds.push_back({"randn", 2, 0, Effect::kOther, [](Context& c) {
                     c.Say("randn(", Text(Shape(c, 0)), ")");
                     c.Result(at::randn(Shape(c, 0)));
                   }});
  kinds.push_back({"arange", 1, 0, Effect::kOther, [](Context& c) {
                     c.Say("arange(", c.Pick(0, 6), ")");
                     c.Result(at::arange(c.Pick(0, 6), at::kLong));
                   }});
  kinds.push_back({"channels_last", 1, 0, Effect::kOther, [](Context& c) {
                     c.Say("empty({2, 3, 2, 2}, ChannelsLast)");
                     c.Result(at::empty({2, 3, 2, 2}, at::TensorOptions(), at::MemoryFormat::ChannelsLast));
                   }});
  kinds.push_back({"constant", 4, 0, Effect::kConstant, [](Context& c) {
                     Tensor value;
                     {
                       DisableModesGuard off(Mode::Level::kPostAutograd);
                       value = Numbers(c, Shape(c, 0), Dtype(c, 1));
                     }
                     c.Say("constant(", Text(Shape(c, 0)), ", ", Name(Dtype(c, 1)), ", from ", c.Pick(3, 7), " by ", c.Pick(2, 5) + 1, ")");
                     c.Result(c.world.Constant(value));
                   }});
  kinds.push_back({"tensor", 2, 0, Effect::kConstant, [](Context& c) {
                     c.Say("torch::tensor({", c.Pick(0, 5), ", ", c.Pick(1, 5), "})");
                     c.Result(torch::tensor({c.Pick(0, 5), c.Pick(1, 5)}));
                   }});
  kinds.push_back({"scalar_tensor", 2, 0, Effect::kConstant, [](Context& c) {
                     c.Say("scalar_tensor(", c.Pick(0, 5), ", ", Name(Dtype(c, 1)), ")");
                     c.Result(at::scalar_tensor(c.Pick(0, 5), Dtype(c, 1)));
                   }});

  // Views.
  kinds.push_back({"view", 3, 1, Effect::kView, [](Context& c) {
                     const std::vector<int64_t> sizes = c.Pick(0, 2) == 0 ? std::vector<int64_t>{-1} : std::vector<int64_t>{1, -1};
                     c.Say(c.A(), ".view(", Text(sizes), ")");
                     c.Result(c.a().view(sizes));
                   }});
  kinds.push_back({"reshape", 2, 1, Effect::kView, [](Context& c) {
                     c.Say(c.A(), ".reshape({-1})");
                     c.Result(c.a().reshape({-1}));
                   }});
  kinds.push_back({"view_dtype", 1, 1, Effect::kView, [](Context& c) {
                     const at::ScalarType type = c.Pick(0, 2) == 0 ? at::kInt : at::kFloat;
                     c.Say(c.A(), ".view(", Name(type), ")");
                     c.Result(c.a().view(type));
                   }});
  kinds.push_back({"transpose", 4, 1, Effect::kView, [](Context& c) {
                     c.Say(c.A(), ".transpose(", c.Dim(0), ", ", c.Dim(1), ")");
                     c.Result(c.a().transpose(c.Dim(0), c.Dim(1)));
                   }});
  kinds.push_back({"permute", 1, 1, Effect::kView, [](Context& c) {
                     const std::vector<int64_t> order = Permutation(c.a().dim(), c.Pick(0, 1000));
                     c.Say(c.A(), ".permute(", Text(order), ")");
                     c.Result(c.a().permute(order));
                   }});
  kinds.push_back({"select", 4, 1, Effect::kView, [](Context& c) {
                     const int64_t index = c.a().dim() == 0 ? 0 : c.Pick(1, c.a().size(c.Dim(0)));
                     c.Say(c.A(), ".select(", c.Dim(0), ", ", index, ")");
                     c.Result(c.a().select(c.Dim(0), index));
                   }});
  kinds.push_back({"slice", 3, 1, Effect::kView, [](Context& c) {
                     c.Say(c.A(), ".slice(", c.Dim(0), ", ", c.Pick(1, 3), ", ", c.Pick(2, 5), ", ", 1 + c.Pick(3, 2), ")");
                     c.Result(c.a().slice(c.Dim(0), c.Pick(1, 3), c.Pick(2, 5), 1 + c.Pick(3, 2)));
                   }});
  kinds.push_back({"expand", 2, 1, Effect::kView, [](Context& c) {
                     std::vector<int64_t> sizes = c.a().sizes().vec();
                     for (int64_t& size : sizes) size = size == 1 ? 2 : size;
                     if (c.Pick(0, 2) == 0) sizes.insert(sizes.begin(), 2);
                     c.Say(c.A(), ".expand(", Text(sizes), ")");
                     c.Result(c.a().expand(sizes));
                   }});
  kinds.push_back({"unsqueeze", 2, 1, Effect::kView, [](Context& c) {
                     const int64_t dim = c.Pick(0, c.a().dim() + 1);
                     c.Say(c.A(), ".unsqueeze(", dim, ")");
                     c.Result(c.a().unsqueeze(dim));
                   }});
  kinds.push_back({"squeeze", 1, 1, Effect::kView, [](Context& c) {
                     c.Say(c.A(), ".squeeze()");
                     c.Result(c.a().squeeze());
                   }});
  kinds.push_back({"diagonal", 1, 1, Effect::kView, [](Context& c) {
                     c.Say(c.A(), ".diagonal(", c.Pick(0, 3) - 1, ", 0, 1)");
                     c.Result(c.a().diagonal(c.Pick(0, 3) - 1, 0, 1));
                   }});
  kinds.push_back({"unfold", 1, 1, Effect::kView, [](Context& c) {
                     c.Say(c.A(), ".unfold(", c.Dim(0), ", 2, ", 1 + c.Pick(1, 2), ")");
                     c.Result(c.a().unfold(c.Dim(0), 2, 1 + c.Pick(1, 2)));
                   }});
  kinds.push_back({"as_strided", 2, 1, Effect::kView, [](Context& c) {
                     const std::vector<int64_t> sizes = {c.Pick(0, 3), 2}, strides = {c.Pick(1, 3), 1};
                     c.Say(c.A(), ".as_strided(", Text(sizes), ", ", Text(strides), ", ", c.Pick(2, 4), ")");
                     c.Result(c.a().as_strided(sizes, strides, c.Pick(2, 4)));
                   }});
  kinds.push_back({"unbind", 1, 1, Effect::kView, [](Context& c) {
                     const auto parts = c.a().unbind(c.Dim(0));
                     const int64_t part = c.Pick(1, static_cast<int64_t>(parts.size()));
                     c.Say(c.A(), ".unbind(", c.Dim(0), ")[", part, "]");
                     if (!parts.empty()) c.Result(parts[static_cast<std::size_t>(part)]);
                   }});
  kinds.push_back({"chunk", 1, 1, Effect::kView, [](Context& c) {
                     const auto parts = c.a().chunk(2, c.Dim(0));
                     c.Say(c.A(), ".chunk(2, ", c.Dim(0), ").back()");
                     c.Result(parts.back());
                   }});
  kinds.push_back({"detach", 3, 1, Effect::kView, [](Context& c) {
                     c.Say(c.A(), ".detach()");
                     c.Result(c.a().detach());
                   }});
  kinds.push_back({"alias", 1, 1, Effect::kView, [](Context& c) {
                     c.Say("alias(", c.A(), ")");
                     c.Result(at::alias(c.a()));
                   }});
  kinds.push_back({"data", 1, 1, Effect::kView, [](Context& c) {
                     c.Say(c.A(), ".data()");
                     c.Result(c.a().variable_data());
                   }});
  kinds.push_back({"conj", 2, 1, Effect::kView, [](Context& c) {
                     c.Say("conj(", c.A(), ")");
                     c.Result(at::conj(c.a()));
                   }});
  kinds.push_back({"view_as_real", 1, 1, Effect::kView, [](Context& c) {
                     c.Say("view_as_real(", c.A(), ")");
                     c.Result(at::view_as_real(c.a()));
                   }});
  kinds.push_back({"view_as_complex", 1, 1, Effect::kView, [](Context& c) {
                     c.Say("view_as_complex(", c.A(), ")");
                     c.Result(at::view_as_complex(c.a()));
                   }});
  kinds.push_back({"imag", 2, 1, Effect::kView, [](Context& c) {
                     const bool imag = c.Pick(0, 3) > 0;
                     c.Say(imag ? "imag(" : "real(", c.A(), ")");
                     c.Result(imag ? at::imag(c.a()) : at::real(c.a()));
                   }});
  kinds.push_back({"neg_view", 1, 1, Effect::kView, [](Context& c) {
                     c.Say("_neg_view(", c.A(), ")");
                     TORCH_CHECK(c.a().scalar_type() != at::kBool, "nothing could read it");
                     c.Result(at::_neg_view(c.a()));
                   }});
  kinds.push_back({"resolve", 1, 1, Effect::kPure, [](Context& c) {
                     c.Say("resolve_neg(resolve_conj(", c.A(), "))");
                     c.Result(at::resolve_neg(at::resolve_conj(c.a())));
                   }});
  kinds.push_back({"contiguous", 2, 1, Effect::kPure, [](Context& c) {
                     c.Say(c.A(), ".contiguous()");
                     c.Result(c.a().contiguous());
                   }});

  // Writes.
  kinds.push_back({"add_", 4, 1, Effect::kWrite, [](Context& c) {
                     c.Say(c.A(), ".add_(", c.Pick(0, 4), ")");
                     c.Result(c.a().add_(c.Pick(0, 4)));
                   }});
  kinds.push_back({"mul_", 2, 2, Effect::kWrite, [](Context& c) {
                     c.Say(c.A(), ".mul_(", c.B(), ")");
                     c.Result(c.a().mul_(c.b()));
                   }});
  kinds.push_back({"copy_", 3, 2, Effect::kWrite, [](Context& c) {
                     c.Say(c.A(), ".copy_(", c.B(), ")");
                     c.Result(c.a().copy_(c.b()));
                   }});
  kinds.push_back({"fill_", 3, 1, Effect::kWrite, [](Context& c) {
                     c.Say(c.A(), ".fill_(", c.Pick(0, 4), ")");
                     c.Result(c.a().fill_(c.Pick(0, 4)));
                   }});
  kinds.push_back({"zero_", 1, 1, Effect::kWrite, [](Context& c) {
                     c.Say(c.A(), ".zero_()");
                     c.Result(c.a().zero_());
                   }});
  kinds.push_back({"relu_", 1, 1, Effect::kWrite, [](Context& c) {
                     c.Say(c.A(), ".relu_()");
                     c.Result(c.a().relu_());
                   }});
  kinds.push_back({"normal_", 1, 1, Effect::kWrite, [](Context& c) {
                     c.Say(c.A(), ".normal_()");
                     c.Result(c.a().normal_());
                   }});
  kinds.push_back({"masked_fill_", 1, 2, Effect::kWrite, [](Context& c) {
                     c.Say(c.A(), ".masked_fill_(", c.B(), ", 2)");
                     c.Result(c.a().masked_fill_(c.b(), 2));
                   }});
  kinds.push_back({"add_out", 2, 2, Effect::kWrite, [](Context& c) {
                     c.Say("add_out(", c.A(), ", ", c.B(), ", ", c.B(), ")");
                     Tensor out = Out(c);
                     c.Result(at::add_out(out, c.b(), c.b()));
                   }});
  kinds.push_back({"sum_out", 1, 2, Effect::kWrite, [](Context& c) {
                     c.Say("sum_out(", c.A(), ", ", c.B(), ", {0})");
                     Tensor out = Out(c);
                     c.Result(at::sum_out(out, c.b(), at::IntArrayRef{0}));
                   }});
  kinds.push_back({"cat_out", 1, 2, Effect::kWrite, [](Context& c) {
                     c.Say("cat_out(", c.A(), ", {", c.B(), ", ", c.B(), "})");
                     // The real kernel resizes it before it refuses.
                     TORCH_CHECK(StorageOf(c.a()) != StorageOf(c.b()), "of its own memory");
                     Tensor out = Out(c);
                     c.Result(at::cat_out(out, {c.b(), c.b()}));
                   }});
  kinds.push_back({"foreach_add_", 1, 1, Effect::kOther, [](Context& c) {
                     // Of several tensors the real kernel writes the first ones even if it then throws.
                     c.Say("_foreach_add_({", c.A(), "}, 1)");
                     at::_foreach_add_({c.a()}, 1);
                   }});

  // Metadata in place.
  kinds.push_back({"transpose_", 2, 1, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".transpose_(", c.Dim(0), ", ", c.Dim(1), ")");
                     c.Result(c.a().transpose_(c.Dim(0), c.Dim(1)));
                   }});
  kinds.push_back({"unsqueeze_", 1, 1, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".unsqueeze_(0)");
                     c.Result(c.a().unsqueeze_(0));
                   }});
  kinds.push_back({"squeeze_", 1, 1, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".squeeze_()");
                     c.Result(c.a().squeeze_());
                   }});
  kinds.push_back({"detach_", 1, 1, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".detach_()");
                     c.Result(c.a().detach_());
                   }});
  kinds.push_back({"resize_", 2, 1, Effect::kOther, [](Context& c) {
                     c.Say(c.A(), ".resize_(", Text(Shape(c, 0)), ")");
                     c.Result(c.a().resize_(Shape(c, 0)));
                   }});
  kinds.push_back({"as_strided_", 1, 1, Effect::kOther, [](Context& c) {
                     c.Say(c.A(), ".as_strided_({2}, {", c.Pick(0, 3), "}, ", c.Pick(1, 3), ")");
                     c.Result(c.a().as_strided_({2}, {c.Pick(0, 3)}, c.Pick(1, 3)));
                   }});
  kinds.push_back({"set_", 1, 2, Effect::kOther, [](Context& c) {
                     c.Say(c.A(), ".set_(", c.B(), ")");
                     c.Result(c.a().set_(c.b()));
                   }});
  kinds.push_back({"set_data", 1, 2, Effect::kOther, [](Context& c) {
                     c.Say(c.A(), ".set_data(", c.B(), ")");
                     c.a().set_data(c.b());
                   }});
  kinds.push_back({"requires_grad_", 2, 1, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".requires_grad_(", c.Pick(0, 3) > 0 ? "true" : "false", ")");
                     // Operators made of others would record history at the first ordinary tensor on their way.
                     TORCH_CHECK(!c.a().is_inference(), "left out");
                     c.a().requires_grad_(c.Pick(0, 3) > 0);
                   }});

  // Operators that make new tensors.
  kinds.push_back({"add", 6, 2, Effect::kPure, [](Context& c) {
                     c.Say(c.A(), " + ", c.B());
                     c.Result(c.a() + c.b());
                   }});
  kinds.push_back({"mul", 3, 1, Effect::kPure, [](Context& c) {
                     c.Say(c.A(), " * ", c.Pick(0, 3));
                     c.Result(c.a() * c.Pick(0, 3));
                   }});
  kinds.push_back({"mul_half", 1, 1, Effect::kPure, [](Context& c) {
                     c.Say(c.A(), " * 0.5");
                     c.Result(c.a() * 0.5);
                   }});
  kinds.push_back({"relu", 2, 1, Effect::kPure, [](Context& c) {
                     c.Say("relu(", c.A(), ")");
                     c.Result(at::relu(c.a()));
                   }});
  kinds.push_back({"sum", 3, 1, Effect::kPure, [](Context& c) {
                     c.Say(c.A(), ".sum()");
                     c.Result(c.a().sum());
                   }});
  kinds.push_back({"sum_dim", 1, 1, Effect::kPure, [](Context& c) {
                     c.Say(c.A(), ".sum(", c.Dim(0), ")");
                     c.Result(c.a().sum(c.Dim(0)));
                   }});
  kinds.push_back({"cat", 2, 2, Effect::kPure, [](Context& c) {
                     c.Say("cat({", c.A(), ", ", c.B(), "})");
                     c.Result(at::cat({c.a(), c.b()}));
                   }});
  kinds.push_back({"matmul", 2, 2, Effect::kPure, [](Context& c) {
                     c.Say("matmul(", c.A(), ", ", c.B(), ")");
                     c.Result(at::matmul(c.a(), c.b()));
                   }});
  kinds.push_back({"clone", 2, 1, Effect::kPure, [](Context& c) {
                     c.Say(c.A(), ".clone()");
                     c.Result(c.a().clone());
                   }});
  kinds.push_back({"to", 2, 1, Effect::kPure, [](Context& c) {
                     c.Say(c.A(), ".to(", Name(Dtype(c, 0)), ")");
                     c.Result(c.a().to(Dtype(c, 0)));
                   }});
  kinds.push_back({"softmax", 1, 1, Effect::kPure, [](Context& c) {
                     c.Say("softmax(", c.A(), ", ", c.Dim(0), ")");
                     c.Result(at::softmax(c.a(), c.Dim(0)));
                   }});
  kinds.push_back({"gt", 1, 1, Effect::kPure, [](Context& c) {
                     c.Say(c.A(), " > 1");
                     c.Result(c.a() > 1);
                   }});
  kinds.push_back({"empty_like", 1, 1, Effect::kOther, [](Context& c) {
                     c.Say("empty_like(", c.A(), ")");
                     c.Result(at::empty_like(c.a()));
                   }});
  kinds.push_back({"dropout", 1, 1, Effect::kOther, [](Context& c) {
                     c.Say("dropout(", c.A(), ", 0.5, true)");
                     c.Result(at::dropout(c.a(), 0.5, true));
                   }});

  // What needs data.
  kinds.push_back({"item", 4, 1, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".item()");
                     const c10::Scalar item = c.a().item();
                     const c10::complex<double> number = item.toComplexDouble();
                     c.value = absl::StrCat(number.real(), item.isComplex() ? absl::StrCat(" and ", number.imag(), "i") : "");
                   }});
  kinds.push_back({"nonzero", 1, 1, Effect::kPure, [](Context& c) {
                     c.Say(c.A(), ".nonzero()");
                     c.Result(c.a().nonzero());
                   }});
  kinds.push_back({"equal", 1, 2, Effect::kNone, [](Context& c) {
                     if (c.a().is_same(c.b())) return;  // equal, unless it holds a NaN
                     c.Say("equal(", c.A(), ", ", c.B(), ")");
                     c.value = at::equal(c.a(), c.b()) ? "equal" : "different";
                   }});

  // Gradients.
  kinds.push_back({"backward", 3, 1, Effect::kNone, [](Context& c) {
                     const bool create_graph = c.Pick(0, 5) == 0;
                     c.Say(c.A(), ".sum().backward(", create_graph ? "create_graph" : "", ")");
                     c.a().sum().backward({}, /*retain_graph=*/true, create_graph);
                   }});
  kinds.push_back({"autograd_grad", 1, 2, Effect::kNone, [](Context& c) {
                     c.Say("grad(", c.A(), ".sum(), ", c.B(), ")");
                     c.Result(torch::autograd::grad({c.a().sum()}, {c.b()}, {}, /*retain_graph=*/true, /*create_graph=*/false,
                                                    /*allow_unused=*/true)[0]);
                   }});
  // Nobody else is to have the gradient: what a backward pass adds to it isn't followed here.
  kinds.push_back({"set_grad", 1, 2, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".mutable_grad() = ", c.B(), ".detach().clone()");
                     if (c.a().is_leaf()) c.a().mutable_grad() = c.b().detach().clone();
                   }});
  kinds.push_back({"reset_grad", 1, 1, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".mutable_grad().reset()");
                     c.a().mutable_grad().reset();
                   }});
  kinds.push_back({"zero_grad", 1, 1, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".grad().detach_().zero_()");
                     if (c.a().is_leaf() && c.a().grad().defined()) c.a().grad().detach_().zero_();
                   }});
  kinds.push_back({"grad", 2, 1, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".grad()");
                     if (c.a().is_leaf()) c.Result(c.a().grad());
                   }});
  kinds.push_back({"step", 1, 1, Effect::kWrite, [](Context& c) {
                     const c10::AutoGradMode no_grad(false);
                     c.Say(c.A(), ".add_(", c.A(), ".grad(), -0.5)");
                     TORCH_CHECK(c.a().is_leaf() && c.a().grad().defined(), "no gradient");
                     c.Result(c.a().add_(c.a().grad(), -0.5));
                   }});
  kinds.push_back({"drop", 3, 1, Effect::kNone, nullptr});

  // Real tensors outside, and their conversion.
  kinds.push_back({"outside", 3, 0, Effect::kNone, [](Context& c) {
                     c.Say("outside(", Text(Shape(c, 0)), ")");
                     c.Result(at::zeros(Shape(c, 0)));
                   }, true});
  kinds.push_back({"outside_view", 1, 1, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".transpose(", c.Dim(0), ", ", c.Dim(1), ")");
                     c.Result(c.a().transpose(c.Dim(0), c.Dim(1)));
                   }, true});
  kinds.push_back({"outside_resize_", 1, 1, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".resize_(", Text(Shape(c, 0)), ")");
                     c.a().resize_(Shape(c, 0));
                   }, true});
  kinds.push_back({"outside_transpose_", 1, 1, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".transpose_(", c.Dim(0), ", ", c.Dim(1), ")");
                     c.a().transpose_(c.Dim(0), c.Dim(1));
                   }, true});
  kinds.push_back({"outside_set_data", 1, 2, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".set_data(", c.B(), ")");
                     c.a().set_data(c.b());
                   }, true});
  kinds.push_back({"outside_requires_grad_", 1, 1, Effect::kNone, [](Context& c) {
                     c.Say(c.A(), ".requires_grad_()");
                     c.a().requires_grad_();
                   }, true});
  kinds.push_back({"convert", 5, 1, Effect::kOther, [](Context& c) {
                     c.Say("convert(", c.A(), ")");
                     c.Result(c.world.Convert(c.a()));
                   }, true});
  return kinds;
}

const std::vector<Kind>& Kinds() {
  static const auto& kinds = *new std::vector<Kind>(MakeKinds());
  return kinds;
}

int KindNamed(const std::string& name) {
  for (std::size_t i = 0; i < Kinds().size(); ++i) {
    if (name == Kinds()[i].name) return static_cast<int>(i);
  }
  ADD_FAILURE() << name;
  return 0;
}

// Inference tensors have none, as a rule.
int64_t VersionOf(const Tensor& tensor) {
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  return version.enabled() ? version.current_version() : -1;
}

Tensor Elements(const Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView data_only;
  const Tensor plain = at::resolve_neg(at::resolve_conj(tensor));
  return (plain.is_complex() ? at::view_as_real(plain) : plain).to(at::kDouble);
}

// A run of one program in both worlds.
class Run {
 public:
  explicit Run(FakeTensorModeOptions options) : fake_(FakeTensorMode::Create(std::move(options))), real_(nullptr) {}

  // What went wrong, or empty.
  std::string Do(const Step& step) {
    const Kind& kind = Kinds()[static_cast<std::size_t>(step.kind)];
    if (kind.run == nullptr) {
      lines_.push_back(absl::StrCat("t", step.a, " = {}"));
      fake_.tensors.erase(step.a);
      real_.tensors.erase(step.a);
      ForgetTheDead();
      return "";
    }
    auto& pool = kind.outside ? real_.outside : real_.tensors;
    if (kind.operands > 0 && pool.count(step.a) == 0) return "";
    if (kind.operands > 1 && pool.count(step.b) == 0) return "";

    const Outcome real = Execute(real_, kind, step);
    const Outcome fake = Execute(fake_, kind, step);
    const bool adds = real.error.empty() && fake.error.empty() && real.result.defined() && fake.result.defined();
    lines_.push_back(absl::StrCat(adds ? absl::StrCat("t", step.id, " = ") : "", real.text.empty() ? kind.name : real.text, ";",
                                  real.value.has_value() ? absl::StrCat("  // ", *real.value) : "",
                                  real.error.empty() ? "" : "  // throws"));
    if (adds) {
      for (auto [world, result] : {std::pair(&real_, real.result), std::pair(&fake_, fake.result)}) {
        (kind.outside && kind.name != std::string("convert") ? world->outside : world->tensors)[step.id] = result;
        world->versions[step.id] = VersionOf(result);
      }
    }
    const bool must_know = kind.operands > 0 && !kind.outside && AllKnown(kind, step);
    if (real.error.empty() != fake.error.empty()) {
      if (!real.error.empty()) return absl::StrCat("the real run throws, the fake one doesn't: ", real.error);
      if (!fake.data_dependent) return absl::StrCat("the fake run throws: ", fake.error);
      if (must_know) return absl::StrCat("the fake run throws, though the elements are known: ", fake.error);
    } else if (real.error.empty() && real.result.defined() != fake.result.defined()) {
      return absl::StrCat("the real run gives ", real.result.defined() ? "a" : "no", " tensor, the fake one doesn't");
    } else if (real.value != fake.value) {
      return absl::StrCat("got ", fake.value.value_or("nothing"), ", the real run ", real.value.value_or("nothing"));
    }
    NoteEffect(kind, step, real, must_know);
    return Compare();
  }

  const std::vector<std::string>& lines() const { return lines_; }
  const World& real() const { return real_; }
  FakeCacheInfo CacheInfo() const { return fake_.mode()->CacheInfo(); }
  int64_t known_seen() const { return known_seen_; }

 private:
  struct Outcome {
    std::string text, error;
    bool data_dependent = false;
    Tensor result;
    std::optional<std::string> value;
  };

  static Outcome Execute(World& world, const Kind& kind, const Step& step) {
    Outcome outcome;
    std::map<int, Tensor> tensors;
    if (kind.outside) tensors = std::exchange(world.tensors, world.outside);
    Context context(world, step);
    try {
      std::optional<ModeGuard> guard;
      std::optional<c10::InferenceMode> inference;
      std::optional<c10::AutoGradMode> grad;
      // Operands bring the mode along; it needs to be pushed only where there are none, and for backward passes, which make zeros.
      const bool needs_push = kind.operands == 0 || absl::StrContains(kind.name, "backward") || absl::StrContains(kind.name, "autograd");
      if (world.fake() && !kind.outside && (needs_push || context.Pick(3, 4) != 0)) guard.emplace(world.mode());
      if (!kind.outside && context.Pick(4, 16) == 0) {
        inference.emplace();
      } else if (!kind.outside && context.Pick(4, 16) == 1) {
        grad.emplace(false);
      }
      kind.run(context);
    } catch (const c10::Error& error) {
      outcome.error = error.what_without_backtrace();
      outcome.data_dependent =
          dynamic_cast<const DataDependentOutput*>(&error) != nullptr || dynamic_cast<const DynamicOutputShape*>(&error) != nullptr;
    } catch (const std::exception& error) {
      outcome.error = error.what();
    }
    if (kind.outside) world.tensors = std::move(tensors);
    outcome.text = context.text;
    if (!kind.outside && context.Pick(4, 16) < 2) outcome.text += context.Pick(4, 16) == 0 ? "  /* inference */" : "  /* no grad */";
    outcome.result = context.result;
    outcome.value = context.value;
    return outcome;
  }

  // What must be known of a storage of the real world.
  enum class Known { kYes, kNo, kMaybe };

  Known Of(const Tensor& real) const {
    const auto found = known_.find(StorageOf(real));
    return found == known_.end() ? Known::kMaybe : found->second;
  }

  bool AllKnown(const Kind& kind, const Step& step) const {
    return Of(real_.tensors.at(step.a)) == Known::kYes && (kind.operands < 2 || Of(real_.tensors.at(step.b)) == Known::kYes);
  }

  void NoteEffect(const Kind& kind, const Step& step, const Outcome& real, bool operands_known) {
    const bool threw = !real.error.empty();
    const auto forget = [&](const Tensor& tensor) {
      const auto found = known_.find(StorageOf(tensor));
      if (found != known_.end()) found->second = Known::kMaybe;
    };
    switch (kind.effect) {
      case Effect::kConstant:
        if (real.result.defined() && real.result.numel() > 0 && real.result.numel() <= kConstantLimit) {
          known_[StorageOf(real.result)] = Known::kYes;
        }
        break;
      case Effect::kPure:
        if (operands_known && real.result.defined() && known_.count(StorageOf(real.result)) == 0 && real.result.numel() > 0 &&
            real.result.numel() <= kConstantLimit) {
          known_[StorageOf(real.result)] = Known::kYes;
        }
        break;
      case Effect::kWrite: {
        const Tensor& written = real_.tensors.at(step.a);
        const auto found = known_.find(StorageOf(written));
        if (found != known_.end()) found->second = threw || written.numel() == 0 ? Known::kMaybe : Known::kNo;
        break;
      }
      case Effect::kOther:
        if (kind.outside) break;
        if (kind.operands > 0) forget(real_.tensors.at(step.a));
        if (kind.operands > 1) forget(real_.tensors.at(step.b));
        break;
      case Effect::kView:
      case Effect::kNone:
        break;
    }
    ForgetTheDead();
  }

  // Addresses are used again.
  void ForgetTheDead() {
    std::set<const c10::StorageImpl*> live;
    for (const auto& [id, tensor] : real_.tensors) live.insert(StorageOf(tensor));
    std::erase_if(known_, [&](const auto& entry) { return live.count(entry.first) == 0; });
  }

  // What a program can see of a pool, a line for each tensor.
  static std::vector<std::string> Describe(const World& world) {
    std::vector<std::string> lines;
    std::map<const c10::StorageImpl*, int> storages;
    std::map<const c10::TensorImpl*, int> tensors;
    for (const auto& [id, tensor] : world.tensors) {
      const int storage = storages.emplace(StorageOf(tensor), id).first->second;
      const int same = tensors.emplace(tensor.unsafeGetTensorImpl(), id).first->second;
      std::string line = absl::StrCat("t", id, " ", TensorFacts::Of(tensor).ToString(), ", memory of t", storage, ", is t", same);
      absl::StrAppend(&line, ", version ", VersionOf(tensor) - world.versions.at(id), tensor.requires_grad() ? ", requires grad" : "",
                      tensor.is_leaf() ? ", leaf" : "", tensor.is_inference() ? ", inference" : "");
      if (tensor.is_view()) {
        const auto base = tensors.find(tensor._base().unsafeGetTensorImpl());
        absl::StrAppend(&line, ", a view of ", base == tensors.end() ? "another" : absl::StrCat("t", base->second));
      }
      try {
        if (tensor.grad_fn()) absl::StrAppend(&line, ", by ", tensor.grad_fn()->name());
      } catch (const c10::Error&) {
        absl::StrAppend(&line, ", by what may not be asked");  // one of several views made at once, written to
      }
      if (tensor.is_leaf() && tensor.grad().defined()) {
        const Tensor grad = tensor.grad();
        absl::StrAppend(&line, ", grad ", TensorFacts::Of(grad).ToString(), grad.requires_grad() ? " that requires grad" : "");
        const auto same = tensors.find(grad.unsafeGetTensorImpl());
        const auto shared = storages.find(StorageOf(grad));
        if (same != tensors.end()) absl::StrAppend(&line, ", which is t", same->second);
        if (shared != storages.end()) absl::StrAppend(&line, ", in memory of t", shared->second);
      }
      lines.push_back(std::move(line));
    }
    return lines;
  }

  std::string Compare() {
    const std::vector<std::string> real = Describe(real_), fake = Describe(fake_);
    for (std::size_t i = 0; i < real.size(); ++i) {
      if (real[i] != fake[i]) return absl::StrCat("the real run has\n    ", real[i], "\n  the fake one\n    ", fake[i]);
    }
    for (const auto& [id, tensor] : fake_.tensors) {
      if (!IsFake(tensor)) return absl::StrCat("t", id, " isn't fake");
      const Tensor grad = tensor.is_leaf() ? tensor.grad() : Tensor();
      if (grad.defined() && !IsFake(grad)) return absl::StrCat("the gradient of t", id, " isn't fake");
      const Tensor& want = real_.tensors.at(id);
      const std::optional<Tensor> got = FakeTensorMode::KnownValue(tensor);
      known_seen_ += got.has_value();
      if (!got.has_value()) {
        if (Of(want) == Known::kYes && want.numel() > 0) return absl::StrCat("t", id, "'s elements aren't known");
      } else if (Of(want) == Known::kNo) {
        return absl::StrCat("t", id, "'s elements are known after a write");
      } else if (!at::allclose(Elements(*got), Elements(want), 0, 0, /*equal_nan=*/true)) {
        return absl::StrCat("t", id, "'s elements are known wrongly");
      }
    }
    for (const auto& [id, tensor] : fake_.outside) {
      if (IsFake(tensor) || tensor.grad().defined()) return absl::StrCat("the tensor outside t", id, " was changed");
    }
    return "";
  }

  World fake_, real_;
  std::vector<std::string> lines_;
  std::map<const c10::StorageImpl*, Known> known_;
  int64_t known_seen_ = 0;
};

FakeTensorModeOptions OptionsFor(uint32_t seed) {
  FakeTensorModeOptions options;
  options.cross_check_cache = seed % 2 == 1;
  return options;
}

struct Failure {
  std::string what;  // empty: none
  std::vector<std::string> lines;
};

Failure Replay(const Program& program, uint32_t seed) {
  at::manual_seed(seed);
  Run run(OptionsFor(seed));
  for (const Step& step : program) {
    std::string what = run.Do(step);
    if (!what.empty()) return {std::move(what), run.lines()};
  }
  return {};
}

// Leaves steps out while the program still fails.
Program Shorten(Program program, uint32_t seed) {
  for (std::size_t size = program.size() / 2; size > 0; size /= 2) {
    for (std::size_t from = program.size(); from-- > 0;) {
      if (from + size > program.size()) continue;
      Program shorter = program;
      shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(from), shorter.begin() + static_cast<std::ptrdiff_t>(from + size));
      if (!Replay(shorter, seed).what.empty()) program = std::move(shorter);
    }
  }
  return program;
}

struct Totals {
  int64_t steps = 0, throwing = 0, known = 0, hits = 0, misses = 0;
  std::map<std::string, int64_t> kinds;
};

// Runs a random program of that many steps; the part up to a failure if it fails.
std::optional<Program> RandomProgram(uint32_t seed, int steps, Totals* totals) {
  static const std::vector<int>& weighted = *[] {
    auto* kinds = new std::vector<int>();
    for (std::size_t i = 0; i < Kinds().size(); ++i) {
      kinds->insert(kinds->end(), static_cast<std::size_t>(Kinds()[i].weight), static_cast<int>(i));
    }
    return kinds;
  }();
  static const int drop = KindNamed("drop");
  std::mt19937 random(seed);
  at::manual_seed(seed);
  Run run(OptionsFor(seed));
  Program program;
  const auto any = [&](const std::map<int, Tensor>& pool) {
    return std::next(pool.begin(), static_cast<std::ptrdiff_t>(random() % pool.size()))->first;
  };
  while (static_cast<int>(program.size()) < steps) {
    Step step;
    step.id = static_cast<int>(program.size());
    step.kind = weighted[random() % weighted.size()];
    if (run.real().tensors.size() > 12) step.kind = drop;
    const Kind& kind = Kinds()[static_cast<std::size_t>(step.kind)];
    const auto& pool = kind.outside ? run.real().outside : run.real().tensors;
    if (kind.operands > 0) {
      if (pool.empty()) continue;
      step.a = any(pool);
      step.b = any(pool);
      // Operands of one shape, more often than chance would have it.
      for (int i = 0; i < 3 && kind.operands > 1 && pool.at(step.a).sizes() != pool.at(step.b).sizes(); ++i) step.b = any(pool);
    }
    for (uint32_t& number : step.r) number = static_cast<uint32_t>(random() >> 4);
    // The same again, which the cache may know, and the converter.
    if (step.kind != drop && !program.empty() && program.back().kind != drop && random() % 4 == 0) {
      const int id = step.id;
      step = program.back();
      step.id = id;
    }
    program.push_back(step);
    if (!run.Do(step).empty()) return program;
    ++totals->kinds[Kinds()[static_cast<std::size_t>(step.kind)].name];
    totals->throwing += absl::EndsWith(run.lines().back(), "// throws");
  }
  totals->steps += steps;
  totals->known += run.known_seen();
  totals->hits += run.CacheInfo().hits;
  totals->misses += run.CacheInfo().misses;
  return std::nullopt;
}

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoll(value);
}

// LibTorch warns of out= tensors that it resizes, each time.
class Silence : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

TEST(StateMachine, RandomProgramsBehaveAsOnRealTensors) {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  const auto first = static_cast<uint32_t>(FromEnvironment("STATE_MACHINE_SEED", 1));
  const auto programs = static_cast<uint32_t>(FromEnvironment("STATE_MACHINE_PROGRAMS", 150));
  constexpr int kSteps = 60;
  Totals totals;
  for (uint32_t seed = first; seed < first + programs; ++seed) {
    std::optional<Program> failing = RandomProgram(seed, kSteps, &totals);
    if (!failing.has_value()) continue;
    Failure failure = Replay(Shorten(*std::move(failing), seed), seed);
    if (failure.what.empty()) failure.what = "it failed once, and not again";
    FAIL() << "STATE_MACHINE_SEED=" << seed << " STATE_MACHINE_PROGRAMS=1:\n  " << absl::StrJoin(failure.lines, "\n  ") << "\n  "
           << failure.what;
  }
  std::printf("seeds %u to %u: %lld steps, %lld of them throw; %lld cache hits, %lld misses; %lld looks at known elements\n", first,
              first + programs - 1, static_cast<long long>(totals.steps), static_cast<long long>(totals.throwing),
              static_cast<long long>(totals.hits), static_cast<long long>(totals.misses), static_cast<long long>(totals.known));
  if (programs < 100) return;
  // The programs do what they are for.
  for (const Kind& kind : Kinds()) EXPECT_GT(totals.kinds[kind.name], 0) << kind.name;
  EXPECT_GT(totals.hits, totals.steps / 20);
  EXPECT_GT(totals.known, totals.steps / 10);
  EXPECT_GT(totals.throwing, totals.steps / 50);
  EXPECT_LT(totals.throwing, totals.steps / 2);
}

}  // namespace
}  // namespace ddpopt
