#include "ddpopt/optimizer/bucket_assignment.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

constexpr int64_t kDefaultCap = int64_t{25} << 20;
constexpr int64_t kDefaultFirstCap = int64_t{1} << 20;

struct Caps {
  int64_t cap;
  int64_t first_cap;
};

absl::StatusOr<Caps> ResolveCaps(const BucketOptions& options) {
  if (options.bucket_cap_bytes.value_or(0) < 0) {
    return absl::InvalidArgumentError(absl::StrCat("bucket_cap_bytes is negative: ", *options.bucket_cap_bytes));
  }
  if (options.first_bucket_cap_bytes.value_or(0) < 0) {
    return absl::InvalidArgumentError(absl::StrCat("first_bucket_cap_bytes is negative: ", *options.first_bucket_cap_bytes));
  }
  Caps caps;
  caps.cap = options.bucket_cap_bytes.value_or(kDefaultCap);
  caps.first_cap = options.first_bucket_cap_bytes.value_or(options.bucket_cap_bytes.has_value() ? caps.cap : kDefaultFirstCap);
  if (caps.first_cap > caps.cap) {
    return absl::InvalidArgumentError(absl::StrCat("first_bucket_cap_bytes (", caps.first_cap, ") is above ",
                                                   options.bucket_cap_bytes.has_value() ? "" : "the default ", "bucket_cap_bytes (",
                                                   caps.cap, ")"));
  }
  return caps;
}

struct Parameter {
  std::string name;
  at::Tensor tensor;
};

bool IsCompute(const fx::Node& node) {
  return node.op() != fx::Op::kPlaceholder && node.op() != fx::Op::kGetAttr && node.op() != fx::Op::kOutput;
}

// Which parameters each node takes, directly or inside the graphs that it names.
class ParameterUses {
 public:
  explicit ParameterUses(const fx::GraphModule& module, const absl::flat_hash_set<std::string>& ignored) : module_(module) {
    // A parameter that is ignored under one of its names is ignored under all.
    for (const auto& [path, attr] : module.attrs()) {
      if (attr.kind != fx::GraphModule::AttrKind::kParameter || !attr.value.isTensor() || !attr.value.toTensor().defined()) continue;
      const at::TensorImpl* impl = attr.value.toTensor().unsafeGetTensorImpl();
      names_.emplace(impl, path);
      if (ignored.contains(path)) ignored_.insert(impl);
    }
    for (const fx::Node* node : module.graph().nodes()) {
      if (node->op() == fx::Op::kPlaceholder && ignored.contains(node->path()) && node->meta().val.isTensor()) {
        ignored_.insert(node->meta().val.toTensor().unsafeGetTensorImpl());
      }
    }
  }

  // In the order of the arguments. Only what needs a gradient and is not ignored.
  absl::StatusOr<std::vector<Parameter>> Of(const fx::Node& node) const {
    std::vector<Parameter> result;
    for (const fx::Node* input : node.all_input_nodes()) {
      DDPOPT_RETURN_IF_ERROR(AddInput(module_, "", *input, result));
    }
    if (node.op() == fx::Op::kCallModule) {
      DDPOPT_ASSIGN_OR_RETURN(const fx::GraphModule::Submodule submodule, module_.GetSubmodule(node.path()));
      if (submodule.graph_module != nullptr) {
        DDPOPT_RETURN_IF_ERROR(AddInner(*submodule.graph_module, absl::StrCat(node.path(), "."), result));
      }
    }
    return result;
  }

  // Every parameter of the module that counts, used or not, each once, by name.
  std::vector<Parameter> All() const {
    std::vector<Parameter> result;
    absl::flat_hash_set<const at::TensorImpl*> seen;
    for (const auto& [path, attr] : module_.attrs()) {
      if (attr.kind != fx::GraphModule::AttrKind::kParameter || !attr.value.isTensor()) continue;
      if (Counts(attr.value.toTensor()) && seen.insert(attr.value.toTensor().unsafeGetTensorImpl()).second) {
        result.push_back({path, attr.value.toTensor()});
      }
    }
    for (const fx::Node* node : module_.graph().nodes()) {
      if (node->op() != fx::Op::kPlaceholder || !node->meta().is_parameter || !node->meta().val.isTensor()) continue;
      if (Counts(node->meta().val.toTensor()) && seen.insert(node->meta().val.toTensor().unsafeGetTensorImpl()).second) {
        result.push_back({node->path(), node->meta().val.toTensor()});
      }
    }
    return result;
  }

 private:
  bool Counts(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.requires_grad() && !ignored_.contains(tensor.unsafeGetTensorImpl());
  }

  void Add(std::string name, const at::Tensor& tensor, std::vector<Parameter>& result) const {
    if (Counts(tensor)) result.push_back({std::move(name), tensor});
  }

  absl::Status AddInput(const fx::GraphModule& owner, const std::string& prefix, const fx::Node& input,
                        std::vector<Parameter>& result) const {
    if (input.op() == fx::Op::kPlaceholder && input.meta().is_parameter) {
      if (!input.meta().val.isTensor()) {
        return absl::InvalidArgumentError(
            absl::StrCat("placeholder %", input.name(), " stands for a parameter but has no value to tell its size"));
      }
      Add(prefix + input.path(), input.meta().val.toTensor(), result);
      return absl::OkStatus();
    }
    if (input.op() != fx::Op::kGetAttr) return absl::OkStatus();
    absl::StatusOr<fx::GraphModule::Attr> attr = owner.GetAttr(input.path());
    if (!attr.ok()) {
      // The nested graph of a higher-order operator.
      absl::StatusOr<fx::GraphModule::Submodule> submodule = owner.GetSubmodule(input.path());
      if (!submodule.ok()) return attr.status();
      if (submodule->graph_module == nullptr) return absl::OkStatus();
      return AddInner(*submodule->graph_module, absl::StrCat(prefix, input.path(), "."), result);
    }
    if (attr->kind == fx::GraphModule::AttrKind::kParameter && attr->value.isTensor()) {
      const at::Tensor& tensor = attr->value.toTensor();
      // Nested graphs often name a parameter of the whole by a path of their own.
      std::string name = prefix + input.path();
      if (const auto known = names_.find(tensor.unsafeGetTensorImpl()); !prefix.empty() && known != names_.end()) name = known->second;
      Add(std::move(name), tensor, result);
    }
    return absl::OkStatus();
  }

  absl::Status AddInner(const fx::GraphModule& inner, const std::string& prefix, std::vector<Parameter>& result) const {
    for (const fx::Node* node : inner.graph().nodes()) {
      if (node->op() == fx::Op::kGetAttr) {
        DDPOPT_RETURN_IF_ERROR(AddInput(inner, prefix, *node, result));
      } else if (node->op() == fx::Op::kCallModule) {
        DDPOPT_ASSIGN_OR_RETURN(const fx::GraphModule::Submodule submodule, inner.GetSubmodule(node->path()));
        if (submodule.graph_module == nullptr) continue;
        DDPOPT_RETURN_IF_ERROR(AddInner(*submodule.graph_module, absl::StrCat(prefix, node->path(), "."), result));
      }
    }
    return absl::OkStatus();
  }

  const fx::GraphModule& module_;
  absl::flat_hash_map<const at::TensorImpl*, std::string> names_;
  absl::flat_hash_set<const at::TensorImpl*> ignored_;
};

int64_t Bytes(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.numel()) * static_cast<int64_t>(tensor.itemsize()); }

std::string HumanBytes(int64_t bytes) {
  if (bytes >= int64_t{1} << 20) return absl::StrFormat("%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  if (bytes >= 1 << 10) return absl::StrFormat("%.2f KiB", static_cast<double>(bytes) / (1 << 10));
  return absl::StrFormat("%d B", bytes);
}

}  // namespace

absl::StatusOr<BucketAssignment> AssignBuckets(const fx::GraphModule& module, const BucketOptions& options) {
  DDPOPT_ASSIGN_OR_RETURN(const Caps caps, ResolveCaps(options));
  const ParameterUses uses(module, options.ignored_parameters);

  // A parameter's gradient is complete when its earliest use has run backward.
  absl::flat_hash_map<const fx::Node*, std::vector<Parameter>> ready_at;
  absl::flat_hash_set<const at::TensorImpl*> counted;
  for (const fx::Node* node : module.graph().nodes()) {
    if (!IsCompute(*node)) continue;
    DDPOPT_ASSIGN_OR_RETURN(std::vector<Parameter> parameters, uses.Of(*node));
    for (Parameter& parameter : parameters) {
      if (counted.insert(parameter.tensor.unsafeGetTensorImpl()).second) ready_at[node].push_back(std::move(parameter));
    }
  }

  // Backward order: buckets[0] is reduced first.
  std::vector<Bucket> buckets(1);
  absl::flat_hash_map<const fx::Node*, int> backward_index;
  bool used_outside = false;  // the current bucket has a value that someone outside of it takes
  bool extending = false;
  for (const fx::Node* node = module.graph().back(); node != nullptr; node = node->prev()) {
    if (!IsCompute(*node)) continue;
    Bucket* bucket = &buckets.back();
    const int64_t cap = buckets.size() == 1 ? caps.first_cap : caps.cap;
    // A bucket without parameters is never full, whatever the cap.
    if (!bucket->parameters.empty() && bucket->bytes >= cap) {
      if (used_outside) {
        bucket = &buckets.emplace_back();
        used_outside = false;
        extending = false;
      } else {
        if (!extending) bucket->bytes_before_extension = bucket->bytes;
        extending = true;
        ++bucket->extended_by_nodes;
      }
    }
    const int index = static_cast<int>(buckets.size()) - 1;
    backward_index[node] = index;
    bucket->nodes.push_back(node);
    for (const fx::Node* user : node->users()) {
      const auto found = backward_index.find(user);
      if (found == backward_index.end() || found->second != index) used_outside = true;
    }
    if (const auto ready = ready_at.find(node); ready != ready_at.end()) {
      for (auto parameter = ready->second.rbegin(); parameter != ready->second.rend(); ++parameter) {
        bucket->bytes += Bytes(parameter->tensor);
        bucket->parameters.push_back(parameter->name);
      }
    }
  }

  std::reverse(buckets.begin(), buckets.end());
  for (Bucket& bucket : buckets) std::reverse(bucket.nodes.begin(), bucket.nodes.end());
  if (buckets.size() > 1 && buckets.front().parameters.empty()) {
    Bucket& successor = buckets[1];
    successor.nodes.insert(successor.nodes.begin(), buckets.front().nodes.begin(), buckets.front().nodes.end());
    buckets.erase(buckets.begin());
  }
  for (Parameter& parameter : uses.All()) {
    if (counted.contains(parameter.tensor.unsafeGetTensorImpl())) continue;
    buckets.front().bytes += Bytes(parameter.tensor);
    buckets.front().parameters.push_back(std::move(parameter.name));
  }

  BucketAssignment assignment;
  assignment.buckets = std::move(buckets);
  for (std::size_t i = 0; i < assignment.buckets.size(); ++i) {
    for (const fx::Node* node : assignment.buckets[i].nodes) assignment.bucket_of[node] = static_cast<int>(i);
  }
  return assignment;
}

std::string BucketAssignment::ToTable() const {
  std::string table =
      absl::StrFormat("%6s  %10s  %14s  %10s  %5s  %s\n", "bucket", "size", "bytes", "parameters", "nodes", "first to last ready");
  // As they are reduced.
  for (std::size_t i = buckets.size(); i-- > 0;) {
    const Bucket& bucket = buckets[i];
    std::string range = "-";
    if (!bucket.parameters.empty()) range = bucket.parameters.front();
    if (bucket.parameters.size() > 1) absl::StrAppend(&range, " .. ", bucket.parameters.back());
    absl::StrAppendFormat(&table, "%6d  %10s  %14d  %10d  %5d  %s", i, HumanBytes(bucket.bytes), bucket.bytes, bucket.parameters.size(),
                          bucket.nodes.size(), range);
    if (bucket.extended_by_nodes > 0) {
      absl::StrAppendFormat(&table, "  (extended by %d nodes from %s: nothing in it was used outside)", bucket.extended_by_nodes,
                            HumanBytes(bucket.bytes_before_extension));
    }
    table += "\n";
  }
  return table;
}

std::string BucketAssignment::ToJson() const {
  nlohmann::json json = nlohmann::json::array();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const Bucket& bucket = buckets[i];
    std::vector<std::string> nodes;
    for (const fx::Node* node : bucket.nodes) nodes.push_back(node->name());
    json.push_back({{"index", i},
                    {"bytes", bucket.bytes},
                    {"parameters", bucket.parameters},
                    {"nodes", nodes},
                    {"extended_by_nodes", bucket.extended_by_nodes},
                    {"bytes_before_extension", bucket.bytes_before_extension}});
  }
  return nlohmann::json{{"buckets", json}}.dump();
}

}  // namespace ddpopt
