// Sampling on grids, the columns of sliding windows, and pixels moved between channels and space.

#include <array>
#include <tuple>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/resize.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"
#include "fake_tensor/kernels/typed_outputs.h"

namespace ddpopt::kernels {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Sizes = std::vector<int64_t>;

Sizes GridSamplerSizes(const char* name, const Tensor& input, const Tensor& grid, int64_t spatial) {
  TORCH_CHECK(input.dim() == spatial + 2 && grid.dim() == spatial + 2, name, ": input and grid must have ", spatial + 2,
              " dimensions, not ", input.sizes(), " and ", grid.sizes());
  TORCH_CHECK(input.size(0) == grid.size(0), name, ": input and grid differ in their batch: ", input.sizes(), " and ", grid.sizes());
  TORCH_CHECK(grid.size(-1) == spatial, name, ": the grid's last dimension must be ", spatial, ", not ", grid.size(-1));
  for (int64_t i = 2; i < input.dim(); ++i) TORCH_CHECK(input.size(i) > 0, name, ": the input is empty: ", input.sizes());
  TORCH_CHECK(grid.scalar_type() == input.scalar_type() || input.numel() == 0 || grid.numel() == 0, name, ": expected the grid to be ",
              input.scalar_type(), ", found ", grid.scalar_type());
  Sizes sizes = {input.size(0), input.size(1)};
  for (int64_t i = 1; i <= spatial; ++i) sizes.push_back(grid.size(i));
  return sizes;
}

template <int kSpatial>
Tensor GridSampler(const Tensor& input, const Tensor& grid, int64_t /*interpolation*/, int64_t /*padding*/, bool /*align_corners*/) {
  constexpr const char* kName = kSpatial == 2 ? "grid_sampler_2d" : "grid_sampler_3d";
  return Empty(GridSamplerSizes(kName, input, grid, kSpatial), input.options());
}

template <int kSpatial>
std::tuple<Tensor, Tensor> GridSamplerBackward(const Tensor& grad_output, const Tensor& input, const Tensor& grid,
                                               int64_t /*interpolation*/, int64_t /*padding*/, bool /*align_corners*/,
                                               std::array<bool, 2> output_mask) {
  constexpr const char* kName = kSpatial == 2 ? "grid_sampler_2d_backward" : "grid_sampler_3d_backward";
  const Sizes sizes = GridSamplerSizes(kName, input, grid, kSpatial);
  TORCH_CHECK(grad_output.sizes() == IntArrayRef(sizes), kName, ": grad_output has shape ", grad_output.sizes(), ", not ",
              IntArrayRef(sizes));
  TORCH_CHECK(grad_output.scalar_type() == input.scalar_type(), kName, ": expected grad_output to be ", input.scalar_type(), ", found ",
              grad_output.scalar_type());
  // The grid's gradient is a by-product, wanted or not.
  return {output_mask[0] ? EmptyContiguousLike(input) : Tensor(), EmptyContiguousLike(grid)};
}

// These know floats only.
Tensor GridSamplerFallback(const Tensor& input, const Tensor& grid, int64_t interpolation, int64_t padding, bool align_corners) {
  TORCH_CHECK(input.scalar_type() == at::kFloat || input.numel() == 0 || grid.numel() == 0,
              "_grid_sampler_2d_cpu_fallback: expected Float, found ", input.scalar_type());
  return GridSampler<2>(input, grid, interpolation, padding, align_corners);
}
std::tuple<Tensor, Tensor> GridSamplerFallbackBackward(const Tensor& grad_output, const Tensor& input, const Tensor& grid,
                                                       int64_t interpolation, int64_t padding, bool align_corners) {
  TORCH_CHECK(input.scalar_type() == at::kFloat || input.numel() == 0 || grid.numel() == 0,
              "_grid_sampler_2d_cpu_fallback_backward: expected Float, found ", input.scalar_type());
  return GridSamplerBackward<2>(grad_output, input, grid, interpolation, padding, align_corners, {true, true});
}

struct Window2d {
  IntArrayRef kernel, dilation, padding, stride;
};

void CheckWindow(const char* name, const Window2d& window) {
  for (const IntArrayRef list : {window.kernel, window.dilation, window.padding, window.stride}) {
    TORCH_CHECK(list.size() == 2, name, ": lists of 2 elements are wanted, not ", list);
  }
  for (int i = 0; i < 2; ++i) {
    TORCH_CHECK(window.kernel[i] > 0 && window.dilation[i] > 0 && window.stride[i] > 0, name,
                ": kernel size, dilation and stride must be positive");
    TORCH_CHECK(window.padding[i] >= 0, name, ": negative padding ", window.padding);
  }
}

// How many positions the window takes.
int64_t Blocks(const char* name, IntArrayRef spatial, const Window2d& window) {
  int64_t blocks = 1;
  for (int i = 0; i < 2; ++i) {
    const int64_t span = spatial[i] + 2 * window.padding[i] - window.dilation[i] * (window.kernel[i] - 1) - 1;
    TORCH_CHECK(span >= 0, name, ": a window of ", window.kernel, " doesn't fit into ", spatial);
    blocks *= span / window.stride[i] + 1;
  }
  return blocks;
}

// What is unbatched is batched on the way, and so contiguous.
void ResizeBatched(IntArrayRef sizes, std::size_t dims, Tensor& out) {
  if (sizes.size() < dims) {
    Sizes batched = sizes.vec();
    batched.insert(batched.begin(), 1);
    out.resize_(batched);
  }
  out.resize_(sizes);
}

Tensor Im2col(const Tensor& self, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef padding, IntArrayRef stride) {
  constexpr const char* kName = "im2col";
  const Window2d window = {kernel, dilation, padding, stride};
  CheckWindow(kName, window);
  TORCH_CHECK(self.dim() == 3 || self.dim() == 4, kName, ": 3 or 4 dimensions are wanted, not ", self.sizes());
  for (int64_t i = self.dim() - 3; i < self.dim(); ++i) {
    TORCH_CHECK(self.size(i) != 0, kName, ": only the batch may be empty, not ", self.sizes());
  }
  const int64_t columns = Blocks(kName, self.sizes().slice(self.dim() - 2), window);
  const int64_t rows = self.size(-3) * kernel[0] * kernel[1];
  // The result begins with the input's shape, and its storage keeps that size.
  Tensor result = EmptyContiguousLike(self);
  if (self.dim() == 3) return result.resize_({rows, columns});
  return result.resize_({self.size(0), rows, columns});
}

Tensor& Im2colOut(const Tensor& self, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef padding, IntArrayRef stride, Tensor& out) {
  const Tensor result = Im2col(self, kernel, dilation, padding, stride);
  CheckOutDtype(result, out, OutDtype::kOfElements);
  ResizeBatched(result.sizes(), 3, out);
  return out;
}

Tensor& Col2imOut(const Tensor& self, IntArrayRef output_size, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef padding,
                  IntArrayRef stride, Tensor& out) {
  constexpr const char* kName = "col2im";
  TORCH_CHECK(output_size.size() == 2, kName, ": output_size must have 2 elements, not ", output_size.size());
  const Window2d window = {kernel, dilation, padding, stride};
  CheckWindow(kName, window);
  TORCH_CHECK((self.dim() == 2 || self.dim() == 3) && self.size(-1) != 0 && self.size(-2) != 0, kName,
              ": 2 or 3 dimensions are wanted, of which only the batch may be empty, not ", self.sizes());
  const int64_t taps = kernel[0] * kernel[1];
  TORCH_CHECK(self.size(-2) % taps == 0, kName, ": ", self.size(-2), " rows aren't a multiple of the kernel ", kernel);
  const int64_t columns = Blocks(kName, output_size, window);
  TORCH_CHECK(self.size(-1) == columns, kName, ": ", columns, " columns are wanted, not ", self.size(-1));
  TORCH_CHECK(out.scalar_type() == self.scalar_type() || self.numel() == 0, kName, ": out= must be ", self.scalar_type());
  Sizes sizes = {self.size(-2) / taps, output_size[0], output_size[1]};
  if (self.dim() == 3) sizes.insert(sizes.begin(), self.size(0));
  ResizeBatched(sizes, 4, out);
  return out;
}

Tensor Col2im(const Tensor& self, IntArrayRef output_size, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef padding,
              IntArrayRef stride) {
  Tensor out = EmptyContiguousLike(self);  // as in im2col
  Col2imOut(self, output_size, kernel, dilation, padding, stride, out);
  return out;
}

at::MemoryFormat PixelFormat(const char* name, const Tensor& self) {
  const at::MemoryFormat format = self.suggest_memory_format();
  TORCH_CHECK(format != at::MemoryFormat::ChannelsLast3d, name, ": not for channels-last in three dimensions");
  return format;
}

// In the memory format that the input suggests.
Tensor PixelShuffle(const Tensor& self, int64_t factor) {
  constexpr const char* kName = "pixel_shuffle";
  TORCH_CHECK(self.dim() >= 3, kName, ": at least 3 dimensions are wanted, not ", self.sizes());
  TORCH_CHECK(factor > 0 && self.size(-3) % (factor * factor) == 0, kName, ": ", self.size(-3), " channels aren't a multiple of ", factor,
              " squared");
  Sizes sizes = self.sizes().vec();
  const std::size_t last = sizes.size() - 1;
  sizes[last - 2] /= factor * factor;
  sizes[last - 1] *= factor;
  sizes[last] *= factor;
  if (self.numel() == 0) return Empty(sizes, self.options());
  return Empty(sizes, self.options(), PixelFormat(kName, self));
}
Tensor PixelUnshuffle(const Tensor& self, int64_t factor) {
  constexpr const char* kName = "pixel_unshuffle";
  TORCH_CHECK(self.dim() >= 3, kName, ": at least 3 dimensions are wanted, not ", self.sizes());
  TORCH_CHECK(factor > 0 && self.size(-1) % factor == 0 && self.size(-2) % factor == 0, kName, ": ", self.sizes(),
              " doesn't divide into blocks of ", factor);
  // The real kernel leaves these as they are.
  if (self.numel() == 0) return EmptyContiguousLike(self);
  Sizes sizes = self.sizes().vec();
  const std::size_t last = sizes.size() - 1;
  sizes[last - 2] *= factor * factor;
  sizes[last - 1] /= factor;
  sizes[last] /= factor;
  return Empty(sizes, self.options(), PixelFormat(kName, self));
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("grid_sampler_2d", GridSampler<2>);
  m.impl("grid_sampler_2d_backward", GridSamplerBackward<2>);
  m.impl("grid_sampler_3d", GridSampler<3>);
  m.impl("grid_sampler_3d_backward", GridSamplerBackward<3>);
  m.impl("_grid_sampler_2d_cpu_fallback", GridSamplerFallback);
  m.impl("_grid_sampler_2d_cpu_fallback_backward", GridSamplerFallbackBackward);
  m.impl("pixel_shuffle", PixelShuffle);
  m.impl("pixel_unshuffle", PixelUnshuffle);
  m.impl("im2col", Im2col);
  m.impl("im2col.out", Im2colOut);
  m.impl("col2im", Col2im);
  m.impl("col2im.out", Col2imOut);
}

}  // namespace
}  // namespace ddpopt::kernels
