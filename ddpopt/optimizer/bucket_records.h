#ifndef DDPOPT_OPTIMIZER_BUCKET_RECORDS_H_
#define DDPOPT_OPTIMIZER_BUCKET_RECORDS_H_

// Test code. Recorded runs of PyTorch's DDPOptimizer (the `.jsonl.gz` files of a ddp_buckets folder, one run a line) against the
// reference rule and SplitModule.
//
//   BucketRecords records({.text = true});
//   absl::Status status = records.CheckFile("special.jsonl.gz", [](const RecordOutcome& outcome) { ... });
//
// Not thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "testing/oracle_graph.h"

namespace ddpopt {

struct RecordOutcome {
  enum class Verdict { kPassed, kFailed, kSkipped };
  Verdict verdict = Verdict::kPassed;
  std::string id;                        // "special.jsonl.gz:17 S_Cond dynamo 0, cap 16384, first cap 16384"
  std::vector<std::string> differences;  // why it failed: the field, what was recorded, what came out
  std::string skip_reason;
};

class BucketRecords {
 public:
  struct Options {
    bool text = false;  // compare the printed graphs too, byte for byte
  };
  explicit BucketRecords(Options options) : options_(options) {}

  // One record, a line of the file; graphs are read from `graphs_folder` ("<model>.<form>.<graph>.json.gz"). What is damaged or
  // missing is a failure that names it. Skipped are runs of which no graph or no buckets were recorded.
  RecordOutcome Check(absl::string_view line, const std::string& graphs_folder);

  // Every record of the file, with graphs/ beside it. An error (NotFound, DataLoss) if the file itself can't be read.
  absl::Status CheckFile(const std::string& path, absl::FunctionRef<void(const RecordOutcome&)> report);

 private:
  absl::StatusOr<const testing::OracleGraph*> Graph(const std::string& path);

  Options options_;
  absl::flat_hash_map<std::string, std::unique_ptr<testing::OracleGraph>> graphs_;
};

// The record files of a folder, sorted, or the file itself. NotFound if there are none.
absl::StatusOr<std::vector<std::string>> RecordFiles(const std::string& path);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_BUCKET_RECORDS_H_
