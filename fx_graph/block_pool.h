#ifndef DDPOPT_FX_GRAPH_BLOCK_POOL_H_
#define DDPOPT_FX_GRAPH_BLOCK_POOL_H_

// Memory for many small blocks that die with their owner, or earlier and are then used again for the same size.
//
//   BlockPool pool;
//   void* block = pool.Allocate(112);   // aligned to 8
//   pool.Free(block, 112);
//
// Chunks start small and grow, so that a graph of five nodes costs what five nodes need. Not thread-safe.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

namespace ddpopt::fx {

class BlockPool {
 public:
  BlockPool() = default;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Whether blocks of this size die with the pool; the others must be freed.
  static bool Pools(std::size_t bytes) { return bytes <= kMaxPooled; }

  // Precondition: bytes is a multiple of 8, and not 0.
  void* Allocate(std::size_t bytes) {
    if (bytes > kMaxPooled) return ::operator new(bytes);
    void*& first = free_[bytes / 8 - 1];
    if (first != nullptr) {
      void* block = first;
      first = *static_cast<void**>(block);
      return block;
    }
    if (bytes > left_) {
      const std::size_t size = kMinChunk << std::min<std::size_t>(chunks_.size(), kDoublings);
      chunks_.push_back(std::make_unique<std::max_align_t[]>(size / sizeof(std::max_align_t)));
      next_ = reinterpret_cast<char*>(chunks_.back().get());
      left_ = size;
    }
    void* block = next_;
    next_ += bytes;
    left_ -= bytes;
    return block;
  }

  void Free(void* block, std::size_t bytes) {
    if (bytes > kMaxPooled) return ::operator delete(block);
    void*& first = free_[bytes / 8 - 1];
    *static_cast<void**>(block) = first;
    first = block;
  }

 private:
  static constexpr std::size_t kMaxPooled = 512;
  static constexpr std::size_t kMinChunk = 1024;
  static constexpr std::size_t kDoublings = 6;

  void* free_[kMaxPooled / 8] = {};
  std::vector<std::unique_ptr<std::max_align_t[]>> chunks_;
  char* next_ = nullptr;
  std::size_t left_ = 0;
};

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_BLOCK_POOL_H_
