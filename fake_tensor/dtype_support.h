#ifndef DDPOPT_FAKE_TENSOR_DTYPE_SUPPORT_H_
#define DDPOPT_FAKE_TENSOR_DTYPE_SUPPORT_H_

// Which dtypes the CPU's kernels have no code for. LibTorch's Meta kernels accept them (softshrink of an integer), the real ones end in
// "not implemented for 'Long'"; a fake must refuse what the real call refuses. The table in dtype_support.cc was measured from the kernels
// of LibTorch 2.15 by //tools:measure_dtypes; a test compares it with the kernels at hand.
//
//   if (const DtypeRule* rule = DtypeRuleOf(op)) CheckDtypes(op, *rule, arguments);
//
// Private to this package. Thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "c10/core/ScalarType.h"
#include "c10/util/ArrayRef.h"

namespace ddpopt {

// The dtype that a kernel is chosen by.
struct DtypeSelector {
  enum class Kind {
    kArgument,        // of one tensor argument (of its first tensor, for a list)
    kCommon,          // what all tensor arguments promote to, out= left out
    kCommonScalars,   // the same with the numbers among the arguments, but for alpha and beta
    kDtypeArgument,   // the argument `dtype`, or out='s if there is no such argument, or the first tensor's
    kEach,            // kCommonScalars for each position of lists
  };
  Kind kind = Kind::kArgument;
  std::string argument;  // of kArgument

  // "self" (an argument's name), "(common)", "(common and numbers)", "(dtype)", "(each)".
  static DtypeSelector Parse(const std::string& text);
  std::string ToString() const;
  // The dtypes of a call; none where the selector finds nothing to look at.
  std::vector<c10::ScalarType> Select(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) const;
};

struct DtypeRule {
  // When a kernel that would refuse the dtype isn't reached.
  enum class Unless { kNever, kFirstEmpty, kAnyEmpty, kFirstEmptyOrScalar, kNoRounding };
  DtypeSelector selector;
  std::vector<c10::ScalarType> refused;
  Unless unless = Unless::kNever;  // the first tensor argument (no dimensions), or any of them, has no elements; rounding_mode is None
};

// Null if the operator has no rule. In-place and out= forms have their functional form's.
const DtypeRule* DtypeRuleOf(const c10::OperatorHandle& op);

// Throws c10::Error that names operator and dtype if the CPU's kernel refuses the arguments' dtypes. Tensors may be fake, meta or real.
void CheckDtypes(const c10::OperatorHandle& op, const DtypeRule& rule, c10::ArrayRef<c10::IValue> arguments);

// Whether `unless` holds; of factories, `size` says what is empty; out= doesn't count.
bool IsTakenAnyway(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments, DtypeRule::Unless unless);

// The names of the operators in the table, for tests.
std::vector<std::string> OperatorsWithDtypeRules();

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_DTYPE_SUPPORT_H_
