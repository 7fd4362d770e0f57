#include "ddpopt/optimizer/operator_work.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/for_each_tensor.h"
#include "fx_graph/constants.h"
#include "fx_graph/passes/flops.h"

namespace ddpopt {
namespace {

using c10::IValue;

double Elements(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

// An expanded tensor reads its storage again and again: from the cache.
double BytesOf(const at::Tensor& tensor) {
  const double own = Elements(tensor) * static_cast<double>(tensor.itemsize());
  return tensor.has_storage() ? std::min(own, static_cast<double>(tensor.storage().nbytes())) : own;
}

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
  work.flops = fx::Flops(op, arguments, results);
  work.dtype = absl::StripPrefix(fx::DtypeName(first_result.scalar_type()), "torch.");
  return work;
}

}  // namespace ddpopt
