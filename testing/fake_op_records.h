#ifndef DDPOPT_TESTING_FAKE_OP_RECORDS_H_
#define DDPOPT_TESTING_FAKE_OP_RECORDS_H_

// Recorded calls of ATen operators with what the real kernels gave (files fake_ops.*.jsonl.gz), replayed on fake tensors.
//
// A case passes if the call on fakes gives the recorded shapes, dtypes, strides, offsets, storage sizes, devices and aliasing, and leaves
// the inputs with the recorded metadata; where the result depends on data ("dde"), if it is refused for that reason. No real kernel of the
// operator is executed: inputs are built from their metadata and made fake, and the fake mode has no fallback to real kernels.

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ddpopt::testing {

struct FakeOpVerdict {
  enum class Kind { kPassed, kFailed, kSkipped };
  Kind kind = Kind::kPassed;
  std::string id, op;
  // Failed: of what kind ("stride", "dtype", "no rule", "unexpected error", "not refused", "bad record", …) and in words. Skipped: why.
  std::string category, detail;
};

// One line of the file.
FakeOpVerdict CheckFakeOpCase(absl::string_view json);

// Every case of a file, gzipped or not, in order. `wanted` says by the operator's name ("aten::add.Tensor") which are looked at; others are
// not reported. Errors: those of reading the file.
absl::Status CheckFakeOpCases(const std::string& path, const std::function<bool(absl::string_view op)>& wanted,
                              const std::function<void(const FakeOpVerdict&)>& report);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_FAKE_OP_RECORDS_H_
