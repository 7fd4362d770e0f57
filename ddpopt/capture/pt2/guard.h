#ifndef DDPOPT_CAPTURE_PT2_GUARD_H_
#define DDPOPT_CAPTURE_PT2_GUARD_H_

// Conditions on the inputs that torch.export met while it traced and that no range can say, as archives keep them in guards_code: Python's text,
// "L['x'].size()[0] % 2 == 0". Private to this package.
//
//   DDPOPT_ASSIGN_OR_RETURN(const Guard guard, Guard::Parse(text));
//   absl::StatusOr<bool> holds = guard.Holds([&](const Guard::Place& place) { return ValueAt(place); });
//
// Understood: numbers, True and False; inputs (L['x'], L['d']['k'][0], .field), their size()[i], shape[i], stride()[i], dim(), ndim, numel() and
// storage_offset(); Python's arithmetic, comparisons (chained too), and, or, not, if-else; max, min, abs, round, int, float, bool, math.ceil and its like,
// torch.sym_max and its like, and SymPy's Eq, Ne, Mod, FloorDiv, Max, Min. Thread-safe.

#include <functional>
#include <string>
#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddpopt {
struct ScalarFunction;
}

namespace ddpopt::pt2 {

class Guard {
 public:
  // Something of an input.
  struct Place {
    enum class What { kValue, kSize, kStride, kDim, kNumel, kStorageOffset };
    std::string input;  // its path as pytree writes it: "['d']['k'][0]"
    What what = What::kValue;
    int64_t index = 0;  // of kSize and kStride: from the end if negative
  };
  using ValueAt = std::function<absl::StatusOr<c10::IValue>(const Place&)>;

  // Errors: InvalidArgument for what is no expression, Unimplemented for what is not understood; both with the text.
  static absl::StatusOr<Guard> Parse(absl::string_view text);

  const std::string& text() const { return text_; }
  // What it reads, in order.
  std::vector<Place> Places() const;
  // Errors: those of `value_at`; OutOfRange where the expression has no value (a division by zero, an integer of more than 64 bits).
  absl::StatusOr<bool> Holds(const ValueAt& value_at) const;

 private:
  class Parser;
  struct Expr {
    enum class Kind { kNumber, kPlace, kCall, kAnd, kOr, kNot, kIf };
    Kind kind = Kind::kNumber;
    c10::IValue number;
    Place place;
    const ScalarFunction* function = nullptr;
    std::vector<Expr> args;  // of kIf: condition, then, else
  };
  static absl::StatusOr<c10::IValue> Evaluate(const Expr& expr, const ValueAt& value_at);
  static void CollectPlaces(const Expr& expr, std::vector<Place>* places);

  std::string text_;
  Expr expr_;
};

}  // namespace ddpopt::pt2

#endif  // DDPOPT_CAPTURE_PT2_GUARD_H_
