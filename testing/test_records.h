#ifndef DDPOPT_TESTING_TEST_RECORDS_H_
#define DDPOPT_TESTING_TEST_RECORDS_H_

// What each rank of a distributed test tells of its cases, line by line so that it survives the rank's death, and how these are merged into
// one XML like googletest's.
//
// Lines are JSON objects: {"plan": {suite, name, file, line, disabled}} for every case before the first runs, {"start": "Suite.Name"},
// {"end": "Suite.Name", "result": "passed" | "failed" | "skipped", "messages": [...], "seconds": s}.

#include <string>
#include <vector>

namespace ddpopt::testing {

struct RankRecord {
  std::string lines;      // what the rank wrote
  bool succeeded = true;  // its process exited with 0
  std::string fate;       // "exited with status 0", "was killed by signal 9 (Killed)", ...
};

struct MergedCase {
  std::string suite, name, file;
  int line = 0;
  bool disabled = false;
  bool skipped = false;               // on every rank
  double seconds = 0;                 // the slowest rank's
  std::vector<std::string> failures;  // each names its rank
};

// A case fails if any rank failed it, or didn't finish it. A rank that didn't succeed though all its cases did adds a case
// "DistributedTest.RankSucceeds" that fails.
std::vector<MergedCase> MergeRecords(const std::vector<RankRecord>& records);

std::string ToXml(const std::vector<MergedCase>& cases);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_TEST_RECORDS_H_
