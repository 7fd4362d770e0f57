#ifndef DDPOPT_DISTRIBUTED_TEXT_EXCHANGE_H_
#define DDPOPT_DISTRIBUTED_TEXT_EXCHANGE_H_

// Internal: one text from each rank to each, through the group's store.
//
// Thread-safe; exchanges happen one after the other, in the same order on all ranks.

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace ddpopt {

class TextExchange : public std::enable_shared_from_this<TextExchange> {
 public:
  TextExchange(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, std::string master)
      : store_(std::move(store)), rank_(rank), world_size_(world_size), master_(std::move(master)) {}

  // Within `timeout`, also if the store doesn't answer. `what` names the exchange in errors, and must be the same on every rank. Errors:
  // DeadlineExceeded naming the rank waited for, FailedPrecondition if a rank exchanges something else or has called Abort.
  absl::StatusOr<std::vector<std::string>> AllGather(const std::string& what, const std::string& mine, std::chrono::milliseconds timeout);
  // Others that wait in an exchange, now or later, get this error.
  void Abort(const absl::Status& status);
  // For the rank that serves the store, when it has failed: stays until the others know why, for two seconds at most.
  void Linger();

 private:
  struct Call;
  absl::Status Run(Call& call);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int world_size_;
  const std::string master_;
  std::mutex mutex_;
  int64_t exchanges_ = 0;  // the same on every rank
};

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_TEXT_EXCHANGE_H_
