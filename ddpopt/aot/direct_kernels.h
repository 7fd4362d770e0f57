#ifndef DDPOPT_AOT_DIRECT_KERNELS_H_
#define DDPOPT_AOT_DIRECT_KERNELS_H_

// Kernels that write into memory that is there, of operators for which LibTorch has none that does: its own out= forms of these compute
// elsewhere and copy. Bit for bit what the operator gives. Private to this package.
//
//   if (DirectKernel kernel = FindDirectKernel(op, arguments, results)) kernel(arguments, outs);

#include <optional>

#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "c10/util/ArrayRef.h"

namespace ddpopt {

// `arguments`: as the operator takes them, on the CPU. `outs`: one for each result, laid out as the operator lays it out; what is undefined
// the operator doesn't give.
using DirectKernel = void (*)(const torch::jit::Stack& arguments, c10::ArrayRef<at::Tensor> outs);

// For arguments of the fakes' metadata; null if there is none. A kernel that has nothing to do (empty_like) is WriteNothing.
DirectKernel FindDirectKernel(const c10::OperatorHandle& op, const torch::jit::Stack& fake_arguments, c10::ArrayRef<at::Tensor> fake_results);

void WriteNothing(const torch::jit::Stack& arguments, c10::ArrayRef<at::Tensor> outs);

// The form of the operator that writes into tensors given after its arguments, where a CPU kernel does so; nullopt if there is none.
std::optional<c10::OperatorHandle> FindOutForm(const c10::OperatorHandle& op);

}  // namespace ddpopt

#endif  // DDPOPT_AOT_DIRECT_KERNELS_H_
