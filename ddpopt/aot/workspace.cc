#include "ddpopt/aot/workspace.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "c10/core/CPUAllocator.h"

namespace ddpopt {
namespace {

struct Block {
  int64_t bytes = 0;
  c10::DataPtr memory;
};

struct Pool {
  std::mutex mutex;
  std::multiset<int64_t> needs;
  std::vector<Block> idle;  // by size
};

// Never destroyed: a thread may still run a graph while the process ends.
Pool& ThePool() {
  static Pool* const pool = new Pool;
  return *pool;
}

int64_t Largest(const Pool& pool) { return pool.needs.empty() ? 0 : *pool.needs.rbegin(); }

}  // namespace

WorkspaceNeed::WorkspaceNeed(int64_t bytes) : bytes_(bytes) {
  const std::lock_guard<std::mutex> lock(ThePool().mutex);
  ThePool().needs.insert(bytes_);
}

WorkspaceNeed::~WorkspaceNeed() {
  std::vector<Block> freed;
  Pool& pool = ThePool();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  pool.needs.erase(pool.needs.find(bytes_));
  while (!pool.idle.empty() && pool.idle.back().bytes > Largest(pool)) {
    freed.push_back(std::move(pool.idle.back()));
    pool.idle.pop_back();
  }
}

Workspace::Workspace(int64_t bytes) {
  if (bytes == 0) return;
  Block outgrown;
  Pool& pool = ThePool();
  {
    const std::lock_guard<std::mutex> lock(pool.mutex);
    const auto found =
        std::lower_bound(pool.idle.begin(), pool.idle.end(), bytes, [](const Block& block, int64_t wanted) { return block.bytes < wanted; });
    if (found != pool.idle.end()) {
      block_ = std::move(found->memory);
      bytes_ = found->bytes;
      pool.idle.erase(found);
      return;
    }
    // None is large enough: the new one takes the place of the largest.
    if (!pool.idle.empty()) {
      outgrown = std::move(pool.idle.back());
      pool.idle.pop_back();
    }
  }
  outgrown.memory.clear();
  block_ = c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(bytes));
  bytes_ = bytes;
}

Workspace::~Workspace() {
  if (bytes_ == 0) return;
  Pool& pool = ThePool();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  if (bytes_ > Largest(pool)) return;
  const auto place =
      std::lower_bound(pool.idle.begin(), pool.idle.end(), bytes_, [](const Block& block, int64_t mine) { return block.bytes < mine; });
  pool.idle.insert(place, Block{bytes_, std::move(block_)});
}

int64_t IdleWorkspaceBytes() {
  Pool& pool = ThePool();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  int64_t bytes = 0;
  for (const Block& block : pool.idle) bytes += block.bytes;
  return bytes;
}

}  // namespace ddpopt
