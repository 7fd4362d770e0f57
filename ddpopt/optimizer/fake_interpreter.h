#ifndef DDPOPT_OPTIMIZER_FAKE_INTERPRETER_H_
#define DDPOPT_OPTIMIZER_FAKE_INTERPRETER_H_

// Runs a graph on fake tensors, whose values can't choose a branch: of torch.cond both branches run, must give the same forms, and the
// first one's values go on.
//
//   const ModeGuard fakes(mode);
//   c10::IValue result = FakeInterpreter(module, mode.get()).Run(fake_inputs);
//
// Throws c10::Error.

#include <memory>

#include "fake_tensor/fake_tensor_mode.h"
#include "interpreter/interpreter.h"

namespace ddpopt {

class FakeInterpreter : public Interpreter {
 public:
  // `mode` makes fakes of the module's attributes, and must outlive this; null: they are fakes already.
  explicit FakeInterpreter(const fx::GraphModule& module, FakeTensorMode* mode = nullptr) : Interpreter(module), mode_(mode) {}

 protected:
  // What runs a nested graph.
  virtual std::unique_ptr<FakeInterpreter> Nested(const fx::GraphModule& module) const;

  c10::IValue RunGetAttr(const fx::Node& node) override;
  c10::IValue RunCallModule(const fx::Node& node, Arguments& arguments) override;
  c10::IValue RunSubgraph(const fx::GraphModule::Submodule& submodule, Values args) override;
  c10::IValue RunCond(const c10::IValue& predicate, const fx::GraphModule::Submodule& on_true, const fx::GraphModule::Submodule& on_false,
                      Values operands) override;

  FakeTensorMode* mode() const { return mode_; }

 private:
  FakeTensorMode* const mode_;
};

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_FAKE_INTERPRETER_H_
