#include "fx_graph/split_module.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/logging.h"
#include "base/status.h"
#include "fx_graph/split_regions.h"

namespace ddpopt::fx {
namespace {

constexpr int kNone = -1;
constexpr std::size_t kOperators = 8;  // that a partition has, beside attributes and inputs; more are fine

struct Partition {
  std::string name;  // of the submodule: "submod_0"
  std::vector<const Node*> nodes;
  // In the order in which they are first needed.
  std::vector<const Node*> inputs;          // values of other partitions, placeholders, attributes that are passed in
  std::vector<const Node*> attributes;      // get_attr nodes to copy
  std::vector<const Node*> outputs;         // values that someone outside takes
  std::vector<int> dependents;              // partitions that take them
  int dependencies = 0;                     // how many partitions this one waits for
  std::vector<const SplitRegion*> entered;  // to be entered again at its beginning
  std::vector<const SplitRegion*> left;     // to be left at its end
};

// One partition takes a value of another.
struct Dependence {
  int from;
  int to;
  const Node* value;
};

bool HasPartition(const Node& node) {
  return node.op() == Op::kCallFunction || node.op() == Op::kCallMethod || node.op() == Op::kCallModule;
}

class Splitter {
 public:
  Splitter(const GraphModule& module, const SplitOptions& options) : module_(module), options_(options), copier_(module.graph()) {}

  absl::StatusOr<std::shared_ptr<GraphModule>> Run(absl::FunctionRef<int(const Node*)> partition) && {
    DDPOPT_RETURN_IF_ERROR(AssignPartitions(partition));
    DDPOPT_ASSIGN_OR_RETURN(const SplitRegions regions,
                            FindSplitRegions(module_.graph(), [this](const Node& node) { return PartitionOf(&node); }));
    PlaceRegions(regions);
    FindSymbols();
    FindStaticInputs();
    FindCrossings();
    FindInputs();
    DDPOPT_ASSIGN_OR_RETURN(const std::vector<int> order, CallOrder(regions));
    copies_.assign(module_.graph().id_limit(), nullptr);
    auto outer = std::make_shared<GraphModule>();
    outer->meta() = module_.meta();
    for (const int index : order) {
      DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<GraphModule> part, BuildPartition(index));
      DDPOPT_RETURN_IF_ERROR(outer->AddSubmodule(partitions_[index].name, GraphModule::Submodule{std::move(part), nullptr}));
    }
    DDPOPT_RETURN_IF_ERROR(BuildOuter(order, *outer));
    return outer;
  }

 private:
  int PartitionOf(const Node* node) const { return partition_of_[node->id()]; }

  absl::Status AssignPartitions(absl::FunctionRef<int(const Node*)> partition) {
    partition_of_.assign(module_.graph().id_limit(), kNone);
    absl::flat_hash_map<int, int> index_of;  // of the user's numbers
    int last_number = -1;
    int last_index = kNone;
    for (const Node* node : module_.graph().nodes()) {
      if (!HasPartition(*node)) continue;
      const int number = partition(node);
      if (number < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("%", node->name(), " was given the partition ", number, "; numbers must not be negative"));
      }
      if (number != last_number) {
        const auto [entry, is_new] = index_of.emplace(number, static_cast<int>(partitions_.size()));
        if (is_new) {
          partitions_.emplace_back();
          partitions_.back().name =
              absl::StrCat("submod_", options_.partition_affix, options_.partition_affix.empty() ? "" : "_", number);
        }
        last_number = number;
        last_index = entry->second;
      }
      partitions_[last_index].nodes.push_back(node);
      partition_of_[node->id()] = last_index;
    }
    return absl::OkStatus();
  }

  // A region's first partition holds its enter, and the last one its exit; the others get copies.
  void PlaceRegions(const SplitRegions& found) {
    for (const SplitRegion& region : found.regions) {
      for (std::size_t i = 1; i < region.partitions.size(); ++i) partitions_[region.partitions[i]].entered.push_back(&region);
    }
    for (auto region = found.regions.rbegin(); region != found.regions.rend(); ++region) {
      if (region->exit == nullptr) continue;
      for (std::size_t i = 0; i + 1 < region->partitions.size(); ++i) partitions_[region->partitions[i]].left.push_back(&*region);
    }
  }

  void FindSymbols() {
    for (const Node* node : module_.graph().nodes()) {
      if (!node->has_meta() || node->meta().custom.empty()) continue;
      const auto symbol = node->meta().custom.find(kSymbol);
      if (symbol != node->meta().custom.end() && symbol->second.isString()) symbols_.emplace(symbol->second.toStringRef(), node);
    }
  }

  // Calls fn for each node that stands for a symbol of `node`'s value.
  template <typename Fn>
  void ForEachSymbol(const Node& node, Fn&& fn) const {
    if (symbols_.empty() || !node.has_meta()) return;
    const auto found = node.meta().custom.find(kFreeSymbols);
    if (found == node.meta().custom.end() || !found->second.isList()) return;
    for (const c10::IValue& symbol : found->second.toListRef()) {
      const auto bound = symbol.isString() ? symbols_.find(symbol.toStringRef()) : symbols_.end();
      if (bound != symbols_.end()) fn(bound->second);
    }
  }

  // What each partition hands on, and who waits for whom. The order in which this is found is the order of outputs.
  void FindCrossings() {
    std::vector<bool> is_output(module_.graph().id_limit(), false);
    absl::flat_hash_set<std::pair<int, int>> known;
    const auto hand_on = [&](const Node* value, int to) {
      const int from = PartitionOf(value);
      if (from == kNone || from == to) return;
      if (!is_output[value->id()]) partitions_[from].outputs.push_back(value);
      is_output[value->id()] = true;
      if (to == kNone) return;
      if (!dependences_.empty() && dependences_.back().from == from && dependences_.back().to == to) return;
      if (!known.insert({from, to}).second) return;
      dependences_.push_back({from, to, value});
      partitions_[from].dependents.push_back(to);
      ++partitions_[to].dependencies;
    };
    for (const Node* node : module_.graph().nodes()) {
      const int to = PartitionOf(node);
      if (to == kNone ? node->op() != Op::kOutput : IsStateNode(*node)) continue;
      for (const Node* input : node->all_input_nodes()) {
        if (PartitionOf(input) == to) continue;
        hand_on(input, to);
        if (to != kNone) ForEachSymbol(*input, [&](const Node* symbol) { hand_on(symbol, to); });
      }
    }
  }

  void FindInputs() {
    std::vector<int> taken_by(module_.graph().id_limit(), kNone);
    for (int index = 0; index < static_cast<int>(partitions_.size()); ++index) {
      Partition& partition = partitions_[index];
      const auto take = [&](const Node* value) {
        if (PartitionOf(value) == index || std::exchange(taken_by[value->id()], index) == index) return;
        (IsCopied(*value) ? partition.attributes : partition.inputs).push_back(value);
      };
      for (const Node* node : partition.nodes) {
        if (IsStateNode(*node)) continue;
        for (const Node* input : node->all_input_nodes()) {
          if (PartitionOf(input) == index) continue;
          take(input);
          ForEachSymbol(*input, take);
        }
      }
    }
  }

  // Whether each partition has a get_attr of its own.
  bool IsCopied(const Node& node) const {
    if (node.op() != Op::kGetAttr) return false;
    return options_.attributes == SplitOptions::Attributes::kCopy || module_.submodules().contains(node.path());
  }

  absl::StatusOr<std::vector<int>> CallOrder(const SplitRegions& regions) const {
    std::vector<int> in_order(partitions_.size());
    for (std::size_t i = 0; i < in_order.size(); ++i) in_order[i] = static_cast<int>(i);
    if (options_.keep_original_order) {
      for (const Dependence& dependence : dependences_) {
        if (dependence.from < dependence.to) continue;
        return absl::FailedPreconditionError(absl::StrCat("the original order can't be kept: ", partitions_[dependence.to].name,
                                                          " comes first but takes %", dependence.value->name(), " from ",
                                                          partitions_[dependence.from].name));
      }
      return in_order;
    }
    // As torch.fx: of the partitions that wait for nobody, the one that became so last.
    std::vector<int> order;
    std::vector<int> waits_for(partitions_.size());
    std::vector<int> ready;
    for (const int index : in_order) {
      waits_for[index] = partitions_[index].dependencies;
      if (waits_for[index] == 0) ready.push_back(index);
    }
    while (!ready.empty()) {
      const int index = ready.back();
      ready.pop_back();
      order.push_back(index);
      for (const int dependent : partitions_[index].dependents) {
        if (--waits_for[dependent] == 0) ready.push_back(dependent);
      }
    }
    if (order.size() != partitions_.size()) return CycleError(waits_for);
    // A grad mode is not restored at the end of a partition, so that one which relies on the caller's would get another's. The
    // original order, which regions guarantee to be possible, has them first.
    return std::equal(regions.ambient_grad_mode.begin(), regions.ambient_grad_mode.end(), order.begin()) ? order : in_order;
  }

  absl::Status CycleError(const std::vector<int>& waits_for) const {
    // Whoever waits still waits for another that does.
    std::vector<int> visited_at(partitions_.size(), kNone);
    std::vector<Dependence> steps;
    int index = static_cast<int>(std::find_if(waits_for.begin(), waits_for.end(), [](int n) { return n > 0; }) - waits_for.begin());
    while (visited_at[index] == kNone) {
      visited_at[index] = static_cast<int>(steps.size());
      const auto needed = std::find_if(dependences_.begin(), dependences_.end(),
                                       [&](const Dependence& d) { return d.to == index && waits_for[d.from] > 0; });
      CHECK(needed != dependences_.end()) << "the partition " << partitions_[index].name << " waits for none";
      steps.push_back(*needed);
      index = needed->from;
    }
    std::vector<std::string> texts;
    for (std::size_t i = visited_at[index]; i < steps.size(); ++i) {
      texts.push_back(
          absl::StrCat(partitions_[steps[i].to].name, " takes %", steps[i].value->name(), " from ", partitions_[steps[i].from].name));
    }
    return absl::FailedPreconditionError(absl::StrCat("the partitions depend on each other in a cycle: ", absl::StrJoin(texts, ", ")));
  }

  absl::Status NotFound(const Node& node) const {
    return absl::NotFoundError(absl::StrCat(OpName(node.op()), " %", node.name(), ": the module has no \"", node.path(), "\""));
  }

  // Gives `to` what the node's path means in the input module, under `path`.
  absl::Status Share(const Node& node, const std::string& path, GraphModule& to) const {
    const auto unless_there = [&](absl::Status status, const auto& table) {
      return absl::IsAlreadyExists(status) && table.contains(path) ? absl::OkStatus() : status;
    };
    if (node.op() == Op::kGetAttr) {
      if (const GraphModule::Attr* const attr = module_.FindAttr(node.path()); attr != nullptr) {
        return unless_there(to.AddAttr(path, attr->value, attr->kind), to.attrs());
      }
    }
    const auto submodule = module_.submodules().find(node.path());
    if (submodule == module_.submodules().end()) return NotFound(node);
    return unless_there(to.AddSubmodule(path, submodule->second), to.submodules());
  }

  void Record(const Partition& partition, const std::string& path, const Node& node) const {
    if (options_.qualname_map != nullptr)
      options_.qualname_map->emplace(absl::StrCat(partition.name, ".", path), std::string(node.path()));
  }

  // The path of a called module inside its partition: without dots, as in torch.fx, and not that of another module.
  absl::StatusOr<std::string> ModulePath(const Node& node, const GraphModule& part) const {
    const auto meant = module_.submodules().find(std::string(node.path()));
    if (meant == module_.submodules().end()) return NotFound(node);
    const std::string path = absl::StrReplaceAll(std::string(node.path()), {{".", "_"}});
    for (int suffix = 0;; ++suffix) {
      std::string candidate = suffix == 0 ? path : absl::StrCat(path, "_", suffix);
      const auto known = part.submodules().find(candidate);
      if (known == part.submodules().end()) return candidate;
      const GraphModule::Submodule& other = known->second;
      if (other.graph_module == meant->second.graph_module && other.callable == meant->second.callable) return candidate;
    }
  }

  absl::StatusOr<std::shared_ptr<GraphModule>> BuildPartition(int index) {
    const Partition& partition = partitions_[index];
    auto part = std::make_shared<GraphModule>();
    Graph& graph = part->graph();
    part->ReserveAttrs(partition.attributes.size());
    copier_.SetTarget(&graph, partition.inputs.size() + partition.attributes.size() + kOperators);
    for (const SplitRegion* region : partition.entered) Copy(*region->enter);
    for (std::size_t i = 0; i < partition.inputs.size(); ++i) {
      const Node* input = partition.inputs[i];
      Node* placeholder = graph.Placeholder(options_.keep_original_input_names ? std::string(input->name()) : absl::StrCat("arg_", i));
      SetCopy(*input, placeholder);
    }
    for (const Node* node : partition.attributes) {
      DDPOPT_RETURN_IF_ERROR(Share(*node, node->path(), *part));
      Record(partition, node->path(), *node);
      Copy(*node);
    }
    for (const Node* node : partition.nodes) {
      if (node->op() != Op::kCallModule) {
        Copy(*node);
        continue;
      }
      DDPOPT_ASSIGN_OR_RETURN(const std::string path, ModulePath(*node, *part));
      DDPOPT_RETURN_IF_ERROR(Share(*node, path, *part));
      Record(partition, path, *node);
      Copy(*node, PathTarget{path}, graph);
    }
    for (const SplitRegion* region : partition.left) Copy(*region->exit);

    std::vector<Argument> results;
    for (const Node* output : partition.outputs) results.emplace_back(copies_[output->id()]);
    const bool bare = results.size() == 1 && !options_.tuple_return;
    graph.Output(bare ? results[0] : Argument::Tuple(std::move(results)));
    CopyModuleMeta(partition, *part);
    return part;
  }

  // Makes `copy` the node that stands for `node` in the graph that is being built.
  void SetCopy(const Node& node, Node* copy) {
    if (node.has_meta()) copy->meta() = CopyMeta(node.meta());
    copies_[node.id()] = copy;
  }

  // Into the graph that is being built.
  void Copy(const Node& node) {
    const auto map = [this](Node* input) { return Argument(copies_[input->id()]); };
    copies_[node.id()] = copier_.Copy(node, map, options_.keep_original_node_names);
  }

  // With another target.
  void Copy(const Node& node, Target target, Graph& graph) {
    const auto map = [this](Node* input) { return Argument(copies_[input->id()]); };
    arguments_.clear();
    for (const Argument& argument : node.args()) arguments_.push_back(argument.Map(map));
    Kwargs kwargs;
    kwargs.reserve(node.kwargs().size());
    for (const auto& [name, argument] : node.kwargs()) kwargs.emplace_back(name, argument.Map(map));
    SetCopy(node, graph.CreateNode(node.op(), std::move(target), arguments_, std::move(kwargs),
                                   options_.keep_original_node_names ? absl::string_view(node.name()) : absl::string_view()));
  }

  // The input's metadata. Which of its inputs are static is said in indices into the placeholders; an attribute that is passed in is
  // static too.
  void CopyModuleMeta(const Partition& partition, GraphModule& part) const {
    part.meta() = module_.meta();
    for (const auto& [key, placeholders] : static_inputs_) {
      c10::List<int64_t> renumbered;
      for (std::size_t i = 0; i < partition.inputs.size(); ++i) {
        const Node* input = partition.inputs[i];
        if (input->op() == Op::kGetAttr || placeholders.contains(input)) renumbered.push_back(static_cast<int64_t>(i));
      }
      part.meta()[key] = renumbered;
    }
  }

  void FindStaticInputs() {
    for (const char* key : kStaticInputIndices) {
      const auto found = module_.meta().find(key);
      if (found == module_.meta().end() || !found->second.isList()) continue;
      absl::flat_hash_set<int64_t> indices;
      for (const c10::IValue& index : found->second.toListRef()) {
        if (index.isInt()) indices.insert(index.toInt());
      }
      absl::flat_hash_set<const Node*>& placeholders = static_inputs_[key];
      int64_t index = 0;
      for (const Node* node : module_.graph().nodes()) {
        if (node->op() == Op::kPlaceholder && indices.contains(index++)) placeholders.insert(node);
      }
    }
  }

  // From here on copies_ holds nodes of the outer graph.
  absl::Status BuildOuter(const std::vector<int>& order, GraphModule& outer) {
    Graph& graph = outer.graph();
    copier_.SetTarget(&graph, kOperators);
    copies_.assign(copies_.size(), nullptr);
    // torch.fx reads every attribute in the outer graph, also nested graphs that only submodules use.
    const bool read_all = options_.attributes == SplitOptions::Attributes::kPass && (!options_.keep_original_order || order.empty());
    for (const Node* node : module_.graph().nodes()) {
      if (node->op() == Op::kPlaceholder) {
        const std::string target(options_.keep_original_node_names ? std::string(node->name()) : std::string(node->path()));
        SetCopy(*node, graph.CreateNode(Op::kPlaceholder, PathTarget{target}, node->args()));
      } else if (node->op() == Op::kGetAttr && read_all) {
        DDPOPT_RETURN_IF_ERROR(ReadAttribute(*node, outer));
      }
    }
    c10::List<std::string> names;
    for (const int index : order) {
      const Partition& partition = partitions_[index];
      names.push_back(partition.name);
      std::vector<Argument> args;
      for (const Node* input : partition.inputs) {
        DDPOPT_RETURN_IF_ERROR(ReadAttribute(*input, outer));
        args.emplace_back(copies_[input->id()]);
      }
      TakeApart(partition, graph.CallModule(partition.name, std::move(args)), graph);
    }
    outer.meta()[kPartitionNames] = names;
    const Node* output = module_.graph().output_node();
    if (output == nullptr) return absl::OkStatus();
    for (const Node* input : output->all_input_nodes()) DDPOPT_RETURN_IF_ERROR(ReadAttribute(*input, outer));
    Copy(*output);
    return absl::OkStatus();
  }

  // Gives a value that the outer graph doesn't have yet, an attribute, its node.
  absl::Status ReadAttribute(const Node& node, GraphModule& outer) {
    if (copies_[node.id()] != nullptr) return absl::OkStatus();
    CHECK(node.op() == Op::kGetAttr) << "%" << node.name() << " has no value in the outer graph";
    const std::string path(node.path());
    DDPOPT_RETURN_IF_ERROR(Share(node, path, outer));
    SetCopy(node, outer.graph().GetAttr(path));
    return absl::OkStatus();
  }

  // Gives each output of a partition its node in the outer graph.
  void TakeApart(const Partition& partition, Node* call, Graph& graph) {
    const auto set = [this](const Node& output, Node* value) {
      SetCopy(output, value);
      if (value->has_meta()) value->meta().type_expr.clear();
    };
    if (partition.outputs.size() == 1 && !options_.tuple_return) {
      set(*partition.outputs[0], call);
      return;
    }
    for (std::size_t i = 0; i < partition.outputs.size(); ++i) {
      const c10::IValue index(static_cast<int64_t>(i));
      set(*partition.outputs[i], graph.CreateNode(Op::kCallFunction, OpaqueTarget{"operator.getitem"}, {call, index}));
    }
  }

  const GraphModule& module_;
  const SplitOptions& options_;
  std::vector<int> partition_of_;      // by node id
  std::vector<Partition> partitions_;  // in the order of their first nodes
  std::vector<Dependence> dependences_;
  absl::flat_hash_map<std::string, const Node*> symbols_;
  std::map<std::string, absl::flat_hash_set<const Node*>> static_inputs_;  // by the metadata's key: placeholders
  std::vector<Node*> copies_;                                              // by node id: the node in the graph that is being built
  std::vector<Argument> arguments_;
  Graph::Copier copier_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<GraphModule>> SplitModule(const GraphModule& module, absl::FunctionRef<int(const Node*)> partition,
                                                         const SplitOptions& options) {
  return Splitter(module, options).Run(partition);
}

}  // namespace ddpopt::fx
