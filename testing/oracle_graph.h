#ifndef DDPOPT_TESTING_ORACLE_GRAPH_H_
#define DDPOPT_TESTING_ORACLE_GRAPH_H_

// Graphs that were recorded from PyTorch's DDPOptimizer (files graphs/<model>.<form>.<n>.json.gz of a ddp_buckets folder) as GraphModules.
//
//   DDPOPT_ASSIGN_OR_RETURN(testing::OracleGraph oracle, testing::LoadOracleGraph("graphs/S_Cond.dynamo.0.json.gz"));
//   oracle.module->graph().ToString();
//
// What becomes of a record:
// - names, order, arguments and keyword order are exactly the recorded ones;
// - call_function: an operator of the dispatcher ("aten.relu.default") is an OperatorTarget, a name without dots ("cond") a
//   HigherOrderTarget, and everything else an OpaqueTarget whose text is what str(graph) prints ("operator.add", "torch._C._nn.linear");
// - a value's recorded form is meta().val: a hollow tensor (fx_graph/tensor_meta.h) on the CPU with the recorded storage size, a tuple of
//   such, an int; a symbolic one leaves val None and its text in meta().custom["symbolic"], of several one after another ("; ");
// - placeholders of the "dynamo" form have the type_expr that Dynamo gives them;
// - parameters and buffers of get_attr nodes are attributes, nested graphs of get_attr nodes ("subgraph") are submodules under their target;
// - a call_module's module is a submodule with the recorded parameters as attributes and a graph whose one call has the opaque target
//   "<class>.forward", so that running it is refused by name.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/node.h"

namespace ddpopt::testing {

struct OracleParameter {
  std::string name;           // what the buckets list: the target of a placeholder or get_attr, "weight" within a module
  int64_t storage_bytes = 0;  // of the whole storage
  bool requires_grad = false;
  bool ignored = false;  // _ddp_ignored
};

struct OracleModule {
  std::string class_name;
  std::vector<OracleParameter> parameters;  // in named_parameters() order
};

struct OracleGraph {
  std::string model, form;
  int64_t index = 0;
  std::shared_ptr<fx::GraphModule> module;
  // By node name, of the placeholders and get_attr nodes of the outer graph that are parameters. (meta().is_parameter tells the same of any
  // node, nested graphs included.)
  absl::flat_hash_map<std::string, OracleParameter> parameters;
  // By the target of the call_module nodes.
  absl::flat_hash_map<std::string, OracleModule> modules;
};

// Errors: InvalidArgument with the place in the document ("nodes[12].a[1].tuple: ...") or, if it is no JSON, line and column.
absl::StatusOr<OracleGraph> ParseOracleGraph(absl::string_view json);
// Of a file, gzipped or not.
absl::StatusOr<OracleGraph> LoadOracleGraph(const std::string& path);

// The node's kind and target as the records write them: "function:_operator.add", "function:aten.relu.default", "method:view",
// "module:submod_0", "get_attr:w".
std::string OracleTarget(const fx::Node& node);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_ORACLE_GRAPH_H_
