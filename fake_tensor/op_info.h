#ifndef DDPOPT_FAKE_TENSOR_OP_INFO_H_
#define DDPOPT_FAKE_TENSOR_OP_INFO_H_

// What the mode needs to know of an operator, found out from its schema, tags and kernels once. Private to this package.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/jit_type_base.h"
#include "c10/util/SmallVector.h"
#include "fake_tensor/rules.h"

namespace ddpopt {

struct DtypeRule;

struct OpInfo {
  enum class Way : uint8_t {
    kRule,           // ours or LibTorch's Meta kernel
    kComposite,      // a composition (CompositeImplicitAutograd), run on fakes
    kNoRule,         // neither: the fallback on zeros, or an error
    kPassThrough,    // no tensors at all
    kLift,           // makes a constant of a real tensor
    kScalarOutput,   // item(), equal(): needs the data
    kDynamicShape,   // the result's shape needs the data
  };
  // Which devices operands may be on.
  enum class Devices : uint8_t {
    kOne,         // all on one; zero-dimensional ones of the CPU go along with any
    kAny,         // the first operand's is the result's
    kIndices,     // indices on the CPU or the indexed tensor's device
  };
  Way way = Way::kRule;
  Devices devices = Devices::kOne;
  const Rule* own = nullptr;       // goes before LibTorch's Meta kernel
  const DtypeRule* dtypes = nullptr;  // those that the CPU's kernel refuses
  bool masks = false;              // takes a list of indices that may be masks, which makes the result's shape depend on data
  bool cacheable = true;           // the result follows from what a cache key holds
  const char* bypass = "";         // why it isn't
  bool random = false;             // draws from a generator
  bool uninitialized = false;      // its result holds anything
  bool writes_any = false;
  bool writes_metadata_only = false;  // t_() and the like: data stay as they are
  // Elementwise, functional or out=: the CPU converts operands to a common dtype first.
  bool casts_operands = false;
  bool elementwise = false;  // in any form
  std::optional<c10::OperatorHandle> functional;  // of an out= form that casts operands
  bool refuses_overlapping_out = false;  // LibTorch's Meta kernel doesn't, unlike the real one
  bool bumps_versions = false;     // changes its arguments through the operators it calls, which count the change
  bool returns_views = false;      // by its schema
  bool makes_new_views = false;    // that are inference tensors only if they are made in inference mode
  c10::SmallVector<std::size_t, 2> device_args;   // which become meta
  c10::SmallVector<std::size_t, 2> dropped_args;  // which become None: generators, pinning
  c10::SmallVector<bool, 8> writes;               // per argument
  c10::SmallVector<bool, 8> hidden_writes;        // per argument: running statistics, which schemas don't tell of
  int hidden_writes_flag = -1;                    // the argument that must be true for them; -1: always
  c10::SmallVector<bool, 8> value_irrelevant;     // per argument: floats whose value, unless large, changes nothing but data
  enum class Makes : uint8_t { kNothing, kEmpty, kScalarTensor, kFill } makes = Makes::kNothing;  // steps in which torch::tensor() is made
};

// Thread-safe; the reference is valid as long as the thread runs.
const OpInfo& InfoOf(const c10::OperatorHandle& op);

bool MentionsTensor(const c10::TypePtr& type);

// For errors.
std::string NameOf(const c10::OperatorHandle& op);
const std::string& ArgName(const c10::OperatorHandle& op, std::size_t index);
std::string Describe(const at::Tensor& tensor);

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_OP_INFO_H_
