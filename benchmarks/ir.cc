// What the graph IR costs per node, beside what LibTorch and a plain list cost in the same run. See README.md and --help.

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/grad_mode.h"
#include "ATen/core/stack.h"
#include "ATen/ops/ones.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/logging.h"
#include "benchmarks/measure.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/passes/dead_code.h"
#include "fx_graph/split_module.h"
#include "fx_graph/text/parse.h"
#include "interpreter/interpreter.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

using benchmarks::Keep;
using benchmarks::Median;
using benchmarks::NowNs;
using benchmarks::NsSince;
using benchmarks::Operator;
using benchmarks::RealAddNs;

constexpr char kHelp[] = R"(Measures the graph IR: nanoseconds per node, medians over the repeats.

  ir [--json] [--nodes=1000,100000,1000000] [--repeat=5] [--help]

  --json    the last line of standard output is one JSON object: {"results": [...], "real_add_ns", "list_walk_ns_per_node"}
  --nodes   sizes of the graphs
  --repeat  how often each figure is taken

build     CallFunction on adds of the two nodes before (every fourth node a relu), arguments included
iterate   a walk over graph.nodes() that reads nothing
split     SplitModule in 100 parts
dce       EliminateDeadCode where every tenth node is dead
copy      Graph::CopyFrom into an empty graph
print     Graph::ToString;  parse: ParseGraph of that text;  lint: Graph::Lint
bytes     of heap that the built graph holds
interpreter overhead: a chain of aten.contiguous run by the Interpreter, less the same boxed calls in a loop

Times are the thread's processor time. Scale, of the same run: real_add_ns, a boxed dispatcher add of 8 floats; list_walk_ns_per_node,
a plain intrusive list of 100,000 nodes.
)";

double ListWalkNs() {
  constexpr int kNodes = 100000;
  struct Item {
    Item* next;
    Item* prev;
    std::int64_t payload;
  };
  std::vector<std::unique_ptr<Item>> items;
  items.reserve(kNodes);
  Item* last = nullptr;
  for (int i = 0; i < kNodes; ++i) {
    items.push_back(std::make_unique<Item>(Item{nullptr, last, i}));
    if (last != nullptr) last->next = items.back().get();
    last = items.back().get();
  }
  constexpr int kWalks = 20;
  const double start = NowNs();
  for (int walk = 0; walk < kWalks; ++walk) {
    for (const Item* item = items.front().get(); item != nullptr; item = item->next) Keep(item);
  }
  return NsSince(start) / kWalks / kNodes;
}

// `dead_every` 0: no dead nodes.
void Build(fx::Graph& graph, std::int64_t nodes, std::int64_t dead_every) {
  static const c10::OperatorHandle add = Operator("aten::add", "Tensor");
  static const c10::OperatorHandle relu = Operator("aten::relu", "");
  fx::Node* before = graph.Placeholder("x");
  fx::Node* last = before;
  for (std::int64_t i = 2; i < nodes; ++i) {
    if (dead_every != 0 && i % dead_every == 0) {
      graph.CallFunction(relu, {last});
      continue;
    }
    fx::Node* node = i % 4 == 0 ? graph.CallFunction(relu, {last}) : graph.CallFunction(add, {last, before});
    before = last;
    last = node;
  }
  graph.Output(last);
}

std::size_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

double InterpreterOverheadNs(std::int64_t nodes) {
  static const c10::OperatorHandle contiguous = Operator("aten::contiguous", "");
  fx::GraphModule module;
  fx::Node* last = module.graph().Placeholder("x");
  const std::int64_t calls = nodes - 2;
  for (std::int64_t i = 0; i < calls; ++i) last = module.graph().CallFunction(contiguous, {last});
  module.graph().Output(last);
  const c10::IValue x(at::ones({8}));

  Interpreter interpreter(module);
  Keep(interpreter.Run({x}));  // makes its plan
  double start = NowNs();
  Keep(interpreter.Run({x}));
  const double interpreted = NsSince(start);

  torch::jit::Stack stack;
  const c10::IValue format = contiguous.schema().arguments()[1].default_value().value();
  start = NowNs();
  c10::IValue value = x;
  for (std::int64_t i = 0; i < calls; ++i) {
    stack.push_back(std::move(value));
    stack.push_back(format);
    contiguous.callBoxed(stack);
    value = std::move(stack.back());
    stack.clear();
  }
  const double direct = NsSince(start);
  return (interpreted - direct) / static_cast<double>(nodes);
}

struct Metric {
  const char* name;
  std::vector<double> values;
};

enum MetricIndex { kBuild, kIterate, kSplit, kDce, kCopy, kPrint, kParse, kLint, kBytes, kInterpreter, kNumMetrics };

struct Measured {
  std::int64_t nodes;
  std::vector<Metric> metrics = {{"build_ns_per_node", {}}, {"iterate_ns_per_node", {}},
                                 {"split_ns_per_node", {}}, {"dce_ns_per_node", {}},
                                 {"copy_ns_per_node", {}},  {"print_ns_per_node", {}},
                                 {"parse_ns_per_node", {}}, {"lint_ns_per_node", {}},
                                 {"bytes_per_node", {}},    {"interpreter_overhead_ns_per_node", {}}};
};

void Measure(Measured& measured) {
  const std::int64_t nodes = measured.nodes;
  const double per_node = 1.0 / static_cast<double>(nodes);
  const auto take = [&](MetricIndex index, const std::function<void()>& run) {
    const double start = NowNs();
    run();
    measured.metrics[index].values.push_back(NsSince(start) * per_node);
  };
  fx::GraphModule module;
  const std::size_t heap = HeapBytes();
  take(kBuild, [&] { Build(module.graph(), nodes, 0); });
  measured.metrics[kBytes].values.push_back(static_cast<double>(HeapBytes() - heap) * per_node);
  const std::int64_t walks = std::max<std::int64_t>(1, 1000000 / nodes);
  take(kIterate, [&] {
    for (std::int64_t walk = 0; walk < walks; ++walk) {
      for (const fx::Node* node : module.graph().nodes()) Keep(node);
    }
  });
  measured.metrics[kIterate].values.back() /= static_cast<double>(walks);
  take(kLint, [&] { CHECK(module.graph().Lint().ok()) << module.graph().Lint(); });
  {
    fx::Graph copy;
    take(kCopy, [&] { copy.CopyFrom(module.graph()); });
    CHECK(copy.size() == module.graph().size());
  }
  {
    std::string text;
    take(kPrint, [&] { text = module.graph().ToString(); });
    std::unique_ptr<fx::Graph> parsed;
    take(kParse, [&] {
      auto result = fx::ParseGraph(text);
      CHECK(result.ok()) << result.status();
      parsed = *std::move(result);
    });
    CHECK(parsed->size() == module.graph().size());
  }
  {
    fx::NodeTable<int> part(module.graph());
    std::int64_t index = 0;
    for (const fx::Node* node : module.graph().nodes()) part[node] = static_cast<int>(index++ * 100 / nodes);
    std::shared_ptr<fx::GraphModule> split;
    take(kSplit, [&] {
      auto result = fx::SplitModule(module, [&](const fx::Node* node) { return part.at(node); });
      CHECK(result.ok()) << result.status();
      split = *std::move(result);
    });
    CHECK(split->submodules().size() == 100) << split->submodules().size();
  }
  {
    fx::GraphModule dead;
    Build(dead.graph(), nodes, 10);
    take(kDce, [&] {
      const auto changed = fx::EliminateDeadCode(dead);
      CHECK(changed.ok()) << changed.status();
    });
    CHECK(dead.graph().size() < module.graph().size());
  }
  measured.metrics[kInterpreter].values.push_back(InterpreterOverheadNs(nodes));
}

int Main(int argc, char** argv) {
  benchmarks::RunOptions options{.repeat = 5};
  std::vector<Measured> measured;
  std::string sizes = "1000,100000,1000000";
  Flags flags;
  flags.Text("nodes", &sizes, "numbers of nodes, such as 1000,100000");
  if (const auto status = benchmarks::ParseRunOptions(argc, argv, kHelp, &options, std::move(flags))) return *status;
  for (const absl::string_view size : absl::StrSplit(sizes, ',')) {
    measured.emplace_back();
    if (!absl::SimpleAtoi(size, &measured.back().nodes) || measured.back().nodes < 1000) {
      std::cerr << "--nodes takes numbers of at least 1000, not \"" << size << "\"\n";
      return 2;
    }
  }

  // Memory that one graph gave back serves the next: handing out fresh pages is the kernel's work, and would be measured at some sizes
  // only.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  c10::NoGradGuard no_grad;
  std::vector<double> adds;
  std::vector<double> walks;
  RealAddNs();
  // Interleaved, so that a busy machine disturbs all figures alike.
  for (int i = 0; i < options.repeat; ++i) {
    for (Measured& size : measured) {
      benchmarks::ShowProgress(absl::StrCat("repeat ", i + 1, " of ", options.repeat, ", ", size.nodes, " nodes"));
      adds.push_back(RealAddNs());
      walks.push_back(ListWalkNs());
      Measure(size);
    }
  }
  benchmarks::ShowProgress("");

  const double add = Median(adds);
  const double walk = Median(walks);
  if (options.json) {
    nlohmann::ordered_json result;
    result["results"] = nlohmann::ordered_json::array();
    for (const Measured& size : measured) {
      nlohmann::ordered_json entry;
      entry["nodes"] = size.nodes;
      for (const Metric& metric : size.metrics) entry[metric.name] = Median(metric.values);
      result["results"].push_back(std::move(entry));
    }
    result["real_add_ns"] = add;
    result["list_walk_ns_per_node"] = walk;
    std::cout << result.dump() << "\n";
    return 0;
  }
  std::printf("%-34s", "nodes");
  for (const Measured& size : measured) std::printf("%12lld", static_cast<long long>(size.nodes));
  std::printf("%14s\n", "of an add");
  for (int metric = 0; metric < kNumMetrics; ++metric) {
    std::printf("%-34s", measured[0].metrics[metric].name);
    for (const Measured& size : measured) std::printf("%12.1f", Median(size.metrics[metric].values));
    if (metric != kBytes) std::printf("%14.3f", Median(measured.back().metrics[metric].values) / add);
    std::printf("\n");
  }
  std::printf("real_add_ns %.1f, list_walk_ns_per_node %.2f\n", add, walk);
  return 0;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
