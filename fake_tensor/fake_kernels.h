#ifndef DDPOPT_FAKE_TENSOR_FAKE_KERNELS_H_
#define DDPOPT_FAKE_TENSOR_FAKE_KERNELS_H_

// Rules (fake_kernel.h) that are there when the program starts. Private to the repository: a public header defines no macro.
//
//   DDPOPT_FAKE_KERNELS(m) {     // names are aten:: unless qualified
//     m.impl("relu", Relu);      // also relu_ and relu.out, unless these have rules of their own
//   }

#include <string>
#include <utility>

#include "fake_tensor/fake_kernel.h"

namespace ddpopt {

// What DDPOPT_FAKE_KERNELS hands to its body.
class FakeKernels {
 public:
  FakeKernels(void (*body)(FakeKernels&), const char* file, int line);

  // As RegisterFakeKernel; errors come at the first use of a FakeTensorMode.
  template <typename Fn>
  void impl(const char* name, Fn fn, const FakeKernelOptions& options = {}) {
    Add(fake_kernel_internal::MakeRule(name, std::move(fn), options, place_));
  }
  // For operators that some versions of LibTorch lack.
  template <typename Fn>
  void impl_if_present(const char* name, Fn fn, const FakeKernelOptions& options = {}) {
    fake_kernel_internal::PendingRule rule = fake_kernel_internal::MakeRule(name, std::move(fn), options, place_);
    rule.may_be_absent = true;
    Add(std::move(rule));
  }

 private:
  static void Add(fake_kernel_internal::PendingRule rule);

  std::string place_;
};

#define DDPOPT_FAKE_KERNELS(m) DDPOPT_FAKE_KERNELS_AS(m, __COUNTER__)
#define DDPOPT_FAKE_KERNELS_AS(m, id) DDPOPT_FAKE_KERNELS_NAMED(m, id)
#define DDPOPT_FAKE_KERNELS_NAMED(m, id)                                                              \
  static void RegisterFakeKernels##id(::ddpopt::FakeKernels& m);                                      \
  static const ::ddpopt::FakeKernels fake_kernels_##id(&RegisterFakeKernels##id, __FILE__, __LINE__); \
  static void RegisterFakeKernels##id(::ddpopt::FakeKernels& m)

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_FAKE_KERNELS_H_
