#include "ddpopt/ddp/bucket_names.h"

#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ddpopt/distributed/process_group_c10d.h"

namespace ddpopt {
namespace {

// The buckets of all wrappers. Errors are described on any thread, and may be while a wrapper is destroyed.
class Registry {
 public:
  static const std::shared_ptr<Registry>& Get() {
    static const auto* registry = new std::shared_ptr<Registry>(std::make_shared<Registry>());
    return *registry;
  }
  void Add(const BucketNames* owner, const ProcessGroup::Impl* group, std::vector<NamedBucket> buckets) {
    std::lock_guard<std::mutex> lock(mutex_);
    buckets_[owner] = {group, std::move(buckets)};
  }
  void Remove(const BucketNames* owner) {
    std::lock_guard<std::mutex> lock(mutex_);
    buckets_.erase(owner);
  }
  std::string Describe(const ProcessGroup::Impl* group, const CollectiveInfo& info) const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [owner, entry] : buckets_) {
      if (entry.first != group) continue;
      for (const NamedBucket& bucket : entry.second) {
        if (bucket.elements == info.elements && bucket.dtype == info.dtype) names.push_back(bucket.name);
      }
    }
    return absl::StrJoin(names, " or ");
  }

 private:
  mutable std::mutex mutex_;
  std::map<const BucketNames*, std::pair<const ProcessGroup::Impl*, std::vector<NamedBucket>>> buckets_;
};

}  // namespace

BucketNames::BucketNames(const ProcessGroup& group, std::vector<NamedBucket> buckets) {
  const ProcessGroup::Impl* const impl = group.impl().get();
  Registry::Get()->Add(this, impl, std::move(buckets));
  if (impl->monitor == nullptr) return;
  impl->monitor->set_describe([registry = Registry::Get(), impl](const CollectiveInfo& info) {
    return info.operation == "allreduce" ? registry->Describe(impl, info) : std::string();
  });
}

BucketNames::~BucketNames() { Registry::Get()->Remove(this); }

}  // namespace ddpopt
