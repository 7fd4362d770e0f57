#ifndef DDPOPT_TOOLS_CHECK_MODELS_COMPARE_H_
#define DDPOPT_TOOLS_CHECK_MODELS_COMPARE_H_

// How check_models compares what a program gives with what was recorded. Private to the tools.
//
//   Differences differences;
//   DDPOPT_RETURN_IF_ERROR(CompareGradients(*program, recorded, "", &differences));
//   differences.Text();                                        // empty: they agree
//
// Functions that return a Status fail for recordings that can't be read; what differs goes to Differences.

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/capture/pt2/safetensors.h"
#include "fx_graph/text/json_view.h"

namespace ddpopt {

// Of the largest value: 1e-4 for float32, 1e-9 for float64, 2e-2 for bfloat16 and float16; integers and bools exactly.
double ToleranceOf(c10::ScalarType dtype);
std::string ShapeText(at::IntArrayRef shape);

// Empty if the tensors agree: shape and dtype, and each value within ToleranceOf. A difference of `floor` is always allowed.
std::string TensorDifference(const at::Tensor& actual, const at::Tensor& expected, double floor = 0);

// Everything that differs, a line each.
class Differences {
 public:
  template <typename... Parts>
  void Add(const Parts&... parts) {
    lines_.push_back(absl::StrCat(parts...));
  }
  void AddTensor(absl::string_view name, const at::Tensor& actual, const at::Tensor& expected, double floor = 0);
  // `tolerance` is absolute. `scale`: of what was added up to make the number.
  void AddNumber(absl::string_view name, double actual, double expected, double tolerance, double scale = 0);
  void AddStatus(const absl::Status& status);
  void Append(const Differences& others);
  bool empty() const { return lines_.empty(); }
  const std::vector<std::string>& lines() const { return lines_; }
  // Whether nearly all that was compared agrees to the last bit. Then what doesn't isn't rounding.
  bool SameArithmetic() const { return 10 * same_ >= 9 * compared_; }
  int compared() const { return compared_; }
  // The first few.
  std::string Text() const;

 private:
  std::vector<std::string> lines_;
  int compared_ = 0, same_ = 0;
};

// A folder's manifest, kept with what its views point into.
struct Manifest {
  fx::JsonValue json;
  static absl::StatusOr<std::unique_ptr<Manifest>> Read(const std::string& path);
  fx::JsonView root() const { return fx::JsonView(json); }
};

absl::StatusOr<double> FloatOf(const fx::JsonView& view);
absl::StatusOr<std::vector<double>> ReadFloats(const fx::JsonView& list);

// Names, shapes, dtypes and requires_grad of parameters and buffers, and the shapes of inputs. `ordered`: parameters in the recorded order,
// ties as recorded.
absl::Status CompareDescription(const ExportedProgram& program, const fx::JsonView& manifest, bool ordered, Differences* differences);

void ClearGradients(const ExportedProgram& program);
// Of the sum of the outputs that require gradients.
void Backward(const std::vector<c10::IValue>& outputs);

// Recorded gradients against those given (GradientsOf), both ways; `prefix` is what the file puts before the names. `floors`, by parameter:
// what may always differ.
absl::Status CompareGradients(const ExportedProgram& program, const std::map<std::string, at::Tensor>& gradients,
                              const SafetensorsFile& file, const std::string& prefix, const std::map<std::string, double>& floors,
                              Differences* differences);

// Of one tensor, in float64.
struct Statistics {
  double l2 = 0, sum = 0, abssum = 0, first = 0;
  double largest = 0;
  int64_t numel = 0;

  static Statistics Of(const at::Tensor& tensor);
  // This being differences: to those of `b` from `a`, if they are larger.
  void Widen(const Statistics& a, const Statistics& b);
};

using FindTensor = std::function<absl::optional<at::Tensor>(const std::string&)>;
// What differences are allowed beside the tolerance of the dtype: of a tensor's statistics.
using Allowance = std::function<Statistics(const std::string& name, const Statistics& own)>;

// {name: {"l2", "sum", "abssum", "first"}} against tensors. With an allowance, sums and first elements, which cancel, are held to the size
// of what was added up too; without one, each number is held to itself.
absl::Status CompareStatistics(const fx::JsonView& stats, const FindTensor& find, const Allowance& allowance, Differences* differences);

void CompareLosses(absl::string_view name, const std::vector<double>& actual, const std::vector<double>& expected,
                   const std::vector<double>& allowed, Differences* differences);

}  // namespace ddpopt

#endif  // DDPOPT_TOOLS_CHECK_MODELS_COMPARE_H_
