#ifndef DDPOPT_FX_GRAPH_TEXT_JSON_CONSTANTS_H_
#define DDPOPT_FX_GRAPH_TEXT_JSON_CONSTANTS_H_

// Constants that our JSON forms write alike. Errors are InvalidArgument with the place. Thread-safe.

#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "c10/core/Device.h"
#include "fx_graph/text/json_view.h"

namespace ddpopt::fx {

// null, true, 1, 0.5, "text". Error: an array, an object, an integer of more than 64 bits.
absl::StatusOr<c10::IValue> JsonScalar(const JsonView& view);
// A number, or {key: "inf" | "-inf" | "nan"}, as JSON lacks these.
absl::StatusOr<double> JsonFloat(const JsonView& view, absl::string_view key);
// [re, im], each as JsonFloat.
absl::StatusOr<c10::complex<double>> JsonComplex(const JsonView& view, absl::string_view key);
// "cuda:1".
absl::StatusOr<c10::Device> JsonDevice(const JsonView& view);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_TEXT_JSON_CONSTANTS_H_
