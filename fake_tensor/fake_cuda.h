#ifndef DDPOPT_FAKE_TENSOR_FAKE_CUDA_H_
#define DDPOPT_FAKE_TENSOR_FAKE_CUDA_H_

// Fake tensors on CUDA in a process without CUDA, forward and backward.
//
//   int main() {
//     EnableFakeCuda();
//     auto mode = FakeTensorMode::Create();
//     ModeGuard on(mode);
//     at::Tensor x = at::ones({2, 3}, at::Device("cuda"));      // on cuda:0
//     …
//   }

namespace ddpopt {

// Makes LibTorch believe in eight CUDA devices, cuda:0 to cuda:7, that have no memory, no generators and no kernels. Opt-in and for the
// whole process, since at::hasCUDA() is true from then on: programs that ask it may choose CUDA for real tensors, whose making fails. For
// planning tools and tests, not for processes that train. Backward passes of tensors on them run on threads of autograd's, one a device.
// Making a fake on a device beyond them is refused (c10::Error): autograd would have no thread for it.
// Call it before anything asks LibTorch about CUDA, while there is one thread; once or more. Throws c10::Error if LibTorch has CUDA (real
// CUDA tensors have fakes anyway), or if something asked before.
void EnableFakeCuda();

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_FAKE_CUDA_H_
