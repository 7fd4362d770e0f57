#ifndef DDPOPT_AOT_WORKSPACE_H_
#define DDPOPT_AOT_WORKSPACE_H_

// Memory for what lives within one run of a graph. Runs follow each other, so all graphs of the process share few blocks: one for each run
// at the same time, as large as the largest of these needs. Private to this package.
//
//   WorkspaceNeed need(plan.bytes);        // as long as the graph may run
//   {
//     Workspace workspace(plan.bytes);     // this run's alone
//     use(workspace.data());
//   }
//
// Blocks come from c10's CPU allocator and are kept while some need of their size is alive. Thread-safe.

#include <cstddef>
#include <cstdint>

#include "c10/core/Allocator.h"

namespace ddpopt {

class WorkspaceNeed {
 public:
  explicit WorkspaceNeed(int64_t bytes);
  // Frees the blocks that nobody alive needs.
  ~WorkspaceNeed();
  WorkspaceNeed(const WorkspaceNeed&) = delete;
  WorkspaceNeed& operator=(const WorkspaceNeed&) = delete;

 private:
  const int64_t bytes_;
};

class Workspace {
 public:
  // At least so many bytes, aligned as c10's allocator aligns, with anything in them. Throws c10::Error without memory.
  explicit Workspace(int64_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* data() const { return block_.get(); }

 private:
  c10::DataPtr block_;
  int64_t bytes_ = 0;
};

// What is kept at the moment and not in use.
int64_t IdleWorkspaceBytes();

}  // namespace ddpopt

#endif  // DDPOPT_AOT_WORKSPACE_H_
