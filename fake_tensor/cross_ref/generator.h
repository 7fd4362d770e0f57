#ifndef DDPOPT_FAKE_TENSOR_CROSS_REF_GENERATOR_H_
#define DDPOPT_FAKE_TENSOR_CROSS_REF_GENERATOR_H_

// Random calls of ATen operators, valid and invalid. A call is a function of a seed alone.
//
//   std::optional<Call> call = RandomCall(op, seed);           // a description, without tensors
//   MadeCall made = Make(*call);                               // tensors of its own each time
//   std::vector<c10::IValue> results = made.Run(op);
//
// Tensors are contiguous, permuted, channels-last, sliced with an offset and steps, expanded, size-1, without elements, views of one
// another, with conj or neg bits, or wrapped numbers. A quarter of the calls is damaged in one place: another dtype, a size or rank that is
// off, tensors exchanged, a dimension out of range, a list of a wrong length, an operand too large for its in-place result.
// Values are such that no kernel refuses a call for them: indices are in range, divisors not zero, probabilities between 0 and 1.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"

namespace ddpopt::cross_ref {

// splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  int64_t Between(int64_t low, int64_t high);  // both included
  bool Chance(int percent) { return Between(0, 99) < percent; }
  double Unit();  // 0 to 1
  template <typename List>
  const auto& Of(const List& list) {
    return *(std::begin(list) + Between(0, static_cast<int64_t>(std::size(list)) - 1));
  }

 private:
  uint64_t state_;
};

struct TensorSpec {
  enum class Values { kPlain, kBelow, kEqual, kPositiveDefinite, kIncreasing };
  enum class Layout { kContiguous, kPermuted, kChannelsLast, kSliced, kExpanded, kOffset, kViewOf, kSameAs };

  bool defined = true;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  Values values = Values::kPlain;
  int64_t bound = 0;  // of kBelow and kEqual
  Layout layout = Layout::kContiguous;
  int64_t detail = 0;  // random bits for the layout: which dimensions, steps, offset
  int other = -1;      // kViewOf, kSameAs: the tensor, by order among the call's; sizes and dtype then follow it
  bool conj = false, neg = false, wrapped = false;

  int64_t numel() const;
  std::string ToString() const;
};

struct Value {
  enum class Kind { kPlain, kTensor, kTensors, kOptionalTensors };
  Kind kind = Kind::kPlain;
  c10::IValue plain;
  std::vector<TensorSpec> tensors;  // one for kTensor
};

struct Call {
  c10::OperatorHandle op;
  std::vector<Value> arguments;
  uint64_t seed = 0;     // of the values
  std::string damage;    // what was made wrong on purpose, "" for nothing

  std::string ToString() const;
};

struct MadeCall {
  std::vector<c10::IValue> arguments;
  std::vector<at::Tensor> tensors;  // the arguments' tensors in order, undefined ones left out; one appears as often as it is passed
};

// Nothing if the recipe doesn't work out for this seed (a kernel would see an index into an empty dimension, say): try the next seed.
// out= tensors get their shapes from a real call of the functional form.
struct CallOptions {
  bool damage = true;                       // now and then
  std::optional<c10::ScalarType> dtype;     // the call's, instead of one that the recipe names
};
std::optional<Call> RandomCall(const c10::OperatorHandle& op, uint64_t seed, const CallOptions& options = {});

MadeCall Make(const Call& call);

// The results: one value, or a tuple.
c10::IValue Run(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments);

}  // namespace ddpopt::cross_ref

#endif  // DDPOPT_FAKE_TENSOR_CROSS_REF_GENERATOR_H_
