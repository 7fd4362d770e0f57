// Runs a program on several ranks, of one or several machines, as torchrun does: `--help` tells the rest.

#include "ddpopt/distributed/launcher_main.h"

int main(int argc, char** argv) { return ddpopt::LauncherMain("launch", argc, argv); }
