#include <iostream>
#include <string>
#include <vector>

#include "tools/graph_opt_run.h"

int main(int argc, char** argv) { return ddpopt::RunGraphOpt(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr); }
