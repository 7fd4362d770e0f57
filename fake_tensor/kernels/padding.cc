// Padding by reflection and replication, in the memory format that the input suggests, and its backward.

#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/reflection_pad3d.h"
#include "ATen/ops/reflection_pad3d_backward.h"
#include "ATen/ops/replication_pad2d.h"
#include "ATen/ops/replication_pad3d.h"
#include "ATen/ops/resize.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"
#include "fake_tensor/kernels/typed_outputs.h"

namespace ddpopt::kernels {
namespace {

using at::IntArrayRef;
using at::Tensor;

// The padded shape; paddings come last dimension first.
std::vector<int64_t> Padded(const char* name, const Tensor& self, IntArrayRef padding, bool reflects) {
  const int64_t spatial = static_cast<int64_t>(padding.size()) / 2;
  TORCH_CHECK(self.dim() == spatial + 1 || self.dim() == spatial + 2, name, ": ", spatial + 1, " or ", spatial + 2,
              " dimensions are wanted, not ", self.sizes());
  for (int64_t i = self.dim() - spatial - 1; i < self.dim(); ++i) {
    TORCH_CHECK(self.size(i) != 0, name, ": only the batch may be empty, not ", self.sizes());
  }
  std::vector<int64_t> sizes = self.sizes().vec();
  for (int64_t i = 0; i < spatial; ++i) {
    const int64_t dim = self.dim() - 1 - i;
    const int64_t before = padding[2 * i];
    const int64_t after = padding[2 * i + 1];
    TORCH_CHECK(!reflects || (before < sizes[dim] && after < sizes[dim]), name, ": padding (", before, ", ", after,
                ") must be less than the size of dimension ", dim, " of ", self.sizes());
    sizes[dim] += before + after;
    TORCH_CHECK(sizes[dim] >= 1, name, ": the output would be empty, input ", self.sizes(), ", padding ", padding);
  }
  return sizes;
}

void CheckCount(const char* name, IntArrayRef padding, std::size_t count) {
  TORCH_CHECK(padding.size() == count, name, ": padding must have ", count, " elements, not ", padding.size());
}

Tensor PadBackward(const char* name, const Tensor& grad_output, const Tensor& self, IntArrayRef padding, bool reflects) {
  if (reflects && grad_output.numel() == 0) return EmptySuggestedLike(self);
  const std::vector<int64_t> sizes = Padded(name, self, padding, reflects);
  TORCH_CHECK(grad_output.sizes() == IntArrayRef(sizes), name, ": grad_output has shape ", grad_output.sizes(), ", not ",
              IntArrayRef(sizes));
  TORCH_CHECK(grad_output.scalar_type() == self.scalar_type(), name, ": grad_output is ", grad_output.scalar_type(), ", the input ",
              self.scalar_type());
  return EmptySuggestedLike(self);
}

Tensor ReflectionPad2d(const Tensor& self, IntArrayRef padding) {
  CheckCount("reflection_pad2d", padding, 4);
  return Empty(Padded("reflection_pad2d", self, padding, true), self.options(), self.suggest_memory_format());
}
Tensor ReflectionPad2dBackward(const Tensor& grad_output, const Tensor& self, IntArrayRef padding) {
  CheckCount("reflection_pad2d_backward", padding, 4);
  return PadBackward("reflection_pad2d_backward", grad_output, self, padding, true);
}
Tensor ReplicationPad2dBackward(const Tensor& grad_output, const Tensor& self, IntArrayRef padding) {
  CheckCount("replication_pad2d_backward", padding, 4);
  return PadBackward("replication_pad2d_backward", grad_output, self, padding, false);
}
Tensor ReplicationPad3dBackward(const Tensor& grad_output, const Tensor& self, IntArrayRef padding) {
  CheckCount("replication_pad3d_backward", padding, 6);
  return PadBackward("replication_pad3d_backward", grad_output, self, padding, false);
}

// LibTorch's own Meta kernels know no memory format.
Tensor Suggested(const Tensor& result, const Tensor& self) { return Empty(result.sizes(), result.options(), self.suggest_memory_format()); }
Tensor ReplicationPad2d(const Tensor& self, IntArrayRef padding) { return Suggested(at::replication_pad2d(self, padding), self); }
Tensor ReplicationPad3d(const Tensor& self, IntArrayRef padding) { return Suggested(at::replication_pad3d(self, padding), self); }
Tensor ReflectionPad3d(const Tensor& self, IntArrayRef padding) { return Suggested(at::reflection_pad3d(self, padding), self); }
Tensor ReflectionPad3dBackward(const Tensor& grad_output, const Tensor& self, IntArrayRef padding) {
  return Suggested(at::reflection_pad3d_backward(grad_output, self, padding), self);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("reflection_pad2d", ReflectionPad2d);
  m.impl("reflection_pad2d.out", OutOf<ReflectionPad2d>::RestridedIfBatched);
  m.impl("reflection_pad2d_backward", ReflectionPad2dBackward);
  m.impl("reflection_pad2d_backward.grad_input", OutOf<ReflectionPad2dBackward>::Restrided);
  m.impl("reflection_pad3d", ReflectionPad3d);
  m.impl("reflection_pad3d.out", OutOf<ReflectionPad3d>::Restrided);
  m.impl("reflection_pad3d_backward", ReflectionPad3dBackward);
  m.impl("reflection_pad3d_backward.grad_input", OutOf<ReflectionPad3dBackward>::Restrided);
  m.impl("replication_pad2d", ReplicationPad2d);
  m.impl("replication_pad2d.out", OutOf<ReplicationPad2d>::Restrided);
  m.impl("replication_pad2d_backward", ReplicationPad2dBackward);
  m.impl("replication_pad2d_backward.grad_input", OutOf<ReplicationPad2dBackward, OutDtype::kOfElements>::Restrided);
  m.impl("replication_pad3d", ReplicationPad3d);
  m.impl("replication_pad3d.out", OutOf<ReplicationPad3d>::Restrided);
  m.impl("replication_pad3d_backward", ReplicationPad3dBackward);
  m.impl("replication_pad3d_backward.grad_input", OutOf<ReplicationPad3dBackward, OutDtype::kOfElements>::Restrided);
}

}  // namespace
}  // namespace ddpopt::kernels
