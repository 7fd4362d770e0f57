#ifndef DDPOPT_CAPTURE_PT2_TREE_SPEC_H_
#define DDPOPT_CAPTURE_PT2_TREE_SPEC_H_

// How an exported program's inputs and outputs nest, as PyTorch's pytree describes it: tuples, lists and dicts around the leaves.
//
//   DDPOPT_ASSIGN_OR_RETURN(const TreeSpec spec, TreeSpec::Parse(text));
//   DDPOPT_ASSIGN_OR_RETURN(std::vector<c10::IValue> leaves, spec.Flatten(value, "input"));
//   c10::IValue again = *spec.Unflatten(leaves);
//
// Values: a tuple or named tuple is an IValue tuple, a list a list, a dict a generic dict whose keys are strings, ints or bools, in the recorded order.
// Anything is a leaf. Thread-safe.

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ddpopt {

struct TreeSpec {
  enum class Kind { kLeaf, kTuple, kList, kDict, kOpaque };
  Kind kind = Kind::kLeaf;
  std::string type;               // Python's: "builtins.dict", "collections.namedtuple"; empty for a leaf
  std::vector<c10::IValue> keys;  // of a dict, as many as children
  std::vector<TreeSpec> children;

  // Errors: InvalidArgument with the place in the text; Unimplemented for another protocol. A type that isn't known becomes kOpaque.
  static absl::StatusOr<TreeSpec> Parse(absl::string_view text);
  // A tuple of so many leaves.
  static TreeSpec TupleOf(std::size_t leaves);

  std::size_t num_leaves() const;
  // Error: InvalidArgument naming the place in `name` that doesn't fit ("input[0]["x"]: expected a tuple of 2, got a list of 3"); Unimplemented for an opaque
  // type.
  absl::StatusOr<std::vector<c10::IValue>> Flatten(const c10::IValue& value, absl::string_view name) const;
  // Precondition: num_leaves() values. Error: Unimplemented for an opaque type.
  absl::StatusOr<c10::IValue> Unflatten(absl::Span<const c10::IValue> leaves) const;
  // "(*, {"x": *, "inner": [*]})".
  std::string ToString() const;

 private:
  absl::Status FlattenInto(const c10::IValue& value, const std::string& place, std::vector<c10::IValue>* leaves) const;
};

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_PT2_TREE_SPEC_H_
