#ifndef DDPOPT_TOOLS_GRAPH_OPT_RUN_H_
#define DDPOPT_TOOLS_GRAPH_OPT_RUN_H_

// The program graph_opt without its process, so that tests need not start one: reads a graph, runs passes on it, prints, checks and draws it.
// `--help` tells everything.

#include <ostream>
#include <string>
#include <vector>

namespace ddpopt {

// The exit status. `arguments` are those after the program's name; an input "-" is the process's standard input.
int RunGraphOpt(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace ddpopt

#endif  // DDPOPT_TOOLS_GRAPH_OPT_RUN_H_
