#ifndef DDPOPT_FAKE_TENSOR_TEST_HELPERS_H_
#define DDPOPT_FAKE_TENSOR_TEST_HELPERS_H_

// For tests of fakes.
//
//   EXPECT_THAT(ErrorOf([&] { at::add(fake, real); }), HasSubstr("FromReal"));
//   EXPECT_EQ(StorageOf(view), StorageOf(fake));

#include <exception>
#include <string>
#include <utility>

#include "ATen/core/Tensor.h"
#include "base/status.h"
#include "c10/core/StorageImpl.h"

namespace ddpopt {

// The message of whatever fn throws, without a backtrace; "no error" if it throws nothing.
template <typename Fn>
std::string ErrorOf(Fn&& fn) {
  try {
    std::forward<Fn>(fn)();
  } catch (const std::exception& error) {
    return ExceptionMessage(error);
  }
  return "no error";
}

// Fakes of one storage share it. (at::Tensor::is_alias_of would ask for the data.)
inline const c10::StorageImpl* StorageOf(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_TEST_HELPERS_H_
