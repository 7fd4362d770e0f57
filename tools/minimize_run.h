#ifndef DDPOPT_TOOLS_MINIMIZE_RUN_H_
#define DDPOPT_TOOLS_MINIMIZE_RUN_H_

// The program minimize without its process, so that tests need not start one. `--help` tells everything.

#include <ostream>
#include <string>
#include <vector>

namespace ddpopt {

// The exit status. `arguments` are those after the program's name. Backends that the process has registered can be named.
int RunMinimize(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace ddpopt

#endif  // DDPOPT_TOOLS_MINIMIZE_RUN_H_
