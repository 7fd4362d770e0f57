#ifndef DDPOPT_CAPTURE_PT2_PARSE_FOR_TEST_H_
#define DDPOPT_CAPTURE_PT2_PARSE_FOR_TEST_H_

// For the tests of this package.
//
//   const std::shared_ptr<ExportedProgram> program = Parse(written);      // fails the test, and is null, for what can't be read

#include <memory>

#include "ddpopt/capture/pt2/exported_program.h"
#include "gtest/gtest.h"
#include "testing/exported_json.h"
#include "testing/matchers.h"

namespace ddpopt {

inline std::shared_ptr<ExportedProgram> Parse(const testing::ExportedJson& program) {
  auto parsed = ParseExportedProgram(program.Text());
  EXPECT_THAT(parsed, testing::IsOk());
  if (!parsed.ok()) return nullptr;
  EXPECT_THAT((*parsed)->module()->Lint(), testing::IsOk());
  return *parsed;
}

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_PT2_PARSE_FOR_TEST_H_
