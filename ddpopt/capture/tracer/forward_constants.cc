#include "ddpopt/capture/tracer/forward_constants.h"

#include <algorithm>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/clone.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "base/for_each_tensor.h"
#include "c10/core/DefaultDtype.h"
#include "interpreter/mode_stack.h"

namespace ddpopt {
namespace {

using c10::IValue;

constexpr int64_t kMaxBytes = int64_t{1} << 20;
// torch::tensor(a_vector) can only be told by what is written to it.
constexpr int64_t kMaxEmptyBytes = int64_t{1} << 24;
// Shorter memory could hold what Poison writes by chance.
constexpr std::size_t kSurelyTold = 64;

const c10::StorageImpl* StorageOf(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

absl::string_view Bytes(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = StorageOf(tensor);
  return absl::string_view(static_cast<const char*>(storage->data()), storage->nbytes());
}

// Values that nobody would write.
void Poison(const at::Tensor& tensor) {
  char* data = static_cast<char*>(tensor.storage().mutable_data());
  std::uint64_t state = 0x9E3779B97F4A7C15u;
  for (std::size_t i = 0; i < tensor.storage().nbytes(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = static_cast<char>(state >> 56);
  }
}

template <typename Fn>
void ForEachStorage(const std::vector<IValue>& values, const Fn& fn) {
  for (const IValue& value : values) {
    ForEachTensor(value, [&](const at::Tensor& tensor) {
      if (tensor.has_storage()) fn(StorageOf(tensor));
    });
  }
}

// Bytes of the result; a large number if that can't be told.
double ResultBytes(const c10::FunctionSchema& schema, at::ArrayRef<IValue> args) {
  double elements = 1;
  int64_t item = static_cast<int64_t>(c10::get_default_dtype().itemsize());
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    if (args[i].isIntList()) {
      for (const int64_t size : args[i].toIntVector()) elements *= static_cast<double>(size);
    } else if (name == "dtype") {
      item = args[i].isInt() ? static_cast<int64_t>(c10::elementSize(args[i].toScalarType())) : 8;
    } else if (name == "n" || name == "m" || name == "steps") {
      elements *= args[i].isInt() ? static_cast<double>(args[i].toInt()) : 1e30;
    }
  }
  if (schema.name() == "aten::arange") {
    double start = 0, end = 0, step = 1;
    for (std::size_t i = 0; i < args.size(); ++i) {
      const std::string& name = schema.arguments()[i].name();
      if (!args[i].isScalar()) continue;
      if (name == "start") start = args[i].toScalar().toDouble();
      if (name == "end") end = args[i].toScalar().toDouble();
      if (name == "step") step = args[i].toScalar().toDouble();
    }
    elements = (end - start) / step;
    if (!(elements >= 0)) return 1e30;
  }
  return elements * static_cast<double>(item);
}

// What the operator's result may hold, in elements, of arguments that are all at hand; rather too much than too little.
double ResultElements(const c10::OperatorHandle& op, at::ArrayRef<IValue> args) {
  const c10::FunctionSchema& schema = op.schema();
  // A view has no memory of its own; what reads it is asked again.
  const bool view = !schema.returns().empty() && schema.returns()[0].alias_info() != nullptr && !schema.is_mutable();
  if (view) return 0;
  double product = 1, broadcast = 1;
  for (std::size_t i = 0; i < args.size(); ++i) {
    ForEachTensor(args[i], [&](const at::Tensor& tensor) { product *= std::max<double>(1, static_cast<double>(tensor.numel())); });
    if (!args[i].isIntList()) continue;
    for (const int64_t size : args[i].toIntVector()) product *= std::max<double>(1, static_cast<double>(size));  // of repeat, new_zeros
  }
  if (!op.hasTag(at::Tag::pointwise)) return product;
  std::vector<int64_t> sizes;
  for (const IValue& value : args) {
    ForEachTensor(value, [&](const at::Tensor& tensor) {
      if (tensor.dim() > static_cast<int64_t>(sizes.size()))
        sizes.insert(sizes.begin(), static_cast<std::size_t>(tensor.dim()) - sizes.size(), 1);
      for (int64_t d = 1; d <= tensor.dim(); ++d)
        sizes[sizes.size() - static_cast<std::size_t>(d)] = std::max(sizes[sizes.size() - static_cast<std::size_t>(d)], tensor.size(-d));
    });
  }
  for (const int64_t size : sizes) broadcast *= static_cast<double>(size);
  return broadcast;
}

}  // namespace

bool ForwardConstants::IsFactory(const c10::OperatorHandle& op, at::ArrayRef<IValue> args) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  const bool empty = name == "aten::empty" && schema.overload_name() == "memory_format";
  const bool known = empty || name == "aten::zeros" || name == "aten::ones" || name == "aten::full" || name == "aten::scalar_tensor" ||
                     name == "aten::arange" || name == "aten::eye" || name == "aten::linspace";
  if (!known || schema.returns().size() != 1) return false;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string& argument = schema.arguments()[i].name();
    const IValue& value = args[i];
    if (value.isTensor() || value.isTensorList() || argument == "out" || argument == "names") return false;
    if (argument == "device" && value.isDevice() && !value.toDevice().is_cpu()) return false;
    if (argument == "layout" && value.isInt() && value.toLayout() != at::kStrided) return false;
    if (argument == "pin_memory" && value.isBool() && value.toBool()) return false;
  }
  return ResultBytes(schema, args) <= static_cast<double>(empty ? kMaxEmptyBytes : kMaxBytes);
}

bool ForwardConstants::Has(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.has_storage() && memories_.contains(StorageOf(tensor));
}

bool ForwardConstants::CanRun(const c10::OperatorHandle& op, at::ArrayRef<IValue> args) const {
  if (memories_.empty() || op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  bool any = false, all = true;
  for (const IValue& value : args) {
    ForEachTensor(value, [&](const at::Tensor& tensor) {
      any = true;
      all = all && Has(tensor) && !tensor.requires_grad();
    });
    all = all && !value.isStorage() && !value.isGenerator();
    // To another device: not for real.
    if (value.isDevice()) all = all && value.toDevice().is_cpu();
  }
  // What is large is left to the graph: nobody waits for it at each trace.
  return any && all && ResultElements(op, args) * 8 <= static_cast<double>(kMaxEmptyBytes);
}

void ForwardConstants::Look(const at::Tensor& tensor, bool empty) {
  if (!tensor.has_storage() || !tensor.device().is_cpu()) return;
  const auto [it, is_new] = memories_.try_emplace(StorageOf(tensor));
  Memory& memory = it->second;
  if (is_new) {
    memory.made = tensor;
    memory.order = num_memories_++;
    memory.empty = empty;
    if (empty) Poison(tensor);
  }
  memory.seen.assign(Bytes(tensor).begin(), Bytes(tensor).end());
}

void ForwardConstants::Run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t num_args = op.schema().arguments().size();
  Call call{op, {stack->end() - static_cast<std::ptrdiff_t>(num_args), stack->end()}, {}};
  // What the host wrote since the last call must not be taken for the operator's work.
  ForEachStorage(call.args, [&](const c10::StorageImpl* storage) {
    Memory& memory = memories_.at(storage);
    const absl::string_view now = Bytes(memory.made);
    if (!std::equal(now.begin(), now.end(), memory.seen.begin(), memory.seen.end())) memory.empty = memory.filled = true;
  });
  {
    const DisableModesGuard real(Mode::Level::kPostAutograd);
    op.callBoxed(stack);
  }
  const auto results = torch::jit::last(*stack, op.schema().returns().size());
  call.results.assign(results.begin(), results.end());
  const bool empty = op.schema().name() == "aten::empty";
  bool tensors = false;
  for (const IValue& result : call.results) {
    ForEachTensor(result, [&](const at::Tensor& tensor) {
      tensors = true;
      Look(tensor, empty);
    });
  }
  for (std::size_t i = 0; i < num_args; ++i) {
    const c10::AliasInfo* alias = op.schema().arguments()[i].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    ForEachTensor(call.args[i], [&](const at::Tensor& tensor) {
      Look(tensor, false);
      if (writes) memories_.at(StorageOf(tensor)).filled = true;
    });
  }
  // What only answers a question (item) leaves nothing to write down.
  if (tensors || op.schema().returns().empty()) calls_.push_back(std::move(call));
}

std::optional<at::Tensor> ForwardConstants::Any() const {
  if (memories_.empty()) return std::nullopt;
  return memories_.begin()->second.made;
}

ForwardConstants::Taken ForwardConstants::Take(const at::Tensor& tensor) {
  absl::flat_hash_set<const c10::StorageImpl*> connected{StorageOf(tensor)};
  const auto touches = [](const Call& call, const absl::flat_hash_set<const c10::StorageImpl*>& set) {
    bool any = false;
    const auto look = [&](const c10::StorageImpl* storage) { any = any || set.contains(storage); };
    ForEachStorage(call.args, look);
    ForEachStorage(call.results, look);
    return any;
  };
  const auto add = [](const Call& call, absl::flat_hash_set<const c10::StorageImpl*>& set) {
    const std::size_t before = set.size();
    const auto insert = [&](const c10::StorageImpl* storage) { set.insert(storage); };
    ForEachStorage(call.args, insert);
    ForEachStorage(call.results, insert);
    return set.size() != before;
  };
  for (bool grows = true; grows;) {
    grows = false;
    for (const Call& call : calls_) {
      if (touches(call, connected)) grows = add(call, connected) || grows;
    }
  }

  // What the host or a fill wrote is a constant, and so is what was computed from a constant.
  absl::flat_hash_set<const c10::StorageImpl*> constant;
  for (const c10::StorageImpl* storage : connected) {
    const Memory& memory = memories_.at(storage);
    const absl::string_view now = Bytes(memory.made);
    const bool by_host = !std::equal(now.begin(), now.end(), memory.seen.begin(), memory.seen.end());
    if (by_host || (memory.empty && (memory.filled || now.size() < kSurelyTold))) constant.insert(storage);
  }
  for (bool grows = true; grows;) {
    grows = false;
    for (const Call& call : calls_) {
      bool reads = false;
      ForEachStorage(call.args, [&](const c10::StorageImpl* storage) { reads = reads || constant.contains(storage); });
      if (!reads) continue;
      const auto spread = [&](const c10::StorageImpl* storage) { grows = constant.insert(storage).second || grows; };
      ForEachStorage(call.results, spread);
      for (std::size_t i = 0; i < call.args.size(); ++i) {
        const c10::AliasInfo* alias = call.op.schema().arguments()[i].alias_info();
        if (alias != nullptr && alias->isWrite()) ForEachStorage({call.args[i]}, spread);
      }
    }
  }

  Taken taken;
  std::vector<Call> others;
  for (Call& call : calls_) {
    if (!touches(call, connected)) {
      others.push_back(std::move(call));
      continue;
    }
    bool all_constant = true;
    ForEachStorage(call.results, [&](const c10::StorageImpl* storage) { all_constant = all_constant && constant.contains(storage); });
    if (call.results.empty()) {
      ForEachStorage(call.args, [&](const c10::StorageImpl* storage) { all_constant = all_constant && constant.contains(storage); });
    }
    if (!all_constant) taken.calls.push_back(std::move(call));
  }
  calls_ = std::move(others);

  // In the order in which they were made, as far as calls tell: names must not depend on addresses.
  const DisableModesGuard real(Mode::Level::kPostAutograd);
  const DisableModesGuard unseen(Mode::Level::kPreAutograd);
  const at::NoGradGuard no_grad;
  std::vector<const c10::StorageImpl*> order(connected.begin(), connected.end());
  std::sort(order.begin(), order.end(), [&](const auto* a, const auto* b) { return memories_.at(a).order < memories_.at(b).order; });
  for (const c10::StorageImpl* storage : order) {
    Memory memory = std::move(memories_.at(storage));
    memories_.erase(storage);
    if (constant.contains(storage)) taken.constants.push_back({memory.made, at::clone(memory.made.detach())});
    taken_.push_back({memory.made, {Bytes(memory.made).begin(), Bytes(memory.made).end()}});
  }
  return taken;
}

void ForwardConstants::Spoil(const at::Tensor& tensor) {
  tensor.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "This tensor was made in a forward that was captured as a graph, and the graph writes to it: it has no data to look at");
}

bool ForwardConstants::ChangedByHost() const {
  for (const TakenMemory& memory : taken_) {
    const char* data = static_cast<const char*>(memory.made.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
    if (!std::equal(memory.seen.begin(), memory.seen.end(), data)) return true;
  }
  return false;
}

}  // namespace ddpopt
