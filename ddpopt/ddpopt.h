#ifndef DDPOPT_DDPOPT_H_
#define DDPOPT_DDPOPT_H_

// The one public header of ddpopt: data-parallel training of LibTorch modules, and of models exported from Python
// (ddpopt/ddp/program_data_parallel.h).
//
//   auto pg  = ddpopt::InitProcessGroup();
//   auto ddp = ddpopt::DistributedDataParallel<Net>::Create(net, *pg);
//   auto loss = (*ddp)->forward(x, y);
//   loss.backward();
//   optimizer.step();

#include "ddpopt/backends/aot_eager.h"             // IWYU pragma: export
#include "ddpopt/backends/registry.h"              // IWYU pragma: export
#include "ddpopt/capture/tracer/checkpoint_region.h"  // IWYU pragma: export
#include "ddpopt/checkpoint/checkpoint.h"          // IWYU pragma: export
#include "ddpopt/ddp/distributed_data_parallel.h"  // IWYU pragma: export
#include "ddpopt/ddp/program_data_parallel.h"      // IWYU pragma: export
#include "ddpopt/distributed/launcher.h"           // IWYU pragma: export
#include "ddpopt/distributed/process_group.h"      // IWYU pragma: export

#endif  // DDPOPT_DDPOPT_H_
