#include "ddpopt/backends/minimizer.h"

#include <algorithm>
#include <exception>
#include <fstream>
#include <sstream>
#include <utility>

#include "ATen/Context.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ddpopt/backends/compare_values.h"
#include "fx_graph/checkpoint_region.h"
#include "fx_graph/graph.h"
#include "fx_graph/passes/effects.h"
#include "fx_graph/text/json.h"
#include "interpreter/interpreter.h"

namespace ddpopt {
namespace {

using c10::IValue;

// In the metadata of a reproducer's graph.
constexpr char kInputs[] = "reproducer.inputs", kBackend[] = "reproducer.backend", kFailure[] = "reproducer.failure",
               kCompare[] = "reproducer.compare";

// "result 0: ..." and "result 1: ..." are one kind.
std::string KindOf(const std::string& failure) {
  std::string kind = failure.substr(0, failure.find(':'));
  kind.erase(std::remove_if(kind.begin(), kind.end(), [](char c) { return c >= '0' && c <= '9'; }), kind.end());
  return kind;
}

bool IsCall(const fx::Node* node) { return node->op() != fx::Op::kPlaceholder && node->op() != fx::Op::kOutput; }

// What each node gave, as an input that stands for it would: a leaf with memory of its own.
class Recorder : public Interpreter {
 public:
  Recorder(const fx::GraphModule& module, absl::flat_hash_map<const fx::Node*, IValue>* values) : Interpreter(module), values_(values) {}

 protected:
  IValue RunNode(const fx::Node& node) override {
    IValue value = Interpreter::RunNode(node);
    if (IsCall(&node) && value.isTensor() && value.toTensor().defined()) (*values_)[&node] = CloneInputs({value})[0];
    return value;
  }

 private:
  absl::flat_hash_map<const fx::Node*, IValue>* values_;
};

struct State {
  std::shared_ptr<const fx::GraphModule> module;
  std::vector<IValue> inputs;
  std::string failure;

  std::vector<fx::Node*> Calls() const {
    std::vector<fx::Node*> calls;
    for (fx::Node* node : module->graph().nodes()) {
      if (IsCall(node)) calls.push_back(node);
    }
    return calls;
  }
  std::vector<fx::Node*> Results() const {
    std::vector<fx::Node*> results;
    if (module->graph().output_node() == nullptr) return results;
    module->graph().output_node()->args().front().ForEachNode([&](fx::Node* node) {
      if (std::find(results.begin(), results.end(), node) == results.end()) results.push_back(node);
    });
    return results;
  }
};

// What a smaller graph is made of.
struct Edit {
  absl::flat_hash_set<const fx::Node*> dropped;                    // not there; inputs with their values where they are used
  absl::flat_hash_map<const fx::Node*, const fx::Node*> replaced;  // by earlier nodes
  std::vector<fx::Node*> results;                                  // empty: none
};

class Minimizer {
 public:
  Minimizer(const CompileFn& backend, const CompareOptions& compare, const MinimizeOptions& options)
      : backend_(backend), compare_(compare), options_(options) {}

  absl::StatusOr<State> Run(State state) {
    state.failure = FailureOf(backend_, *state.module, state.inputs, compare_);
    if (state.failure.empty()) return absl::FailedPreconditionError("the backend isn't wrong for this graph and these inputs");
    kind_ = KindOf(state.failure);
    state_ = std::move(state);
    Record();
    bool smaller = true;
    while (smaller && tries_ < options_.max_tries) {
      smaller = CutEnd();
      smaller |= CutBeginning();
      smaller |= DropResults();
      smaller |= DropOperators();
      smaller |= BypassOperators();
    }
    return std::move(state_);
  }

 private:
  void Record() {
    values_.clear();
    try {
      at::manual_seed(compare_.seed);
      Recorder(*state_.module, &values_).Run(CloneInputs(state_.inputs));
    } catch (const std::exception&) {
      // The failing graph runs eagerly, or it would be none; a nested graph that refuses to be looked at leaves values unknown.
    }
  }

  // Whether the edit's graph fails in the same way; then it is the state.
  bool Try(const Edit& edit) {
    if (tries_ >= options_.max_tries) return false;
    State next;
    if (!Build(edit, &next)) return false;
    if (Size(next) >= Size(state_)) return false;
    ++tries_;
    next.failure = FailureOf(backend_, *next.module, next.inputs, compare_);
    if (next.failure.empty() || KindOf(next.failure) != kind_) return false;
    state_ = std::move(next);
    Record();
    return true;
  }

  static std::pair<std::size_t, std::size_t> Size(const State& state) {
    return {state.Calls().size(), state.inputs.size() + state.Results().size()};
  }

  bool Build(const Edit& edit, State* next) const {
    const fx::GraphModule& old = *state_.module;
    const auto source = [&](const fx::Node* node) {
      for (auto found = edit.replaced.find(node); found != edit.replaced.end(); found = edit.replaced.find(node)) node = found->second;
      return node;
    };
    // What is asked for, from the results back.
    fx::Effects effects(old);
    fx::NodeTable<std::uint8_t> live(old.graph());
    for (const fx::Node* node : edit.results) live[source(node)] = true;
    std::vector<fx::Node*> order;
    for (fx::Node* node : old.graph().nodes()) order.push_back(node);
    for (auto node = order.rbegin(); node != order.rend(); ++node) {
      if (!IsCall(*node) || edit.dropped.contains(*node) || edit.replaced.contains(*node)) continue;
      if (!live.at(*node) && effects.Of(**node).pure()) continue;
      live[*node] = true;
      for (const fx::Node* input : (*node)->all_input_nodes()) live[source(input)] = true;
    }
    auto module = std::make_shared<fx::GraphModule>();
    fx::Graph& graph = module->graph();
    fx::NodeTable<fx::Node*> copies(old.graph());
    std::size_t input = 0;
    for (fx::Node* node : order) {
      const bool placeholder = node->op() == fx::Op::kPlaceholder;
      const std::size_t place = placeholder ? input++ : 0;
      if (!live.at(node) || !(placeholder || edit.dropped.contains(node))) continue;
      if (placeholder) {
        next->inputs.push_back(state_.inputs[place]);
      } else {
        const auto value = values_.find(node);
        if (value == values_.end()) return false;
        next->inputs.push_back(value->second);
      }
      copies[node] = graph.Placeholder(node->name());
    }
    const auto map = [&](fx::Node* node) -> fx::Argument { return copies.at(source(node)); };
    for (fx::Node* node : order) {
      if (!live.at(node) || !IsCall(node) || copies.at(node) != nullptr) continue;
      for (const fx::Node* used : node->all_input_nodes()) {
        if (copies.at(source(used)) == nullptr) return false;
      }
      fx::Node* copy = graph.CopyNode(*node, map);
      fx::NodeMeta meta;
      if (node->has_meta()) {
        const auto region = node->meta().custom.find(fx::kCheckpointRegion);
        if (region != node->meta().custom.end()) meta.custom.insert(*region);
      }
      copy->meta() = std::move(meta);
      copies[node] = copy;
      if (node->op() == fx::Op::kGetAttr || node->op() == fx::Op::kCallModule) {
        const auto submodule = old.GetSubmodule(node->path());
        if (submodule.ok() && module->FindSubmodule(node->path()) == nullptr && !module->AddSubmodule(node->path(), *submodule).ok())
          return false;
      }
    }
    std::vector<fx::Argument> results;
    for (const fx::Node* node : edit.results) {
      if (copies.at(source(node)) == nullptr) return false;
      results.emplace_back(copies.at(source(node)));
    }
    graph.Output(fx::Argument::Tuple(std::move(results)));
    if (!module->Lint().ok()) return false;
    next->module = std::move(module);
    return true;
  }

  // As short a beginning as fails, whose results are what the rest takes of it.
  bool CutEnd() {
    bool smaller = false;
    const auto try_first = [&](std::size_t count) {
      const std::vector<fx::Node*> calls = state_.Calls();
      Edit edit;
      absl::flat_hash_set<const fx::Node*> cut(calls.begin() + static_cast<std::ptrdiff_t>(count), calls.end());
      edit.dropped = cut;
      const std::vector<fx::Node*> old_results = state_.Results();
      for (std::size_t i = 0; i < count; ++i) {
        bool leaves = std::find(old_results.begin(), old_results.end(), calls[i]) != old_results.end();
        for (const fx::Node* user : calls[i]->users()) leaves |= cut.contains(user);
        if (leaves && values_.contains(calls[i])) edit.results.push_back(calls[i]);
      }
      return !edit.results.empty() && Try(edit);
    };
    std::size_t low = 1, high = state_.Calls().size();
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      if (try_first(middle)) {
        smaller = true;
        high = std::min(middle, state_.Calls().size());
      } else {
        low = middle + 1;
      }
    }
    return smaller;
  }

  // As late a beginning as fails, with inputs in the place of what comes before.
  bool CutBeginning() {
    bool smaller = false;
    std::size_t low = 0, high = state_.Calls().size();
    while (low + 1 < high) {
      const std::size_t middle = low + (high - low) / 2;
      const std::vector<fx::Node*> calls = state_.Calls();
      if (middle >= calls.size()) break;
      Edit edit;
      edit.dropped.insert(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(middle));
      edit.results = state_.Results();
      if (Try(edit)) {
        smaller = true;
        low = 0;
        high = state_.Calls().size();
      } else {
        high = middle;
      }
    }
    return smaller;
  }

  // Chunks of halving size, as long as one can be left out.
  template <typename Items, typename Attempt>
  bool Halve(const Items& items, const Attempt& attempt) {
    bool smaller = false;
    for (std::size_t size = std::max<std::size_t>(items().size() / 2, 1);; size /= 2) {
      for (std::size_t begin = 0; begin < items().size();) {
        const auto all = items();
        if (attempt(all, begin, std::min(begin + size, all.size()))) {
          smaller = true;  // the next chunk lies here now
          if (items().size() >= all.size()) begin += size;
        } else {
          begin += size;
        }
      }
      if (size <= 1) return smaller;
    }
  }

  bool DropResults() {
    return Halve([&] { return state_.Results(); },
                 [&](const std::vector<fx::Node*>& all, std::size_t begin, std::size_t end) {
                   Edit edit;
                   for (std::size_t i = 0; i < all.size(); ++i) {
                     if (i < begin || i >= end) edit.results.push_back(all[i]);
                   }
                   return !edit.results.empty() && Try(edit);
                 });
  }

  bool DropOperators() {
    return Halve([&] { return state_.Calls(); },
                 [&](const std::vector<fx::Node*>& all, std::size_t begin, std::size_t end) {
                   Edit edit;
                   edit.results = state_.Results();
                   edit.dropped.insert(all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end));
                   // An input that is handed back is no result.
                   std::erase_if(edit.results, [&](const fx::Node* node) { return edit.dropped.contains(node); });
                   return !edit.results.empty() && Try(edit);
                 });
  }

  // An operator's operand of the same form in its place.
  bool BypassOperators() {
    bool smaller = false;
    for (std::size_t i = 0; i < state_.Calls().size();) {
      const fx::Node* node = state_.Calls()[i];
      bool left_out = false;
      for (const fx::Node* input : std::vector<fx::Node*>(node->all_input_nodes().begin(), node->all_input_nodes().end())) {
        if (!SameForm(node, input)) continue;
        Edit edit;
        edit.results = state_.Results();
        edit.replaced[node] = input;
        if (Try(edit)) {
          left_out = smaller = true;
          break;
        }
      }
      if (!left_out) ++i;
    }
    return smaller;
  }

  bool SameForm(const fx::Node* a, const fx::Node* b) const {
    const auto tensor = [&](const fx::Node* node) -> at::Tensor {
      if (node->op() == fx::Op::kPlaceholder) {
        std::size_t place = 0;
        for (const fx::Node* placeholder : state_.module->graph().FindNodes(fx::Op::kPlaceholder)) {
          if (placeholder == node) return state_.inputs[place].isTensor() ? state_.inputs[place].toTensor() : at::Tensor();
          ++place;
        }
      }
      const auto found = values_.find(node);
      return found == values_.end() ? at::Tensor() : found->second.toTensor();
    };
    const at::Tensor left = tensor(a), right = tensor(b);
    return left.defined() && right.defined() && left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type();
  }

  const CompileFn& backend_;
  const CompareOptions compare_;
  const MinimizeOptions options_;
  State state_;
  absl::flat_hash_map<const fx::Node*, IValue> values_;  // of the state's nodes that give tensors
  std::string kind_;
  int tries_ = 0;
};

}  // namespace

absl::StatusOr<Reproducer> LiftAttributes(const fx::GraphModule& module, const std::vector<IValue>& inputs) {
  Reproducer result;
  std::shared_ptr<fx::GraphModule> lifted = module.Clone();
  fx::Graph& graph = lifted->graph();
  const std::vector<fx::Node*> placeholders = graph.FindNodes(fx::Op::kPlaceholder);
  if (placeholders.size() != inputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(inputs.size(), " inputs for a graph that takes ", placeholders.size()));
  }
  result.inputs = inputs;
  // After the last placeholder, wherever that is.
  fx::Node* first = nullptr;
  for (fx::Node* node : graph.nodes()) {
    if (node->op() != fx::Op::kPlaceholder && first == nullptr) first = node;
  }
  for (fx::Node* placeholder : placeholders) {
    if (first != nullptr && first->IsBefore(placeholder)) DDPOPT_RETURN_IF_ERROR(first->Prepend(placeholder));
  }
  absl::flat_hash_map<const c10::TensorImpl*, fx::Node*> made;
  for (fx::Node* node : graph.FindNodes(fx::Op::kGetAttr)) {
    const fx::GraphModule::Attr* attr = lifted->FindAttr(node->path());
    if (attr == nullptr) continue;  // a nested graph
    fx::Node* placeholder = nullptr;
    if (attr->value.isTensor()) placeholder = made[attr->value.toTensor().unsafeGetTensorImpl()];
    if (placeholder == nullptr) {
      const auto scope = graph.InsertingBefore(first);
      placeholder = graph.Placeholder(node->name());
      result.inputs.push_back(attr->value);
      if (attr->value.isTensor()) made[attr->value.toTensor().unsafeGetTensorImpl()] = placeholder;
    }
    node->ReplaceAllUsesWith(placeholder);
    const bool was_first = node == first;
    if (was_first) first = node->next();
    DDPOPT_RETURN_IF_ERROR(graph.EraseNode(node));
  }
  std::vector<std::string> paths;
  for (const auto& [path, attr] : lifted->attrs()) paths.push_back(path);
  for (const std::string& path : paths) DDPOPT_RETURN_IF_ERROR(lifted->DeleteAttr(path));
  DDPOPT_RETURN_IF_ERROR(lifted->Lint());
  result.module = std::move(lifted);
  return result;
}

absl::StatusOr<Reproducer> Minimize(const Reproducer& failing, const CompileFn& backend, const MinimizeOptions& options) {
  DDPOPT_ASSIGN_OR_RETURN(Reproducer result, LiftAttributes(*failing.module, failing.inputs));
  result.backend = failing.backend;
  result.compare = failing.compare;
  State state;
  state.module = result.module;
  state.inputs = result.inputs;
  DDPOPT_ASSIGN_OR_RETURN(state, Minimizer(backend, failing.compare, options).Run(std::move(state)));
  result.module = state.module;
  result.inputs = std::move(state.inputs);
  result.failure = std::move(state.failure);
  return result;
}

absl::Status WriteReproducer(const Reproducer& reproducer, const std::string& path) {
  const std::shared_ptr<fx::GraphModule> module = reproducer.module->Clone();
  c10::impl::GenericList inputs(c10::AnyType::get());
  for (const IValue& input : reproducer.inputs) inputs.push_back(input);
  module->meta()[kInputs] = inputs;
  module->meta()[kBackend] = reproducer.backend;
  module->meta()[kFailure] = reproducer.failure;
  module->meta()[kCompare] = c10::ivalue::Tuple::create(
      {IValue(reproducer.compare.rtol), IValue(reproducer.compare.atol), IValue(static_cast<int64_t>(reproducer.compare.seed))});
  fx::ToJsonOptions options;
  options.max_data_bytes = int64_t{1} << 30;
  DDPOPT_ASSIGN_OR_RETURN(const std::string json, fx::ToJson(*module, options));
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << json << "\n";
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("can't write ", path));
  return absl::OkStatus();
}

absl::StatusOr<Reproducer> ReadReproducer(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("can't open ", path));
  std::ostringstream text;
  text << file.rdbuf();
  absl::StatusOr<std::shared_ptr<fx::GraphModule>> module = fx::ModuleFromJson(text.str());
  if (!module.ok()) return Annotate(module.status(), path);
  const auto& meta = (*module)->meta();
  const auto has = [&](const char* key, const auto& is) { return meta.contains(key) && is(meta.at(key)); };
  const auto is_string = [](const IValue& value) { return value.isString(); };
  const auto is_compare = [](const IValue& value) {
    if (!value.isTuple() || value.toTupleRef().elements().size() != 3) return false;
    const auto& elements = value.toTupleRef().elements();
    return elements[0].isDouble() && elements[1].isDouble() && elements[2].isInt();
  };
  if (!has(kInputs, [](const IValue& value) { return value.isList(); }) || !has(kBackend, is_string) || !has(kFailure, is_string) ||
      !has(kCompare, is_compare)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds a graph, but no inputs and backend: it is no reproducer"));
  }
  Reproducer result;
  result.backend = meta.at(kBackend).toStringRef();
  result.failure = meta.at(kFailure).toStringRef();
  for (const IValue& input : meta.at(kInputs).toListRef()) result.inputs.push_back(input);
  const auto& compare = meta.at(kCompare).toTupleRef().elements();
  result.compare = {compare[0].toDouble(), compare[1].toDouble(), static_cast<std::uint64_t>(compare[2].toInt())};
  if ((*module)->graph().FindNodes(fx::Op::kPlaceholder).size() != result.inputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", result.inputs.size(), " inputs don't fit the graph's placeholders"));
  }
  result.module = *std::move(module);
  return result;
}

}  // namespace ddpopt
