#ifndef DDPOPT_FAKE_TENSOR_CONSTANTS_H_
#define DDPOPT_FAKE_TENSOR_CONSTANTS_H_

// What is known of fakes' data. Small tensors on the CPU that are made from numbers in the program keep their values, so that item() and
// shapes that follow from them are known. The values belong to the storage: views share them, and a write through any alias ends them.
// Private to this package.

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "ATen/core/stack.h"
#include "c10/core/Scalar.h"
#include "fake_tensor/fake_tensor_impl.h"
#include "fake_tensor/op_info.h"

namespace ddpopt {

// Whether the tensor's elements are among the known ones of its storage.
bool Covers(const KnownData& known, const FakeTensorImpl& fake);

// Whether all of the tensor's elements are known. Cheap for those of which nothing is.
inline bool IsKnown(const FakeTensorImpl& fake) {
  const KnownData* known = fake.fake_storage_impl()->known();
  return known != nullptr && known->complete() && Covers(*known, fake);
}

// A real tensor over the known data; not to be written to. The caller has checked IsKnown().
at::Tensor KnownValue(const FakeTensorImpl& fake);

// Makes the bytes of the fake's storage from `begin` on those of `real`, a storage that isn't written to any more. `begin` is a multiple of
// every dtype's size.
void SetKnown(FakeTensorImpl& fake, const c10::Storage& real, std::size_t begin = 0);

// torch::tensor({1, 2}) is an empty tensor whose elements are filled one by one. From Start on, fills of elements that hold nothing yet are
// carried out; when all are filled the tensor is known. Fill returns false if this fill is no such step; then the data are forgotten.
void StartFilling(FakeTensorImpl& fake);
bool Fill(FakeTensorImpl& fake, const c10::Scalar& value);

// Every tensor among the arguments [first, first + num_args) of the stack that is a fake of known elements becomes its value. False (the
// stack is then unchanged) if there is none, or one that isn't known. `whole`: or one of whose storage only a part is.
bool ReplaceByKnown(torch::jit::Stack* stack, std::size_t first, std::size_t num_args, bool whole);

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_CONSTANTS_H_
