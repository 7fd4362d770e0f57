#ifndef DDPOPT_TOOLS_PROGRAM_RUNNER_H_
#define DDPOPT_TOOLS_PROGRAM_RUNNER_H_

// An exported program as it is, or as a backend compiles it: whole, once for each kind of inputs.
//
//   ProgramRunner runner(program, AotEagerBackend());
//   std::vector<c10::IValue> outputs = runner.RunFlat(inputs);      // as program->RunFlat(inputs)

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/ivalue.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/capture/pt2/exported_program.h"

namespace ddpopt {

// One thread at a time.
class ProgramRunner {
 public:
  // A null backend: the program itself runs.
  ProgramRunner(std::shared_ptr<const ExportedProgram> program, CompileFn backend);

  // Throws c10::Error: what the program throws, and what the backend says when it fails. What it refuses (Unimplemented) runs as it is.
  std::vector<c10::IValue> RunFlat(std::vector<c10::IValue> inputs);
  // Why the backend refused the program, for some kind of inputs; empty if it never did.
  const std::string& refusal() const { return refusal_; }

 private:
  std::shared_ptr<const ExportedProgram> program_;
  CompileFn backend_;
  std::map<std::string, std::shared_ptr<const CompiledPiece>> pieces_;  // null: refused
  std::string refusal_;
};

}  // namespace ddpopt

#endif  // DDPOPT_TOOLS_PROGRAM_RUNNER_H_
