#include "fake_tensor/op_info.h"

#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/enum_tag.h"
#include "ATen/core/function_schema.h"
#include "ATen/core/jit_type.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "c10/core/DispatchKey.h"
#include "fake_tensor/dtype_support.h"
#include "fake_tensor/functional_form.h"

namespace ddpopt {
namespace {

using c10::DispatchKey;
using Way = OpInfo::Way;

c10::TypePtr WithoutOptional(c10::TypePtr type) {
  while (type->kind() == c10::TypeKind::OptionalType) type = type->containedType(0);
  return type;
}

bool IsOneOf(const std::string& name, std::initializer_list<absl::string_view> names) {
  for (const absl::string_view candidate : names) {
    if (name == candidate) return true;
  }
  return false;
}

// The name without its namespace, if it is aten.
absl::string_view AtenName(const std::string& name) {
  absl::string_view rest = name;
  return absl::ConsumePrefix(&rest, "aten::") ? rest : absl::string_view();
}

// What eager allows beyond one device for all. Copies take any; scatters of views and fills copy or read a number; lengths live on the CPU.
OpInfo::Devices DevicesOf(absl::string_view name) {
  static const auto& any = *new absl::flat_hash_set<absl::string_view>{
      "copy_",
      "copy",
      "_copy_from",
      "_copy_from_and_resize",
      "_to_copy",
      "fill_",
      "fill",
      "resize_as_",
      "resize_as",
      "diagonal_scatter",
      "select_scatter",
      "slice_scatter",
      "as_strided_scatter",
      "_foreach_copy_",
      "_foreach_copy",
      "_ctc_loss",
      "_ctc_loss_backward",
      "_use_cudnn_ctc_loss",
      "_use_miopen_ctc_loss",
      "_cudnn_ctc_loss",
      "_pack_padded_sequence",
      "_pack_padded_sequence_backward",
      "_has_compatible_shallow_copy_type",
      "is_same_size",
  };
  static const auto& indices = *new absl::flat_hash_set<absl::string_view>{
      "index",           "_unsafe_index",        "index_put",
      "index_put_",      "_unsafe_index_put",    "_index_put_impl_",
      "_index_put_impl", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate",
  };
  if (any.contains(name)) return OpInfo::Devices::kAny;
  if (indices.contains(name)) return OpInfo::Devices::kIndices;
  return OpInfo::Devices::kOne;
}

// Elementwise operators that LibTorch doesn't tag as such. (where() takes its condition as it is, copies have no
// common dtype, and two that it tags convert nothing.)
bool IsElementwise(const c10::OperatorHandle& op, absl::string_view name) {
  static const auto& untagged = *new absl::flat_hash_set<absl::string_view>{
      "elu_backward",        "gelu_backward",        "hardshrink_backward", "hardsigmoid_backward",
      "hardswish_backward",  "hardtanh_backward",    "huber_loss",          "huber_loss_backward",
      "leaky_relu_backward", "log_sigmoid_backward", "logit_backward",      "mse_loss",
      "mse_loss_backward",   "silu_backward",        "smooth_l1_loss",      "smooth_l1_loss_backward",
      "softplus_backward",   "softshrink_backward",  "threshold_backward",  "rsub",
      "_add_relu",           "dist",
  };
  absl::ConsumeSuffix(&name, "_");
  return name != "where" && name != "native_dropout_backward" && name != "_foreach_copy" &&
         (op.hasTag(at::Tag::pointwise) || untagged.contains(name) || absl::StartsWith(name, "_foreach_"));
}

// Out= tensors whose elements share memory: what LibTorch's Meta kernels overlook, the CPU's kernels refuse, but for these, which write
// without looking.
bool WritesAnywhere(absl::string_view name) {
  static const auto& names = *new absl::flat_hash_set<absl::string_view>{
      "_log_softmax",
      "_softmax",
      "adaptive_max_pool3d_backward",
      "all",
      "amax",
      "amin",
      "any",
      "argmax",
      "argmin",
      "avg_pool3d",
      "avg_pool3d_backward",
      "fractional_max_pool2d",
      "fractional_max_pool2d_backward",
      "fractional_max_pool3d",
      "linear",
      "mv",
      "nll_loss_backward",
      "nll_loss_forward",
      "prod",
      "sum",
  };
  return names.contains(name);
}

// Arithmetic where a floating-point Scalar takes part in type promotion by its kind and is a mere number otherwise. Optimizers pass other
// ones each step.
bool IgnoresScalarValues(absl::string_view name) {
  absl::ConsumePrefix(&name, "_foreach_");
  absl::ConsumeSuffix(&name, "_");
  static const auto& names = *new absl::flat_hash_set<absl::string_view>{
      "add", "sub", "mul", "div", "rsub", "addcmul", "addcdiv", "lerp",
  };
  return names.contains(name);
}

// Batch norms update running_mean and running_var although most of their schemas promise not to; those that only read them say so in their
// names.
bool UpdatesStatistics(absl::string_view name) {
  for (const char* part : {"backward", "no_training", "no_update", "functional"}) {
    if (absl::StrContains(name, part)) return false;
  }
  return true;
}

OpInfo MakeOpInfo(const c10::OperatorHandle& op) {
  OpInfo info;
  const c10::FunctionSchema& schema = op.schema();
  const std::string& full_name = schema.name();
  const absl::string_view name = AtenName(full_name);
  bool has_tensors = false;
  const bool ignores_values = IgnoresScalarValues(name);
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const c10::TypePtr type = WithoutOptional(argument.type());
    has_tensors |= MentionsTensor(type);
    const bool writes = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    info.writes.push_back(writes);
    info.writes_any |= writes;
    const bool statistics = argument.name() == "running_mean" || argument.name() == "running_var";
    info.hidden_writes.push_back(!writes && statistics && UpdatesStatistics(name));
    if (argument.name() == "training" || argument.name() == "use_input_stats") info.hidden_writes_flag = static_cast<int>(i);
    info.value_irrelevant.push_back(ignores_values && type->kind() == c10::TypeKind::NumberType);
    if (type->kind() == c10::TypeKind::DeviceObjType) info.device_args.push_back(i);
    if (type->kind() == c10::TypeKind::GeneratorType || argument.name() == "pin_memory") {
      if (argument.type()->kind() == c10::TypeKind::OptionalType) info.dropped_args.push_back(i);
    }
    if (type->kind() == c10::TypeKind::StorageType) {
      info.cacheable = false;
      info.bypass = "storage as an argument";
    }
  }
  bool returns_tensors = false;
  for (const c10::Argument& result : schema.returns()) {
    has_tensors |= MentionsTensor(result.type());
    if (MentionsTensor(result.type())) {
      returns_tensors = true;
    } else {
      info.cacheable = false;
      info.bypass = "result other than tensors";
    }
    info.returns_views |= result.alias_info() != nullptr && !result.alias_info()->isWrite();
  }
  if (!returns_tensors && !info.writes_any) {
    info.cacheable = false;
    info.bypass = "no tensors result";
  }

  info.devices = DevicesOf(name);
  info.bumps_versions = absl::StartsWith(name, "_foreach_");
  info.random = op.hasTag(at::Tag::nondeterministic_seeded);
  info.uninitialized = absl::StartsWith(name, "empty") || absl::StartsWith(name, "new_empty") || absl::StartsWith(name, "_empty") ||
                       name == "resize" || name == "resize_as";
  info.makes_new_views = name == "view" && schema.overload_name() == "dtype";
  info.masks = name == "index" || name == "_unsafe_index";
  if (info.writes_any &&
      (op.hasTag(at::Tag::inplace_view) || name == "resize_" || name == "set_" || name == "resize_as_" || name == "detach_")) {
    info.writes_metadata_only = name != "resize_as_" && name != "resize_";
    if (name != "detach_") {
      info.cacheable = false;
      info.bypass = "in-place change of metadata";
    }
  }
  if (name == "empty" && schema.overload_name() == "memory_format") info.makes = OpInfo::Makes::kEmpty;
  if (name == "scalar_tensor" && schema.overload_name().empty()) info.makes = OpInfo::Makes::kScalarTensor;
  if (name == "fill_" && schema.overload_name() == "Scalar") info.makes = OpInfo::Makes::kFill;

  info.own = FindRule(op.operator_name());
  info.dtypes = DtypeRuleOf(op);
  if (!has_tensors) {
    info.way = Way::kPassThrough;
  } else if (IsOneOf(full_name, {"aten::lift", "aten::lift_fresh", "aten::lift_fresh_copy"}) && schema.overload_name().empty()) {
    info.way = Way::kLift;
  } else if (IsOneOf(full_name, {"aten::_local_scalar_dense"})) {
    info.way = Way::kScalarOutput;
  } else if (op.hasTag(at::Tag::data_dependent_output)) {
    info.way = Way::kScalarOutput;
  } else if (!info.masks && (op.hasTag(at::Tag::dynamic_output_shape) || IsOneOf(full_name, {"aten::nonzero", "aten::masked_select"}))) {
    info.way = Way::kDynamicShape;
  } else if (info.own != nullptr || op.hasKernelForDispatchKey(DispatchKey::Meta) ||
             op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
             op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional)) {
    info.way = Way::kRule;
  } else if (op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) {
    info.way = Way::kComposite;
  } else {
    info.way = Way::kNoRule;
  }
  const bool is_out = info.writes_any && IsOut(schema.arguments().back());
  if (info.way == Way::kRule && is_out) {
    const std::optional<c10::OperatorHandle> functional = FunctionalForm(schema, name);
    if (functional.has_value() && IsElementwise(*functional, name)) info.functional = functional;
  }
  info.elementwise = info.functional.has_value() || IsElementwise(op, name);
  // (The rule of gelu_backward asks for its operands' strides first.)
  info.casts_operands = info.way == Way::kRule && name != "gelu_backward" &&
                        (info.functional.has_value() || (!info.writes_any && IsElementwise(op, name)));
  info.refuses_overlapping_out = info.way == Way::kRule && info.own == nullptr && !WritesAnywhere(name);
  if (info.way != Way::kRule && info.way != Way::kNoRule) {
    info.cacheable = false;
    switch (info.way) {
      case Way::kComposite:
        info.bypass = "composite";
        break;
      case Way::kLift:
        info.bypass = "lift";
        break;
      case Way::kDynamicShape:
        info.bypass = "dynamic output shape";
        break;
      case Way::kPassThrough:
        info.bypass = "no tensors";
        break;
      default:
        info.bypass = "data-dependent output";
    }
  }
  return info;
}

}  // namespace

bool MentionsTensor(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  for (const c10::TypePtr& inner : type->containedTypes()) {
    if (MentionsTensor(inner)) return true;
  }
  return false;
}

const OpInfo& InfoOf(const c10::OperatorHandle& op) {
  thread_local absl::flat_hash_map<const c10::FunctionSchema*, std::unique_ptr<OpInfo>> infos;
  thread_local std::vector<std::unique_ptr<OpInfo>> retired;
  thread_local uint64_t epoch = 0;
  if (epoch != RulesEpoch()) {
    // Calls under way still hold references.
    for (auto& [schema, info] : infos) retired.push_back(std::move(info));
    infos.clear();
    ResolveRules();
    epoch = RulesEpoch();
  }
  std::unique_ptr<OpInfo>& info = infos[&op.schema()];
  if (info == nullptr) {
    try {
      info = std::make_unique<OpInfo>(MakeOpInfo(op));
    } catch (...) {
      infos.erase(&op.schema());
      throw;
    }
  }
  return *info;
}

std::string NameOf(const c10::OperatorHandle& op) { return c10::toString(op.operator_name()); }

const std::string& ArgName(const c10::OperatorHandle& op, std::size_t index) { return op.schema().arguments()[index].name(); }

std::string Describe(const at::Tensor& tensor) {
  return absl::StrCat("shape [", absl::StrJoin(tensor.sizes(), ", "), "], dtype ", c10::toString(tensor.scalar_type()), ", device ",
                      tensor.device().str());
}

}  // namespace ddpopt
