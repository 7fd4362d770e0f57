// What it costs to run a captured graph, beside calling its operators directly in the same run. See README.md and --help.

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/add.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/relu.h"
#include "ATen/ops/view.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "benchmarks/measure.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/capture/tracer/trace.h"
#include "ddpopt/capture/tracer/values.h"
#include "ddpopt/ddp/captured_forward.h"
#include "interpreter/interpreter.h"
#include "nlohmann/json.hpp"
#include "testing/exported_json.h"
#include "testing/models/gpt2.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

using benchmarks::Keep;
using benchmarks::Median;
using benchmarks::NowNs;
using benchmarks::NsSince;

constexpr char kHelp[] =
    R"(Measures what running a captured graph costs per operator, more than calling the same operators directly: medians over the repeats.

  capture [--json] [--repeat=15] [--help]

  --json    the last line of standard output is one JSON object: {"real_add_ns", "results": [{"name", "nodes", "direct_ns_per_node",
            "graph_overhead_ns_per_node", "exported_...", "ddp_..."}, ...]}
  --repeat  how often each figure is taken

Each case is a forward of small tensors, called directly from C++ (at::add and the like, or the module's forward), and in the same repeat as
  graph     the graph of the same operators, run as compiled pieces are
  exported  the same as torch.export writes it, with its inputs checked (ExportedProgram::RunFlat); of chains
  ddp       the canonical graph as DistributedDataParallel runs it: guards, outer graph, piece; without its Reducer
The overhead of a repeat is its time less the direct one's, divided by the nodes that call operators.

  adds      500 additions of 8 floats             linears   200 times linear and relu, on 4 rows of 8
  views     500 views of 8 floats                 gpt2      two blocks of a GPT-2 (16 wide) with its embeddings and loss, dropout on
each without and with gradients recorded; freeing what was recorded counts too.

Times are the thread's processor time. Scale, of the same run: real_add_ns, a boxed dispatcher add of 8 floats.
)";

using Forward = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// A forward as the module that DistributedDataParallel would be given.
struct Chain : torch::nn::Module {
  explicit Chain(std::vector<at::Tensor> weights) {
    for (at::Tensor& weight : weights) register_parameter(absl::StrCat("w", parameters().size()), std::move(weight));
  }
};

struct Way {
  std::string name;
  std::function<at::Tensor()> run;
  std::vector<double> overheads = {};
};

struct Case {
  std::string name;
  bool grad = false;
  std::function<at::Tensor()> direct;
  std::vector<Way> ways;
  int64_t nodes = 0;
  std::vector<double> direct_ns = {};
  // What the ways need.
  std::shared_ptr<torch::nn::Module> module;
  std::vector<std::shared_ptr<void>> kept = {};
};

int64_t OperatorNodes(const fx::GraphModule& module) {
  return std::count_if(module.graph().nodes().begin(), module.graph().nodes().end(),
                       [](const fx::Node* node) { return node->is_operator(); });
}

// The graph as torch.export writes it; its parameters become inputs, as they have no data there.
std::string ExportedText(const fx::GraphModule& module, std::vector<at::Tensor>* inputs) {
  using nlohmann::json;
  testing::ExportedJson program;
  const auto argument = [](const fx::Argument& value) -> json {
    if (value.is_node()) return testing::Tensor(std::string(value.node()->name()));
    if (value.kind() == fx::Argument::Kind::kConstant && value.constant().isIntList()) return {{"as_ints", value.constant().toIntVector()}};
    CHECK(value.kind() == fx::Argument::Kind::kConstant && value.constant().isInt());
    return {{"as_int", value.constant().toInt()}};
  };
  for (const fx::Node* node : module.graph().nodes()) {
    const std::string name(node->name());
    if (node->op() == fx::Op::kOutput) {
      program.Output(argument(node->args()[0]));
      continue;
    }
    if (!node->is_operator()) {
      if (node->op() == fx::Op::kGetAttr) inputs->push_back(module.FindAttr(node->path())->value.toTensor());
      const at::IntArrayRef sizes = node->meta().val.toTensor().sizes();
      program.Input(name, std::vector<json>(sizes.begin(), sizes.end()));
      continue;
    }
    const c10::OperatorHandle& op = node->operator_handle();
    std::vector<testing::ExportedJson::Argument> arguments;
    for (std::size_t i = 0; i < node->args().size(); ++i)
      arguments.push_back({op.schema().arguments()[i].name(), argument(node->args()[i])});
    const std::string overload = op.operator_name().overload_name.empty() ? "default" : op.operator_name().overload_name;
    program.Call(absl::StrCat("torch.ops.aten.", op.operator_name().name.substr(6), ".", overload), arguments, {testing::Tensor(name)});
  }
  return program.Text();
}

// `forward` reads the parameters of `module`. `chain`: made of at:: calls with a graph that ExportedText can write.
Case MakeCase(const std::string& name, bool grad, const std::shared_ptr<torch::nn::Module>& module, const std::vector<at::Tensor>& inputs,
              const Forward& forward, bool chain) {
  Case result;
  result.name = absl::StrCat(name, grad ? "_grad" : "_no_grad");
  result.grad = grad;
  result.module = module;
  result.direct = [forward, inputs] { return forward(inputs); };
  const c10::AutoGradMode mode(grad);
  const absl::StatusOr<TracedModule> traced = TraceModule(*module, inputs, FakeTensorMode::Create(), forward, {.canonicalize = false});
  CHECK(traced.ok()) << traced.status();
  result.nodes = OperatorNodes(*traced->module);
  const std::vector<c10::IValue> values(inputs.begin(), inputs.end());
  result.ways.push_back({"graph", [graph = traced->module, values] { return CallGraphModule(*graph, values).toTensor(); }});
  if (chain) {
    std::vector<at::Tensor> all = inputs;
    const auto program = ParseExportedProgram(ExportedText(*traced->module, &all));
    CHECK(program.ok()) << program.status();
    CHECK_EQ(OperatorNodes(*(*program)->module()), result.nodes);
    result.ways.push_back({"exported", [program = *program, all = std::vector<c10::IValue>(all.begin(), all.end())] {
                             return program->RunFlat(all)[0].toTensor();
                           }});
  }
  CapturedForwardOptions options;
  options.backend = EagerBackend();
  options.retrace_every = 0;
  const auto captured = std::make_shared<CapturedForward>(module, options);
  const ValueForward value_forward = [forward](const c10::IValue& arguments) {
    return ToValue(forward(std::get<0>(FromValue<std::tuple<std::vector<at::Tensor>>>(arguments))));
  };
  const c10::IValue arguments = ToValue(std::make_tuple(inputs));
  const absl::Status status = captured->CaptureFirst(arguments, value_forward);
  CHECK(status.ok()) << status;
  result.ways.push_back({"ddp", [captured, arguments, value_forward] { return captured->Run(arguments, value_forward).toTensor(); }});
  return result;
}

std::vector<Case> MakeCases() {
  std::vector<Case> cases;
  for (const bool grad : {false, true}) {
    const at::Tensor x = at::ones({8});
    const auto add = std::make_shared<Chain>(std::vector<at::Tensor>{at::ones({8})});
    cases.push_back(MakeCase(
        "adds", grad, add, {x},
        [weight = add->parameters()[0]](const std::vector<at::Tensor>& in) {
          at::Tensor y = in[0];
          for (int i = 0; i < 500; ++i) y = at::add(y, weight);
          return y;
        },
        true));
    cases.push_back(MakeCase(
        "views", grad, std::make_shared<Chain>(std::vector<at::Tensor>{at::ones({8})}), {at::ones({8}).set_requires_grad(grad)},
        [](const std::vector<at::Tensor>& in) {
          at::Tensor y = in[0];
          for (int i = 0; i < 250; ++i) y = y.view({2, 4}).view({8});
          return y;
        },
        true));
    const auto linear = std::make_shared<Chain>(std::vector<at::Tensor>{at::randn({8, 8}), at::randn({8})});
    cases.push_back(MakeCase(
        "linears", grad, linear, {at::ones({4, 8})},
        [weight = linear->parameters()[0], bias = linear->parameters()[1]](const std::vector<at::Tensor>& in) {
          at::Tensor y = in[0];
          for (int i = 0; i < 200; ++i) y = at::relu(at::linear(y, weight, bias));
          return y;
        },
        true));
    const auto net = std::make_shared<testing::Gpt2Impl>(testing::Gpt2Config{});
    cases.push_back(MakeCase(
        "gpt2", grad, net, {at::randint(0, 29, {2, 8}, at::kLong), at::randint(0, 29, {2, 8}, at::kLong)},
        [net](const std::vector<at::Tensor>& in) { return net->forward(in[0], in[1]); }, false));
  }
  return cases;
}

// Nanoseconds of one call, over as many as take about a millisecond or two.
double CallNs(const std::function<at::Tensor()>& run, int calls) {
  const double start = NowNs();
  for (int i = 0; i < calls; ++i) Keep(run());
  return NsSince(start) / calls;
}

int Main(int argc, char** argv) {
  benchmarks::RunOptions options{.repeat = 15};
  if (const auto status = benchmarks::ParseRunOptions(argc, argv, kHelp, &options)) return *status;

  // Fast bins keep what one way frees, and whoever next asks for a larger block tidies them all up, at its own cost.
  mallopt(M_MXFAST, 0);
  at::set_num_threads(1);  // what a call costs, not how kernels share work
  at::manual_seed(1);
  std::vector<Case> cases = MakeCases();
  std::vector<double> adds;
  constexpr int kCalls = 10;
  for (int i = -1; i < options.repeat; ++i) {  // the first is not counted
    benchmarks::ShowProgress(absl::StrCat("repeat ", i + 1, " of ", options.repeat));
    {
      const c10::NoGradGuard no_grad;
      const double add = benchmarks::RealAddNs();
      if (i >= 0) adds.push_back(add);
    }
    // Alternating call by call, so that a busy machine disturbs all alike.
    for (Case& each : cases) {
      const c10::AutoGradMode mode(each.grad);
      double direct = 0;
      std::vector<double> ways(each.ways.size());
      for (int call = 0; call < kCalls; ++call) {
        direct += CallNs(each.direct, 1);
        for (std::size_t way = 0; way < ways.size(); ++way) ways[way] += CallNs(each.ways[way].run, 1);
      }
      if (i < 0) continue;
      const double scale = 1.0 / kCalls / static_cast<double>(each.nodes);
      each.direct_ns.push_back(direct * scale);
      for (std::size_t way = 0; way < ways.size(); ++way) each.ways[way].overheads.push_back((ways[way] - direct) * scale);
    }
  }
  benchmarks::ShowProgress("");

  const double add = Median(adds);
  const auto extremes = [](const std::vector<double>& values) {
    return std::make_pair(*std::min_element(values.begin(), values.end()), *std::max_element(values.begin(), values.end()));
  };
  if (options.json) {
    nlohmann::ordered_json result;
    result["real_add_ns"] = add;
    result["results"] = nlohmann::ordered_json::array();
    for (const Case& each : cases) {
      nlohmann::ordered_json entry;
      entry["name"] = each.name;
      entry["nodes"] = each.nodes;
      entry["direct_ns_per_node"] = Median(each.direct_ns);
      for (const Way& way : each.ways) entry[way.name + "_overhead_ns_per_node"] = Median(way.overheads);
      for (const Way& way : each.ways) {
        const auto [lowest, highest] = extremes(way.overheads);
        entry["spread"][way.name + "_overhead_ns_per_node"] = {lowest, highest};
      }
      result["results"].push_back(std::move(entry));
    }
    std::cout << result.dump() << "\n";
    return 0;
  }
  std::printf("%-18s%-10s%8s%14s%12s%10s%10s%12s\n", "", "", "nodes", "direct ns", "overhead", "lowest", "highest", "of an add");
  for (const Case& each : cases) {
    for (const Way& way : each.ways) {
      const auto [lowest, highest] = extremes(way.overheads);
      std::printf("%-18s%-10s%8lld%14.1f%12.1f%10.1f%10.1f%12.3f\n", each.name.c_str(), way.name.c_str(),
                  static_cast<long long>(each.nodes), Median(each.direct_ns), Median(way.overheads), lowest, highest,
                  Median(way.overheads) / add);
    }
  }
  std::printf("real_add_ns %.1f\n", add);
  return 0;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
