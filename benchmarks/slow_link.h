#ifndef DDPOPT_BENCHMARKS_SLOW_LINK_H_
#define DDPOPT_BENCHMARKS_SLOW_LINK_H_

// Two network namespaces on this machine with a link of a chosen speed between them: two machines, as far as programs can tell.
//
//   absl::StatusOr<std::unique_ptr<SlowLink>> link = SlowLink::Create(1000);
//   Run({"ip", "netns", "exec", (*link)->name(0), program, ...});

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace ddpopt::benchmarks {

class SlowLink {
 public:
  // Megabits per second, each way. Error: PermissionDenied with the reason where namespaces, veth or tc's tbf can't be used (they need
  // root). What a program of ours that was killed has left is removed first.
  static absl::StatusOr<std::unique_ptr<SlowLink>> Create(double mbit);
  // Removes both, and so the link.
  ~SlowLink();
  SlowLink(const SlowLink&) = delete;
  SlowLink& operator=(const SlowLink&) = delete;

  const std::string& name(int node) const { return names_[node]; }
  static std::string Address(int node);

 private:
  SlowLink() = default;
  std::string names_[2];
};

}  // namespace ddpopt::benchmarks

#endif  // DDPOPT_BENCHMARKS_SLOW_LINK_H_
