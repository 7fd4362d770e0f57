#include "fx_graph/passes/flops.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace ddpopt::fx {
namespace {

using c10::IValue;

at::Tensor FirstTensor(const IValue& value) {
  if (value.isTensor()) return value.toTensor();
  if (value.isTuple()) {
    for (const IValue& element : value.toTupleRef().elements()) {
      if (at::Tensor tensor = FirstTensor(element); tensor.defined()) return tensor;
    }
  } else if (value.isTensorList()) {
    for (const IValue& element : value.toListRef()) {
      if (element.toTensor().defined()) return element.toTensor();
    }
  }
  return at::Tensor();
}

double Numel(const at::Tensor& tensor) { return tensor.defined() ? static_cast<double>(tensor.numel()) : 0; }

class Operands {
 public:
  Operands(absl::string_view name, c10::ArrayRef<IValue> arguments, c10::ArrayRef<IValue> results)
      : name_(name), arguments_(arguments) {
    for (const IValue& result : results) {  // a gradient that isn't wanted is none
      if (!out_.defined()) out_ = FirstTensor(result);
    }
  }

  double Count() const {
    if (!out_.defined()) return 0;
    if (Is({"mm", "bmm", "mv", "dot", "vdot", "linear", "matmul", "inner"})) return Product(0);
    if (Is({"addmm", "baddbmm", "addmv", "_addmm_activation"})) return Product(1);
    if (Is({"addbmm"})) return Tensor(1).dim() == 3 ? Product(1) * static_cast<double>(Tensor(1).size(0)) : 0;
    if (Is({"convolution", "_convolution", "convolution_overrideable"})) return Convolution(out_, 0, 1, Bool(6));
    if (Is({"conv1d", "conv2d", "conv3d", "mkldnn_convolution", "_slow_conv2d_forward", "slow_conv3d_forward"}))
      return Convolution(out_, 0, 1, false);
    if (Is({"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"})) return Convolution(out_, 0, 1, true);
    if (Is({"convolution_backward", "convolution_backward_overrideable"})) return ConvolutionBackward();
    if (absl::StrContains(name_, "scaled_dot_product")) {
      const bool backward = absl::EndsWith(name_, "_backward");
      // Scores and their product with the values: two products forward, five backward.
      return backward ? 2.5 * Attention(1) : Attention(0);
    }
    if (Is({"mkldnn_rnn_layer"})) return Rnn(1);
    if (Is({"mkldnn_rnn_layer_backward"})) return 2 * Rnn(1);
    if (absl::StartsWith(name_, "_fft_")) {
      const double n = std::max(Numel(out_), Numel(Tensor(0)));
      return n > 1 ? 5 * n * std::log2(n) : 0;
    }
    if (IsLinearAlgebra()) {
      const at::Tensor matrix = Tensor(0);
      return matrix.defined() && matrix.dim() >= 2 ? 2 * Numel(matrix) * static_cast<double>(std::min(matrix.size(-1), matrix.size(-2)))
                                                   : 0;
    }
    return 0;
  }

 private:
  bool Is(std::initializer_list<absl::string_view> names) const { return std::find(names.begin(), names.end(), name_) != names.end(); }

  // Decompositions and solvers; norms, diagonals and the like only read.
  bool IsLinearAlgebra() const {
    if (Is({"triangular_solve", "cholesky", "cholesky_inverse", "cholesky_solve", "lu_unpack", "ormqr", "geqrf", "_linalg_det",
            "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd", "_linalg_eigh", "_linalg_eigvals"})) {
      return true;
    }
    return Is({"linalg_cholesky_ex", "linalg_inv_ex", "linalg_lu", "linalg_lu_factor_ex", "linalg_lu_solve", "linalg_ldl_factor_ex",
               "linalg_ldl_solve", "linalg_qr", "linalg_eig", "linalg_solve_triangular", "linalg_lstsq", "linalg_matrix_exp",
               "linalg_householder_product"});
  }

  at::Tensor Tensor(std::size_t index) const {
    return index < arguments_.size() && arguments_[index].isTensor() ? arguments_[index].toTensor() : at::Tensor();
  }
  bool Bool(std::size_t index) const { return index < arguments_.size() && arguments_[index].isBool() && arguments_[index].toBool(); }

  // `index`: the factor whose last dimension is summed over.
  double Product(std::size_t index) const {
    const at::Tensor factor = Tensor(index);
    return factor.defined() && factor.dim() > 0 ? 2 * Numel(out_) * static_cast<double>(factor.size(-1)) : 0;
  }

  double Convolution(const at::Tensor& result, std::size_t input, std::size_t weight_index, bool transposed) const {
    const at::Tensor weight = Tensor(weight_index);
    if (!weight.defined() || weight.dim() < 3 || weight.size(0) == 0) return 0;
    return 2 * Numel(transposed ? Tensor(input) : result) * Numel(weight) / static_cast<double>(weight.size(0));
  }

  double ConvolutionBackward() const {
    const double once = Convolution(Tensor(0), /*input=*/1, /*weight_index=*/2, Bool(7));
    int wanted = 0;
    if (arguments_.size() > 10 && arguments_[10].isList()) {
      const auto mask = arguments_[10].toListRef();
      for (std::size_t i = 0; i < 2 && i < mask.size(); ++i) wanted += mask[i].isBool() && mask[i].toBool();
    } else if (arguments_.size() > 10 && arguments_[10].isBoolList()) {
      const auto mask = arguments_[10].toBoolList();
      for (std::size_t i = 0; i < 2 && i < mask.size(); ++i) wanted += mask.get(i);
    }
    return once * wanted;
  }

  double Attention(std::size_t first) const {
    const at::Tensor query = Tensor(first), key = Tensor(first + 1), value = Tensor(first + 2);
    if (!query.defined() || !key.defined() || !value.defined() || query.dim() < 2 || key.dim() < 2 || query.size(-1) == 0) return 0;
    const double rows = Numel(query) / static_cast<double>(query.size(-1));
    return 2 * rows * static_cast<double>(key.size(-2)) * static_cast<double>(query.size(-1) + value.size(-1));
  }

  // One direction of one layer.
  double Rnn(std::size_t weights) const {
    const at::Tensor input = Tensor(0), of_input = Tensor(weights), of_hidden = Tensor(weights + 1);
    if (!input.defined() || input.dim() != 3 || !of_input.defined() || !of_hidden.defined()) return 0;
    return 2 * static_cast<double>(input.size(0) * input.size(1)) * (Numel(of_input) + Numel(of_hidden));
  }

  absl::string_view name_;
  c10::ArrayRef<IValue> arguments_;
  at::Tensor out_;
};

IValue ValueOf(const Argument& argument) {
  switch (argument.kind()) {
    case Argument::Kind::kNode:
      return argument.node()->has_meta() ? argument.node()->meta().val : IValue();
    case Argument::Kind::kConstant:
      return argument.constant();
    case Argument::Kind::kList: {
      c10::impl::GenericList list(c10::AnyType::get());
      for (const Argument& element : argument.elements()) list.push_back(ValueOf(element));
      return list;
    }
    default:
      return IValue();
  }
}

}  // namespace

double Flops(const c10::OperatorHandle& op, c10::ArrayRef<IValue> arguments, c10::ArrayRef<IValue> results) {
  absl::string_view name = op.operator_name().name;
  if (!absl::ConsumePrefix(&name, "aten::")) return 0;
  if (absl::EndsWith(name, "_") && !absl::EndsWith(name, "__")) name.remove_suffix(1);  // in place, it computes the same
  return Operands(name, arguments, results).Count();
}

double Flops(const Node& node) {
  if (node.op() != Op::kCallFunction || !node.is_operator() || !node.has_meta()) return 0;
  std::vector<IValue> arguments;
  for (const Argument& argument : node.args()) arguments.push_back(ValueOf(argument));
  return Flops(node.operator_handle(), arguments, node.meta().val);
}

}  // namespace ddpopt::fx
