#ifndef DDPOPT_TESTING_RUN_PROGRAM_H_
#define DDPOPT_TESTING_RUN_PROGRAM_H_

// A program as its users call it.
//
//   const ProgramResult result = RunProgram("tools/inspect --json model.pt2");
//   EXPECT_EQ(result.status, 0) << result.err;
//   const nlohmann::json json = nlohmann::json::parse(result.last_line());

#include <string>
#include <vector>

namespace ddpopt::testing {

struct ProgramResult {
  int status = -1;       // exit status; 128 + signal if it died of one
  std::string out, err;  // what it wrote
  std::vector<std::string> lines() const;  // of out, without empty ones
  std::string last_line() const;           // of out
};

// Runs a command of the shell until it ends, in this process's working directory.
ProgramResult RunProgram(const std::string& command);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_RUN_PROGRAM_H_
