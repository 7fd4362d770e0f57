#include "interpreter/get_item.h"

#include <variant>

#include "ATen/core/Dict.h"
#include "ATen/core/List.h"
#include "c10/util/Exception.h"

namespace ddpopt {
namespace {

using c10::IValue;

constexpr char kGetItem[] = "operator.getitem";

}  // namespace

bool IsGetItem(const fx::Target& target) {
  const auto* opaque = std::get_if<fx::OpaqueTarget>(&target);
  return opaque != nullptr && (opaque->text == kGetItem || opaque->text == "_operator.getitem");
}

IValue GetItem(const IValue& container, const IValue& key) {
  if (container.isGenericDict()) {
    const auto dict = container.toGenericDict();
    const auto found = dict.find(key);
    TORCH_CHECK(found != dict.end(), kGetItem, ": the dict has no such key");
    return found->value();
  }
  TORCH_CHECK(container.isTuple() || container.isList(), kGetItem, ": takes a tuple, list or dict, not ", container.tagKind());
  TORCH_CHECK(key.isInt(), kGetItem, ": the index must be an int, not ", key.tagKind());
  const int64_t size =
      container.isTuple() ? static_cast<int64_t>(container.toTupleRef().size()) : static_cast<int64_t>(container.toListRef().size());
  const int64_t index = key.toInt() < 0 ? key.toInt() + size : key.toInt();
  TORCH_CHECK_INDEX(index >= 0 && index < size, kGetItem, ": index ", key.toInt(), " is out of range for ", size, " elements");
  if (container.isTuple()) return container.toTupleRef().elements()[index];
  return container.toListRef()[index];
}

}  // namespace ddpopt
