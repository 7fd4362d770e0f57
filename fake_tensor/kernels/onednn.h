#ifndef DDPOPT_FAKE_TENSOR_KERNELS_ONEDNN_H_
#define DDPOPT_FAKE_TENSOR_KERNELS_ONEDNN_H_

#include "c10/core/ScalarType.h"

namespace ddpopt::kernels {

// Whether LibTorch hands tensors of the dtype to oneDNN: floats always, halves where the processor has instructions for them.
bool OneDnnComputes(c10::ScalarType dtype);

}  // namespace ddpopt::kernels

#endif  // DDPOPT_FAKE_TENSOR_KERNELS_ONEDNN_H_
