#include "ddpopt/optimizer/operator_work.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "fx_graph/constants.h"

namespace ddpopt {
namespace {

using c10::IValue;

template <typename Fn>
void ForEachTensor(const IValue& value, Fn&& fn) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) fn(value.toTensor());
  } else if (value.isTuple()) {
    for (const IValue& element : value.toTupleRef().elements()) ForEachTensor(element, fn);
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) ForEachTensor(element, fn);
  }
}

double Elements(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

// An expanded tensor reads its storage again and again: from the cache.
double BytesOf(const at::Tensor& tensor) {
  const double own = Elements(tensor) * static_cast<double>(tensor.itemsize());
  return tensor.has_storage() ? std::min(own, static_cast<double>(tensor.storage().nbytes())) : own;
}

class Work {
 public:
  Work(absl::string_view name, const std::vector<IValue>& arguments, const at::Tensor& first_result)
      : name_(name), arguments_(arguments), result_(first_result) {}

  double Flops() const {
    if (name_ == "mm" || name_ == "bmm" || name_ == "mv" || name_ == "dot" || name_ == "vdot" || name_ == "linear" || name_ == "matmul")
      return Product(0);
    if (name_ == "addmm" || name_ == "baddbmm" || name_ == "addmv" || name_ == "_addmm_activation") return Product(1);
    if (name_ == "addbmm") return Tensor(1).defined() ? Product(1) * static_cast<double>(Tensor(1).size(0)) : 0;
    if (name_ == "convolution" || name_ == "_convolution") return Convolution(Tensor(0), Tensor(1), result_, 6);
    if (name_ == "convolution_backward") {
      // Of the input and of the weight, as far as they are wanted.
      int wanted = 0;
      if (arguments_.size() > 10 && arguments_[10].isList()) {
        const c10::List<IValue> mask = arguments_[10].toList();
        for (std::size_t i = 0; i < std::min<std::size_t>(2, mask.size()); ++i) wanted += mask.get(i).toBool();
      }
      return wanted * Convolution(Tensor(1), Tensor(2), Tensor(0), 7);
    }
    if (absl::StrContains(name_, "scaled_dot_product")) return Attention();
    if (name_ == "mkldnn_rnn_layer") return Recurrent(0);  // one direction of one layer
    if (name_ == "mkldnn_rnn_layer_backward") return 2 * Recurrent(0);
    return 0;
  }

 private:
  at::Tensor Tensor(std::size_t index) const {
    return index < arguments_.size() && arguments_[index].isTensor() ? arguments_[index].toTensor() : at::Tensor();
  }
  // `index`: the factor whose last dimension is summed over.
  double Product(std::size_t index) const {
    const at::Tensor factor = Tensor(index);
    return factor.defined() && factor.dim() > 0 ? 2 * Elements(result_) * static_cast<double>(factor.size(-1)) : 0;
  }
  double Convolution(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& output, std::size_t transposed_index) const {
    if (!input.defined() || !weight.defined() || !output.defined() || weight.dim() < 3 || weight.size(0) == 0) return 0;
    const bool transposed =
        arguments_.size() > transposed_index && arguments_[transposed_index].isBool() && arguments_[transposed_index].toBool();
    return 2 * Elements(transposed ? input : output) * Elements(weight) / static_cast<double>(weight.size(0));
  }
  // Scores, and their product with the values. Backward computes the scores again, and the gradients of both factors of both products.
  double Attention() const {
    const bool backward = absl::StrContains(name_, "backward");
    const std::size_t first = backward ? 1 : 0;
    const at::Tensor query = Tensor(first), key = Tensor(first + 1), value = Tensor(first + 2);
    if (!query.defined() || !key.defined() || !value.defined() || query.dim() < 2 || key.dim() < 2 || query.size(-1) == 0) return 0;
    const double scores = 2 * Elements(query) * static_cast<double>(key.size(-2));
    const double mixed = scores / static_cast<double>(query.size(-1)) * static_cast<double>(value.size(-1));
    return backward ? 3 * scores + 2 * mixed : scores + mixed;
  }
  double Recurrent(std::size_t first) const {
    const at::Tensor input = Tensor(first), input_weight = Tensor(first + 1), hidden_weight = Tensor(first + 2);
    if (!input.defined() || input.dim() != 3 || !input_weight.defined() || !hidden_weight.defined()) return 0;
    return 2 * static_cast<double>(input.size(0) * input.size(1)) * (Elements(input_weight) + Elements(hidden_weight));
  }

  const absl::string_view name_;
  const std::vector<IValue>& arguments_;
  const at::Tensor& result_;
};

bool PicksRows(absl::string_view name) {
  return name == "embedding" || name == "index" || name == "index_select" || name == "gather" || name == "_embedding_bag" || name == "take";
}

}  // namespace

OperatorWork WorkOf(const c10::OperatorHandle& op, const std::vector<IValue>& arguments, const std::vector<IValue>& results) {
  OperatorWork work;
  absl::string_view name = op.schema().name();
  absl::ConsumePrefix(&name, "aten::");
  if (absl::EndsWith(name, "_") && !absl::EndsWith(name, "__")) name.remove_suffix(1);

  at::Tensor first_result;
  absl::flat_hash_set<const void*> storages;
  double taken = 0, given = 0;
  const auto key = [](const at::Tensor& tensor) -> const void* {
    return tensor.has_storage() ? static_cast<const void*>(tensor.storage().unsafeGetStorageImpl()) : tensor.unsafeGetTensorImpl();
  };
  for (const IValue& argument : arguments) {
    ForEachTensor(argument, [&](const at::Tensor& tensor) {
      if (storages.insert(key(tensor)).second) taken += BytesOf(tensor);
    });
  }
  const std::size_t before = storages.size();
  for (const IValue& result : results) {
    ForEachTensor(result, [&](const at::Tensor& tensor) {
      if (!first_result.defined()) first_result = tensor;
      if (storages.insert(key(tensor)).second) given += BytesOf(tensor);
    });
  }
  // Nothing new and nothing written: views.
  work.view = storages.size() == before && !op.schema().is_mutable();
  if (!first_result.defined()) return work;
  if (!work.view) work.bytes = PicksRows(name) ? std::min(taken, given) + given : taken + given;
  work.flops = Work(name, arguments, first_result).Flops();
  work.dtype = absl::StripPrefix(fx::DtypeName(first_result.scalar_type()), "torch.");
  return work;
}

}  // namespace ddpopt
