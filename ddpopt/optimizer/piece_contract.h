#ifndef DDPOPT_OPTIMIZER_PIECE_CONTRACT_H_
#define DDPOPT_OPTIMIZER_PIECE_CONTRACT_H_

// What a compiled piece must keep to, learnt from the fake run of its graph, and the check at every call.
//
//   PieceContract contract("submod_1", *graph_module, *fake_copy, fake_inputs, fake_outputs);
//   auto checked = CheckedPiece(piece, contract);               // throws c10::Error where `piece` breaks the contract
//
// The next piece was compiled for what the graph promises. A piece that returns something else would make it wrong silently, or crash it:
// so that is an error that names the piece, the output and both values. A check costs tens of nanoseconds an output and an input.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"
#include "c10/core/StorageImpl.h"
#include "c10/core/TensorImpl.h"
#include "c10/util/intrusive_ptr.h"
#include "ddpopt/backends/backend.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

// Every tensor attribute of a module, those of nested graphs under "path.attribute".
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};
std::vector<NamedTensor> TensorAttrs(const fx::GraphModule& module);
// Calls `fn` for them, in the same order, without keeping a name of each.
void ForEachTensorAttr(const fx::GraphModule& module,
                       absl::FunctionRef<void(const std::string& name, const at::Tensor& tensor)> fn);

// The memory of a tensor, to be compared; null if there is nothing to share.
const void* MemoryOf(const at::Tensor& tensor);

// The elements of a tuple or list, the value itself, nothing for None.
std::vector<c10::IValue> OutputList(const c10::IValue& outputs);

class PieceContract {
 public:
  // `graph_module`: with its real attributes; `fake_module`: a copy with fake ones, and its inputs' fakes in the placeholders' meta().val,
  // from which is told what may be written. `fake_inputs` and `fake_outputs`: of the fake run, with the strides that the piece claims.
  PieceContract(std::string name, const fx::GraphModule& graph_module, const fx::GraphModule& fake_module,
                const std::vector<c10::IValue>& fake_inputs, const c10::IValue& fake_outputs);

  // What the backend says beforehand, against the graph. Errors name the output and both values.
  absl::Status CheckClaims(const std::vector<absl::optional<OutputMeta>>& claims) const;

  // What is remembered of a call's inputs, and of the attributes that it must not write, without keeping any data alive.
  struct Witness {
    bool is_tensor = false;
    bool is_fake = false;
    c10::VariableVersion version;
    uint32_t version_before = 0;
    const void* memory = nullptr;
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;  // so that no other storage gets its address
  };
  struct Witnesses {
    std::vector<Witness> inputs;
    bool requires_grad = false;  // one of the inputs
    std::vector<uint32_t> attr_versions;
  };
  Witnesses Observe(const std::vector<c10::IValue>& inputs) const;
  // Throws c10::Error.
  void Check(const Witnesses& before, const c10::IValue& outputs) const;

 private:
  void CheckUnwritten(const Witnesses& before) const;
  struct Output {
    bool is_tensor = false;
    std::string kind;  // of what is no tensor
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    c10::Device device = c10::Device(c10::kCPU);
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    std::vector<int> inputs;  // that share its memory, by index
    bool shares_attr = false;
    bool requires_grad = false;
  };
  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const;

  std::string name_;
  bool several_ = false;
  std::vector<Output> outputs_;
  std::vector<bool> may_write_input_;
  std::vector<NamedTensor> unwritten_attrs_;
  std::vector<NamedTensor> attrs_;
};

// The piece, checked at every call.
std::shared_ptr<const CompiledPiece> CheckedPiece(std::shared_ptr<const CompiledPiece> piece, PieceContract contract);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_PIECE_CONTRACT_H_
