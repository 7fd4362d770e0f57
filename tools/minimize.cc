#include <iostream>
#include <string>
#include <vector>

#include "tools/minimize_run.h"

int main(int argc, char** argv) { return ddpopt::RunMinimize(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr); }
