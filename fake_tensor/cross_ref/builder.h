#ifndef DDPOPT_FAKE_TENSOR_CROSS_REF_BUILDER_H_
#define DDPOPT_FAKE_TENSOR_CROSS_REF_BUILDER_H_

// Evaluates a recipe for one call. Private to cross_ref.
//
//   Call call = Builder(op, seed, options).Build();

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/List.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "absl/strings/str_cat.h"
#include "c10/core/ScalarType.h"
#include "fake_tensor/cross_ref/generator.h"
#include "fake_tensor/cross_ref/recipe.h"
#include "fake_tensor/cross_ref/words.h"

namespace ddpopt::cross_ref {

// Thrown where the call doesn't work out with what was chosen so far.
struct Discard {};

class Builder {
 public:
  Builder(const c10::OperatorHandle& op, uint64_t seed, const CallOptions& options);
  Call Build();

 private:
  using Ints = std::vector<int64_t>;

  // Recipes' expressions (expressions.cc).
  std::string Scoped(const std::string& name) const { return position_ < 0 ? name : absl::StrCat(name, "#", position_); }
  int64_t Size();
  int64_t Variable(const std::string& name);
  const Ints& Shape(const std::string& name);
  // A shape that broadcasts to the other one.
  Ints Broadcastable(Ints shape);
  int64_t Number(const std::string& text);
  int64_t Expression(const std::string& text);
  int64_t Sum(const std::string& text, std::size_t* at);
  int64_t Term(const std::string& text, std::size_t* at);
  int64_t Factor(const std::string& text, std::size_t* at);
  // The sizes a function is asked about: *S, or a tensor argument.
  Ints SizesNamed(const std::string& name);
  // A dimension: a number, or an argument that is one; wrapped.
  int64_t DimNamed(const std::string& name, int64_t rank);
  int64_t SizeOf(const Ints& sizes, const std::string& dim_name);
  int64_t RandomDim(int64_t rank);
  int64_t NumberFunction(const std::string& name, const std::vector<std::string>& of);
  bool IsListFunction(const std::string& name);
  Ints ListFunction(const std::string& name, const std::vector<std::string>& of);
  // The shape of self[indices], for integer indices.
  static Ints IndexedShape(const Ints& sizes, const std::vector<TensorSpec>& indices);
  std::size_t IndexOf(const std::string& name) const;

  // Tensors (arguments.cc).
  TensorSpec Tensor(const std::string& text);

  // Arguments (arguments.cc).
  const Value& Argument(std::size_t i);
  static bool Fits(const std::string& text, ArgumentKind kind, bool optional);
  Value Choose(std::size_t i);
  static Value Plain(c10::IValue value) { return Value{Value::Kind::kPlain, std::move(value), {}}; }
  Value FromText(const std::string& text, const c10::Argument& argument, ArgumentKind kind);
  static TensorSpec Undefined();
  static double Float(const std::string& text);
  c10::IValue Scalar(const std::string& text);
  c10::IValue AnyScalar();
  c10::IValue ScalarList();
  c10::List<int64_t> IntList(const std::string& text, const c10::Argument& argument);
  Value FromSchema(std::size_t i, const c10::Argument& argument, ArgumentKind kind, bool optional);
  std::string FirstTensor() const;
  int64_t FirstRank();

  // Layouts, damage, out= (damage.cc).
  template <typename Fn>
  void ForEachTensor(Fn&& fn) {
    for (std::optional<Value>& value : values_) {
      if (!value.has_value()) continue;
      for (TensorSpec& spec : value->tensors) {
        if (spec.defined) fn(spec);
      }
    }
  }
  void ChooseLayout(TensorSpec& spec);
  void Arrange();
  std::string Damage();
  // The functional form: the same name and arguments but for out=.
  std::optional<c10::OperatorHandle> Functional() const;
  void MakeOuts(bool damaged);
  void OutSpec(TensorSpec& spec);
  static void Flatten(const c10::IValue& value, std::vector<at::Tensor>* out);
  // Whether a kernel would look at an index that can't be right: that is refused for its value, which a fake can't know.
  static void RefuseBadIndices(const Call& call);

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  const CallOptions options_;
  Random random_;
  const Recipe* recipe_;
  c10::ScalarType dtype_;
  bool has_empty_;
  int64_t list_length_;
  int64_t position_ = -1;  // within each(…)
  std::map<std::string, std::string> pending_;
  std::map<std::string, int64_t> variables_;
  std::map<std::string, Ints> shapes_;
  std::vector<std::optional<Value>> values_;
  std::vector<std::size_t> open_;
};

}  // namespace ddpopt::cross_ref

#endif  // DDPOPT_FAKE_TENSOR_CROSS_REF_BUILDER_H_
