#include "fx_graph/text/json_constants.h"

#include <string>

#include "base/status.h"
#include "fx_graph/words.h"

namespace ddpopt::fx {

absl::StatusOr<c10::IValue> JsonScalar(const JsonView& view) {
  switch (view.kind()) {
    case JsonView::Kind::kNull:
      return c10::IValue();
    case JsonView::Kind::kBool:
      return c10::IValue(view.value().boolean);
    case JsonView::Kind::kInt:
      return c10::IValue(view.value().integer);
    case JsonView::Kind::kFloat:
      if (!view.value().text.empty()) return view.Expected("an integer of 64 bits");
      return c10::IValue(view.value().number);
    case JsonView::Kind::kString:
      return c10::IValue(view.value().text);
    case JsonView::Kind::kArray:
    case JsonView::Kind::kObject:
      break;
  }
  return view.Expected("a constant");
}

absl::StatusOr<double> JsonFloat(const JsonView& view, absl::string_view key) {
  if (view.kind() == JsonView::Kind::kInt) return static_cast<double>(view.value().integer);
  if (view.kind() == JsonView::Kind::kFloat) return view.value().number;
  if (view.is_object() && view.size() == 1 && view.KeyAt(0) == key && view[0].is_string()) {
    c10::IValue number;
    if (ClassifyWord(view[0].value().text, &number) == WordKind::kFloat) return number.toDouble();
  }
  return view.Expected("a number");
}

absl::StatusOr<c10::complex<double>> JsonComplex(const JsonView& view, absl::string_view key) {
  if (!view.is_array() || view.size() != 2) return view.Expected("a real and an imaginary part");
  DDPOPT_ASSIGN_OR_RETURN(const double real, JsonFloat(view[0], key));
  DDPOPT_ASSIGN_OR_RETURN(const double imaginary, JsonFloat(view[1], key));
  return c10::complex<double>(real, imaginary);
}

absl::StatusOr<c10::Device> JsonDevice(const JsonView& view) {
  DDPOPT_ASSIGN_OR_RETURN(const std::string text, view.AsString());
  c10::IValue device;
  if (ClassifyWord(text, &device) != WordKind::kDevice) return view.Expected("a device");
  return device.toDevice();
}

}  // namespace ddpopt::fx
