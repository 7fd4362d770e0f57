#ifndef DDPOPT_CAPTURE_PT2_EXPORTED_PROGRAM_H_
#define DDPOPT_CAPTURE_PT2_EXPORTED_PROGRAM_H_

// A model that was exported from Python with torch.export (2.11 to 2.15), as a graph with its weights, and as something to call.
//
//   DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<ExportedProgram> program, LoadExportedProgram("model.pt2"));
//   std::vector<c10::IValue> outputs = program->RunFlat({x, y});      // throws c10::Error, as modules do
//   outputs[0].toTensor().backward();                                  // into the parameters' .grad
//
// What becomes of an archive:
// - module(): its graph. User inputs are placeholders, in flat tree order, values that the export fixed (numbers, strings, None) included.
//   Parameters, buffers and constants are attributes under their own names, read by get_attr nodes just before their first use. Nested
//   graphs of higher-order operators are submodules. A new value of a buffer or an input that the export's signature tells of is written
//   back by aten.copy_ at the end of the graph, so that the graph does all that the program does. Its output is one value if the program
//   returns one, else a tuple of the flat values.
// - Nodes have the archive's names (a name that Python keeps for itself gets a suffix), their values' recorded forms in meta().val (open
//   sizes as in the export's example, and the symbolic form in meta().custom["symbolic"]), stack traces and module stacks.
// - An operator that this LibTorch doesn't know becomes an opaque target, which is refused by name when it is run.
//
// A program may be called by several threads at once if it writes no buffers.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "ddpopt/capture/pt2/guard.h"
#include "ddpopt/capture/pt2/sym_expr.h"
#include "ddpopt/capture/pt2/tree_spec.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

namespace pt2 {
class ProgramReader;
}

struct ProgramInput {
  enum class Kind { kTensor, kSymbolic, kConstant };
  std::string name;
  Kind kind = Kind::kTensor;
  // Of a tensor: one expression a dimension. Of a symbolic int: its expression alone.
  std::vector<pt2::SymExpr> sizes;
  // Of a tensor. Of a symbolic number: Long, Double or Bool, for int, float and bool.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::IValue constant;  // what an input of kind kConstant must be
};

// Null: no bound.
struct SymbolRange {
  absl::optional<int64_t> min;
  absl::optional<int64_t> max;
};

class ExportedProgram {
 public:
  const std::shared_ptr<fx::GraphModule>& module() const { return module_; }

  // Names and tensors, in the order of the archive's signature (PyTorch's named_parameters()), each tensor once, under its first name. They
  // are the very tensors of module()'s attributes. Of a graph file without weights they have no data.
  struct NamedTensor {
    std::string name;
    at::Tensor tensor;
  };
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  struct Buffer {
    std::string name;
    at::Tensor tensor;
    bool persistent = true;
  };
  const std::vector<Buffer>& buffers() const { return buffers_; }
  const std::vector<NamedTensor>& constants() const { return constants_; }
  // Further names of what is in one of these lists, with the name that it has there.
  const std::vector<std::pair<std::string, std::string>>& tied() const { return tied_; }
  // A graph file doesn't tell which names are one tensor: each is a parameter of its own. What it probably meant, for Tie(): parameters
  // that the graph doesn't use (torch.export uses a tied one by one of its names) and that have the form of one single parameter that it
  // does use, each with that one. Empty for an archive, which tells.
  std::vector<std::pair<std::string, std::string>> LikelyTied() const;
  // Makes two parameters one, with the tensor of the second, under the name that comes first in parameters(). Errors: NotFound;
  // InvalidArgument for two that are one already, and for parameters of other form, dtype or requires_grad.
  absl::Status Tie(absl::string_view name, absl::string_view with);
  // Buffers and inputs that a run writes, by name.
  std::vector<std::string> mutated_buffers() const;
  std::vector<std::string> mutated_inputs() const;

  const std::vector<ProgramInput>& inputs() const { return inputs_; }
  const TreeSpec& in_tree() const { return in_tree_; }  // ((args...), {kwargs})
  const TreeSpec& out_tree() const { return out_tree_; }
  const std::map<std::string, SymbolRange>& symbol_ranges() const { return symbol_ranges_; }
  // Conditions on the inputs beside ranges and equalities, in Python: "L['x'].size()[0] % 2 == 0".
  const std::vector<std::string>& guards() const { return guards_; }
  const std::string& torch_version() const { return torch_version_; }

  // The values of the symbols for these flat inputs. Error: InvalidArgument naming input, dimension, value and what is allowed: another
  // number of inputs, dtype or size, a size outside its range or against an equality, another value of a fixed input, a guard that doesn't
  // hold. Unimplemented: a guard that is not understood.
  absl::StatusOr<pt2::SymbolValues> BindInputs(absl::Span<const c10::IValue> inputs) const;
  // OK if every node can be executed and every guard is understood; else Unimplemented naming the first that can't or isn't.
  absl::Status CheckExecutable() const;
  // OK if every parameter, buffer and constant has data.
  absl::Status CheckData() const;

  // The program on flat inputs, in tree order (fixed values included); gives the flat outputs. Runs under the caller's grad mode;
  // parameters require gradients as recorded. Buffers and inputs are written as the Python program writes them. Throws c10::Error, with
  // BindInputs' message among others.
  std::vector<c10::IValue> RunFlat(std::vector<c10::IValue> inputs) const;
  // The same in tree form: positional arguments, and keyword arguments by name.
  c10::IValue Run(std::vector<c10::IValue> args, const std::map<std::string, c10::IValue>& kwargs = {}) const;

  // Names to tensors, those of tied() included.
  absl::optional<at::Tensor> FindTensor(absl::string_view name) const;
  // Takes the place of a parameter, buffer or constant that has no data yet, or lets another be trained in its place; every name of a tied
  // one follows. Errors: NotFound; InvalidArgument if shape or dtype differ. requires_grad becomes what it was.
  absl::Status SetTensor(absl::string_view name, at::Tensor tensor);

 private:
  friend class pt2::ProgramReader;
  // Placeholders and get_attr nodes whose memory is written.
  std::set<const fx::Node*> Written() const;
  absl::Status CheckGuards(absl::Span<const c10::IValue> inputs) const;

  std::shared_ptr<fx::GraphModule> module_;
  std::vector<NamedTensor> parameters_;
  std::vector<Buffer> buffers_;
  std::vector<NamedTensor> constants_;
  std::vector<std::pair<std::string, std::string>> tied_;
  std::vector<ProgramInput> inputs_;
  TreeSpec in_tree_;
  TreeSpec out_tree_;
  std::map<std::string, SymbolRange> symbol_ranges_;
  std::vector<std::string> guards_;
  std::vector<pt2::Guard> understood_guards_;
  absl::Status guards_status_;                      // of the first that is not understood
  std::map<std::string, std::size_t> input_paths_;  // as guards name inputs: "['d']['k'][0]"
  std::string torch_version_;
  bool single_output_ = false;
  bool ties_are_known_ = false;
};

struct LoadOptions {
  std::string model_name;    // of an archive that holds several; empty: the only one
  bool load_weights = true;  // false: descriptions without data; which tensors are tied is known all the same
};

// Of a .pt2 archive or of its graph alone (models/<name>.json, gzipped or not). Errors name the record or the place in the graph and what
// was expected: NotFound, PermissionDenied; DataLoss for what is damaged or cut short; InvalidArgument for what is no exported program;
// Unimplemented for newer formats, other byte orders, and what isn't supported (pickled weights, custom objects, tokens).
absl::StatusOr<std::shared_ptr<ExportedProgram>> LoadExportedProgram(const std::string& path, const LoadOptions& options = {});
// Of the text of a graph alone.
absl::StatusOr<std::shared_ptr<ExportedProgram>> ParseExportedProgram(absl::string_view json);

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_PT2_EXPORTED_PROGRAM_H_
