// Assertions about data: fakes have none, so they hold.

#include <string_view>

#include "ATen/core/Tensor.h"
#include "c10/util/Exception.h"
#include "c10/util/string_view.h"
#include "fake_tensor/fake_kernels.h"

namespace ddpopt {
namespace {

void AssertAsync(const at::Tensor& self) {
  TORCH_CHECK(self.numel() == 1, "_assert_async: the boolean value of a tensor with ", self.numel(), " elements is ambiguous");
}

void AssertAsyncWithMessage(const at::Tensor& self, c10::string_view /*message*/) { AssertAsync(self); }

DDPOPT_FAKE_KERNELS(m) {
  m.impl("_assert_async", AssertAsync);
  m.impl("_assert_async.msg", AssertAsyncWithMessage);
}

}  // namespace
}  // namespace ddpopt
