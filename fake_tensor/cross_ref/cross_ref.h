#ifndef DDPOPT_FAKE_TENSOR_CROSS_REF_CROSS_REF_H_
#define DDPOPT_FAKE_TENSOR_CROSS_REF_CROSS_REF_H_

// Random calls of ATen operators, run on real tensors and, twice (the second time a cache may answer), on fakes of them, and compared.
//
//   CrossRef cross_ref({.seed = 7});
//   for (uint64_t i = 0; i < 1000; ++i) {
//     Comparison comparison = cross_ref.Compare(i);
//     if (!comparison.agrees()) std::puts(comparison.difference.c_str());
//   }
//
// A comparison looks at shapes, dtypes, strides (but of dimensions of size ≤ 1 and of tensors without elements), storage offsets, devices,
// storage sizes, conj and neg bits, which results are which inputs and which share storage, the inputs after the call, and whether the call
// is refused at all. Where the answer needs data (nonzero, a mask as index), the fake must say so with the data-dependent error.
// Not compared: data, error texts, calls that a kernel refuses for the values it finds (the generator makes none).
//
// The operators are those of `aten::` below autograd that have a CPU kernel, but for the ones that recipe.cc leaves out with a reason and
// those of unfinished.cc, whose fakes are known to differ for some calls.
//
// Devices. A CPU alone can't run calls on several devices. Of pointwise operators' calls that the real kernel takes, every tenth is made
// again with one fake operand on another device (`meta`): with another operand of one dimension or more on the CPU it must be refused; with
// numbers of no dimension alone it must give the same results, on that device.

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "fake_tensor/cross_ref/generator.h"

namespace ddpopt::cross_ref {

// The operators to be called at random whose full names ("aten::add.Tensor") contain one of the texts (all of them, if there are none);
// a text that ends with "$" must end the name, or the name without its overload. Sorted.
std::vector<c10::OperatorHandle> Operators(const std::vector<std::string>& substrings, bool with_unfinished);

struct Comparison {
  uint64_t index = 0;
  std::string op, call;
  bool rejected_by_real = false;
  std::string real_error;
  // Why the two disagree: "accepts", "rejects", "no rule", "data-dependent", "shape", "dtype", "stride", "aliasing", …; "" if they agree.
  std::string kind;
  std::string difference;

  bool agrees() const { return kind.empty(); }
};

// What is being done, for a process that watches whether this one dies: plain memory that may be shared.
struct Progress {
  enum Phase : int { kGenerate, kReal, kFake, kDone };
  volatile uint64_t index;
  volatile Phase phase;
  char call[1000];  // its text, ended by 0, once it has been generated
};

class CrossRef {
 public:
  struct Options {
    uint64_t seed = 0;
    std::vector<std::string> substrings;  // of operators' names
    bool with_unfinished = false;         // operators of unfinished.cc
    bool with_unusual = false;            // out= that is an operand or has a conj or neg bit; damaged calls of tensors without elements
    Progress* progress = nullptr;         // kept up to date unless null
  };
  explicit CrossRef(Options options);

  const std::vector<c10::OperatorHandle>& operators() const { return operators_; }
  // The operator of a call, without making it.
  const c10::OperatorHandle& OperatorAt(uint64_t index) const;
  // A function of seed, operators and index. Throws c10::Error if a recipe can't be used.
  Comparison Compare(uint64_t index);

 private:
  void CompareDevices(const Call& call, Random& random, Comparison* comparison);
  void Enter(Progress::Phase phase) {
    if (options_.progress != nullptr) options_.progress->phase = phase;
  }
  Options options_;
  std::vector<c10::OperatorHandle> operators_;
};

}  // namespace ddpopt::cross_ref

#endif  // DDPOPT_FAKE_TENSOR_CROSS_REF_CROSS_REF_H_
