#include "testing/matchers.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ATen/ops/isclose.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ddpopt::testing::internal {
namespace {

// The index of the flat'th element in row-major order, as "[1, 2]".
std::string IndexText(const at::Tensor& tensor, int64_t flat) {
  std::vector<int64_t> index(tensor.dim());
  for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
    index[d] = flat % tensor.size(d);
    flat /= tensor.size(d);
  }
  return ListText(index);
}

std::string ElementText(const at::Tensor& flat, int64_t i) {
  const at::Scalar value = flat.select(0, i).item();
  if (value.isComplex()) return absl::StrCat(value.toComplexDouble().real(), "+", value.toComplexDouble().imag(), "i");
  if (value.isFloatingPoint()) {
    char text[40];
    std::snprintf(text, sizeof(text), "%.9g", value.toDouble());
    return text;
  }
  if (value.isBoolean()) return value.toBool() ? "true" : "false";
  return absl::StrCat(value.toLong());
}

std::string Comparable(const at::Tensor& tensor, const at::Tensor& expected) {
  if (!expected.defined()) return tensor.defined() ? "which is defined" : "";
  if (!tensor.defined()) return "which is undefined";
  if (std::string text = DtypeDifference(tensor, expected.scalar_type()); !text.empty()) return text;
  if (std::string text = ShapeDifference(tensor, expected.sizes().vec()); !text.empty()) return text;
  if (tensor.is_meta() || expected.is_meta()) return "which can't be compared: a meta tensor has no values";
  return "";
}

}  // namespace

std::string ListText(const std::vector<int64_t>& list) { return absl::StrCat("[", absl::StrJoin(list, ", "), "]"); }

std::string TensorText(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return absl::StrCat("a ", c10::toString(tensor.scalar_type()), " tensor of shape ", ListText(tensor.sizes().vec()), " on ",
                      tensor.device().str());
}

std::string ShapeDifference(const at::Tensor& tensor, const std::vector<int64_t>& shape) {
  if (!tensor.defined()) return "which is undefined";
  return tensor.sizes() == at::IntArrayRef(shape)
             ? ""
             : absl::StrCat("which has shape ", ListText(tensor.sizes().vec()), ", not ", ListText(shape));
}

std::string StridesDifference(const at::Tensor& tensor, const std::vector<int64_t>& strides) {
  if (!tensor.defined()) return "which is undefined";
  return tensor.strides() == at::IntArrayRef(strides)
             ? ""
             : absl::StrCat("which has strides ", ListText(tensor.strides().vec()), ", not ", ListText(strides));
}

std::string DtypeDifference(const at::Tensor& tensor, at::ScalarType dtype) {
  if (!tensor.defined()) return "which is undefined";
  return tensor.scalar_type() == dtype
             ? ""
             : absl::StrCat("which has dtype ", c10::toString(tensor.scalar_type()), ", not ", c10::toString(dtype));
}

std::string DeviceDifference(const at::Tensor& tensor, const at::Device& device) {
  if (!tensor.defined()) return "which is undefined";
  const bool same = tensor.device().type() == device.type() && (!device.has_index() || tensor.device().index() == device.index());
  return same ? "" : absl::StrCat("which is on ", tensor.device().str(), ", not ", device.str());
}

std::string StorageDifference(const at::Tensor& tensor, const at::Tensor& other) {
  if (!tensor.defined() || !other.defined()) return "which can't be: one of the two is undefined";
  if (!tensor.has_storage() || !other.has_storage()) return "which can't be: one of the two has no storage";
  return tensor.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() ? "" : "which has a storage of its own";
}

std::string BitwiseDifference(const at::Tensor& tensor, const at::Tensor& expected) {
  const std::string incomparable = Comparable(tensor, expected);
  if (!incomparable.empty() || !expected.defined()) return incomparable;
  const at::Tensor a = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg().view({-1});
  const at::Tensor b = expected.detach().cpu().contiguous().resolve_conj().resolve_neg().view({-1});
  const size_t element = a.element_size();
  const char* pa = static_cast<const char*>(a.const_data_ptr());
  const char* pb = static_cast<const char*>(b.const_data_ptr());
  int64_t different = 0;
  int64_t first = -1;
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (std::memcmp(pa + i * element, pb + i * element, element) == 0) continue;
    if (different++ == 0) first = i;
  }
  if (different == 0) return "";
  return absl::StrCat("which differs in ", different, " of ", a.numel(), " elements, first at ", IndexText(expected, first), ": ",
                      ElementText(a, first), ", not ", ElementText(b, first));
}

std::string CloseDifference(const at::Tensor& tensor, const at::Tensor& expected, double rtol, double atol) {
  const std::string incomparable = Comparable(tensor, expected);
  if (!incomparable.empty() || !expected.defined()) return incomparable;
  const at::Tensor a = tensor.detach().cpu().contiguous().view({-1});
  const at::Tensor b = expected.detach().cpu().contiguous().view({-1});
  const at::Tensor close = at::isclose(a, b, rtol, atol, /*equal_nan=*/true);
  const bool* ok = close.const_data_ptr<bool>();
  const bool complex = a.is_complex();
  int64_t different = 0;
  int64_t worst = -1;
  double worst_difference = -1;
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (ok[i]) continue;
    ++different;
    double difference = 0;
    if (!complex) {
      difference = std::abs(a.select(0, i).item().toDouble() - b.select(0, i).item().toDouble());
      if (std::isnan(difference)) difference = std::numeric_limits<double>::infinity();
    }
    if (difference > worst_difference) {
      worst_difference = difference;
      worst = i;
    }
  }
  if (different == 0) return "";
  return absl::StrCat("which is off in ", different, " of ", a.numel(), " elements, most at ", IndexText(expected, worst), ": ",
                      ElementText(a, worst), ", not ", ElementText(b, worst),
                      complex ? "" : absl::StrCat(" (difference ", worst_difference, ")"));
}

}  // namespace ddpopt::testing::internal
