#include "fake_tensor/kernels/linalg_shapes.h"

#include <algorithm>

namespace ddpopt::kernels {

void FillLinalgOuts(std::initializer_list<LinalgOut> outs, const char* op) {
  for (const LinalgOut& out : outs) {
    TORCH_CHECK(c10::canCast(out.dtype, out.tensor.scalar_type()), op, ": results of ", out.dtype, " can't be cast to an out= tensor of ",
                out.tensor.scalar_type());
  }
  const bool direct = std::all_of(outs.begin(), outs.end(), [](const LinalgOut& out) {
    const at::Tensor& tensor = out.tensor;
    if (tensor.scalar_type() != out.dtype) return false;
    if (tensor.numel() == 0) return true;
    if (tensor.sizes() != at::IntArrayRef(out.sizes)) return false;
    return out.column_major ? tensor.dim() >= 2 && tensor.transpose(-2, -1).is_contiguous() : tensor.is_contiguous();
  });
  for (const LinalgOut& out : outs) {
    at::Tensor tensor = out.tensor;
    if (direct && tensor.numel() == 0 && out.column_major) {
      std::vector<int64_t> transposed = out.sizes;
      std::swap(transposed[transposed.size() - 2], transposed[transposed.size() - 1]);
      tensor.resize_(transposed, at::MemoryFormat::Contiguous);
      tensor.transpose_(-2, -1);
    } else if (tensor.sizes() != at::IntArrayRef(out.sizes)) {
      tensor.resize_(out.sizes);
    }
    if (!direct) at::assert_no_internal_overlap(tensor);
  }
}

}  // namespace ddpopt::kernels
