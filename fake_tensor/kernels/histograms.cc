// Histograms, and reductions over segments. Edges found from data have a known number, whatever they are.

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/MemoryOverlap.h"
#include "ATen/WrapDimUtils.h"
#include "ATen/core/Tensor.h"
#include "ATen/native/Resize.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::IntArrayRef;
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using MaybeRange = std::optional<at::ArrayRef<double>>;

void CheckCountedDtype(const Tensor& tensor) {
  TORCH_CHECK(at::isFloatingType(tensor.scalar_type()) && !at::isFloat8Type(tensor.scalar_type()), "histogram: there is no kernel for ",
              tensor.scalar_type());
}

void CheckWeight(const Tensor& self, const MaybeTensor& weight, IntArrayRef points) {
  if (!Given(weight)) return;
  TORCH_CHECK(weight->scalar_type() == self.scalar_type(), "histogram: the weight must be ", self.scalar_type(), ", not ",
              weight->scalar_type());
  const std::vector<int64_t> sizes = weight->dim() == 0 ? std::vector<int64_t>{1} : weight->sizes().vec();
  TORCH_CHECK(points == IntArrayRef(sizes), "histogram: the weight must have shape ", points, ", not ", weight->sizes());
}

// Without a range, edges are found from the data, which is done for fewer dtypes.
void CheckRange(const Tensor& self, const MaybeRange& range, std::size_t dims) {
  if (!range.has_value()) {
    TORCH_CHECK(self.numel() == 0 || self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble,
                "histogram: edges can't be found from tensors of ", self.scalar_type());
    return;
  }
  TORCH_CHECK(range->size() == 2 * dims, "histogram: the range must have ", 2 * dims, " elements, not ", range->size());
  for (std::size_t i = 0; i < dims; ++i) {
    const double from = (*range)[2 * i];
    const double to = (*range)[2 * i + 1];
    TORCH_CHECK(std::isfinite(from) && std::isfinite(to) && from <= to, "histogram: not a range: ", from, " to ", to);
  }
}

void CheckPoints(const Tensor& self, std::size_t bins) {
  TORCH_CHECK(self.dim() >= 2, "histogramdd: at least 2 dimensions are wanted, not ", self.sizes());
  TORCH_CHECK(static_cast<int64_t>(bins) == self.size(-1), "histogramdd: bins for ", bins, " dimensions, points of ", self.size(-1));
}

void CheckBinCounts(IntArrayRef bins) {
  for (const int64_t count : bins) TORCH_CHECK(count > 0, "histogram: numbers of bins must be positive, not ", count);
}

int64_t CheckEdges(const Tensor& self, const Tensor& edges) {
  TORCH_CHECK(edges.scalar_type() == self.scalar_type(), "histogram: bins must be ", self.scalar_type(), ", not ", edges.scalar_type());
  TORCH_CHECK(edges.dim() == 1 && edges.numel() > 1, "histogram: bins must be a vector of at least 2 edges, not ", edges.sizes());
  return edges.numel() - 1;
}

std::vector<Tensor> HistogramddBinEdges(const Tensor& self, IntArrayRef bins, MaybeRange range, const MaybeTensor& /*weight*/,
                                        bool /*density*/) {
  CheckPoints(self, bins.size());
  CheckRange(self, range, bins.size());
  TORCH_CHECK(self.scalar_type() != at::kBool, "histogramdd: there are no edges of dtype Bool");
  std::vector<Tensor> edges;
  // No bins still have an edge.
  for (const int64_t count : bins) edges.push_back(Empty({count + 1}, self.options()));
  return edges;
}

Tensor HistogramddFromBinCts(const Tensor& self, IntArrayRef bins, MaybeRange range, const MaybeTensor& weight, bool density) {
  HistogramddBinEdges(self, bins, range, weight, density);
  CheckBinCounts(bins);
  CheckWeight(self, weight, self.sizes().slice(0, self.dim() - 1));
  CheckCountedDtype(self);
  return Empty(bins, self.options());
}

Tensor HistogramddFromBinTensors(const Tensor& self, at::TensorList bins, const MaybeTensor& weight, bool /*density*/) {
  CheckPoints(self, bins.size());
  std::vector<int64_t> sizes;
  for (const Tensor& edges : bins) sizes.push_back(CheckEdges(self, edges));
  CheckWeight(self, weight, self.sizes().slice(0, self.dim() - 1));
  CheckCountedDtype(self);
  return Empty(sizes, self.options());
}

void CheckFlatWeight(const Tensor& self, const MaybeTensor& weight) {
  if (!Given(weight)) return;
  CheckWeight(self, weight->reshape({weight->numel()}), {self.numel()});
}

std::tuple<Tensor, Tensor> HistogramBinTensor(const Tensor& self, const Tensor& bins, const MaybeTensor& weight, bool /*density*/) {
  const int64_t count = CheckEdges(self, bins);
  CheckFlatWeight(self, weight);
  CheckCountedDtype(self);
  return {Empty({count}, self.options()), Empty(bins.sizes(), bins.options())};
}

std::tuple<Tensor, Tensor> HistogramBinCount(const Tensor& self, int64_t bins, MaybeRange range, const MaybeTensor& weight,
                                             bool /*density*/) {
  CheckBinCounts({bins});
  CheckFlatWeight(self, weight);
  CheckRange(self, range, 1);
  CheckCountedDtype(self);
  return {Empty({bins}, self.options()), Empty({bins + 1}, self.options())};
}

Tensor Histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  CheckBinCounts({bins});
  TORCH_CHECK(!min.isComplex() && !max.isComplex() && min.to<double>() <= max.to<double>(), "histc: not a range: ", min, " to ", max);
  CheckCountedDtype(self);
  return Empty({bins}, self.options());
}

void CheckReduction(c10::string_view reduce) {
  for (const char* known : {"max", "amax", "mean", "min", "amin", "sum", "prod"}) {
    if (reduce == known) return;
  }
  TORCH_CHECK(false, "segment_reduce: unknown reduction ", reduce);
}

void CheckSegmentIndex(const Tensor& tensor) {
  TORCH_CHECK(tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt,
              "segment_reduce: lengths and offsets must be int32 or int64, not ", tensor.scalar_type());
}

Tensor SegmentReduce(const Tensor& data, c10::string_view reduce, const MaybeTensor& lengths, const MaybeTensor& indices,
                     const MaybeTensor& offsets, int64_t axis, bool unsafe, const std::optional<at::Scalar>& /*initial*/) {
  axis = at::maybe_wrap_dim(axis, data.dim());
  TORCH_CHECK(!Given(indices), "segment_reduce: indices are not supported");
  TORCH_CHECK(Given(lengths) || Given(offsets), "segment_reduce: lengths or offsets are wanted");
  CheckReduction(reduce);
  const Tensor& segments = Given(offsets) ? *offsets : *lengths;
  TORCH_CHECK(data.dim() >= segments.dim() && axis == segments.dim() - 1, "segment_reduce: lengths or offsets of shape ", segments.sizes(),
              " for data of shape ", data.sizes(), " and axis ", axis);
  TORCH_CHECK(Given(offsets) || unsafe || segments.numel() != 0, "segment_reduce: there are no lengths");
  CheckSegmentIndex(segments);
  std::vector<int64_t> sizes = data.sizes().vec();
  sizes[axis] = segments.size(axis) - (Given(offsets) ? 1 : 0);
  return Empty(sizes, data.options());
}

Tensor SegmentReduceBackward(const Tensor& grad, const Tensor& /*output*/, const Tensor& data, c10::string_view reduce,
                             const MaybeTensor& lengths, const MaybeTensor& offsets, int64_t axis,
                             const std::optional<at::Scalar>& /*initial*/) {
  at::maybe_wrap_dim(axis, data.dim());
  TORCH_CHECK(Given(lengths) || Given(offsets), "_segment_reduce_backward: lengths or offsets are wanted");
  CheckReduction(reduce);
  CheckSegmentIndex(Given(offsets) ? *offsets : *lengths);
  return Empty(data.sizes(), grad.options());
}

// Counts are added into out= tensors as they are, and divided for a density; edges are copied.
using Histogram = std::tuple<Tensor&, Tensor&>;
Histogram HistogramInto(const std::tuple<Tensor, Tensor>& result, bool density, Tensor& hist, Tensor& edges) {
  const auto fill = [](const Tensor& from, Tensor& to) {
    TORCH_CHECK(from.scalar_type() == to.scalar_type(), "histogram: out= must be ", from.scalar_type(), ", not ", to.scalar_type());
    at::native::resize_output(to, from.sizes());
  };
  fill(std::get<0>(result), hist);
  fill(std::get<1>(result), edges);
  at::assert_no_internal_overlap(edges);
  if (density) at::assert_no_internal_overlap(hist);
  return {hist, edges};
}
Histogram HistogramBinTensorOut(const Tensor& self, const Tensor& bins, const MaybeTensor& weight, bool density, Tensor& hist,
                                Tensor& edges) {
  return HistogramInto(HistogramBinTensor(self, bins, weight, density), density, hist, edges);
}
Histogram HistogramBinCountOut(const Tensor& self, int64_t bins, MaybeRange range, const MaybeTensor& weight, bool density, Tensor& hist,
                               Tensor& edges) {
  return HistogramInto(HistogramBinCount(self, bins, range, weight, density), density, hist, edges);
}

constexpr FakeKernelOptions kCountedInto = {.out_dtype = FakeKernelOptions::OutDtype::kEqual,
                                            .out_strides = FakeKernelOptions::OutStrides::kContiguous,
                                            .overlap = FakeKernelOptions::Overlap::kUnchecked};

DDPOPT_FAKE_KERNELS(m) {
  m.impl("_histogramdd_bin_edges", HistogramddBinEdges);
  m.impl("_histogramdd_from_bin_cts", HistogramddFromBinCts);
  m.impl("_histogramdd_from_bin_tensors", HistogramddFromBinTensors);
  m.impl("histogram.bins_tensor", HistogramBinTensor, kThisForm);
  m.impl("histogram.bins_tensor_out", HistogramBinTensorOut, kThisForm);
  m.impl("histogram.bin_ct", HistogramBinCount, kThisForm);
  m.impl("histogram.bin_ct_out", HistogramBinCountOut, kThisForm);
  m.impl("histc", Histc, kCountedInto);
  m.impl("segment_reduce", SegmentReduce);
  m.impl("_segment_reduce_backward", SegmentReduceBackward);
}

}  // namespace
}  // namespace ddpopt::kernels
