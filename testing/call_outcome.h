#ifndef DDPOPT_TESTING_CALL_OUTCOME_H_
#define DDPOPT_TESTING_CALL_OUTCOME_H_

// What a call of an operator did, in everything but data: the results' shapes, dtypes, strides, storages and aliasing, the inputs afterwards,
// or that it was refused. Outcomes of the same call on real tensors and on fakes are compared as plain values.
//
//   Outcome real = Observe(real_inputs, [&] { return CallOperator(op, real_args); });
//   Outcome fake = Observe(fake_inputs, [&] { return CallOperator(op, fake_args); });
//   std::string difference = Difference(real, fake);      // empty if they agree

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"

namespace ddpopt::testing {

struct TensorFacts {
  bool defined = false;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;         // elements
  int64_t storage_bytes = 0;  // of the whole storage
  c10::Device device = c10::Device(c10::kCPU);
  bool conj = false, neg = false;

  static TensorFacts Of(const at::Tensor& tensor);
  std::string ToString() const;  // "f32[2,3] strides (3,1) at 0 of 24 bytes on cpu"
};

struct ResultFacts {
  std::string value;  // of what isn't a tensor: its text; "None"; empty for tensors
  TensorFacts tensor;
  int same = -1;     // the input that it is, by index
  int shares = -1;   // the first input whose storage it has
  int storage = -1;  // results of one storage have one number, counted from 0 in order of appearance
};

struct Outcome {
  enum class Kind { kReturned, kRejected, kDataDependent };
  Kind kind = Kind::kReturned;
  std::string error;
  std::vector<ResultFacts> results;  // lists and tuples flattened
  std::vector<TensorFacts> inputs;   // as the call left them
};

// Runs the call. Any exception is a rejection; one that says that a fake lacks the data for the answer is kDataDependent.
Outcome Observe(const std::vector<at::Tensor>& inputs, const std::function<c10::IValue()>& call);

// The first difference in words, empty if there is none. Strides of dimensions of size ≤ 1 and of tensors without elements don't count, nor
// does an error's text. A fake's data-dependent error agrees with no real outcome: callers who expect it compare the kinds.
std::string Difference(const Outcome& want, const Outcome& got);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_CALL_OUTCOME_H_
