// Runs a program on several ranks of this machine: `--help` tells the rest.

#include "ddpopt/distributed/launcher_main.h"

int main(int argc, char** argv) { return ddpopt::LauncherMain("harness", argc, argv); }
