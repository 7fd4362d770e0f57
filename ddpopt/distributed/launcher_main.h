#ifndef DDPOPT_DISTRIBUTED_LAUNCHER_MAIN_H_
#define DDPOPT_DISTRIBUTED_LAUNCHER_MAIN_H_

// Internal: the launcher as a program, with torchrun's flags. --help tells them.
//
//   int main(int argc, char** argv) { return ddpopt::LauncherMain("launch", argc, argv); }

namespace ddpopt {

// `name`: the program's, for messages. Returns the exit status.
int LauncherMain(const char* name, int argc, char** argv);

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_LAUNCHER_MAIN_H_
