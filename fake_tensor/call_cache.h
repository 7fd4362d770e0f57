#ifndef DDPOPT_FAKE_TENSOR_CALL_CACHE_H_
#define DDPOPT_FAKE_TENSOR_CALL_CACHE_H_

// What operators returned for operands of the same metadata. A key holds all that a rule can see of a call: the operator, each operand's
// geometry, dtype, device and memory, the other arguments, and the thread's state. Keys are compared word by word; the hash only finds
// them.
// An entry tells each result as one of the operands, a view of an operand's memory, or a new tensor. Private to this package.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "ATen/core/stack.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"
#include "c10/util/SmallVector.h"
#include "fake_tensor/fake_tensor_impl.h"
#include "fake_tensor/op_info.h"

namespace ddpopt {

// The operands of one call, in the order in which they come first, and the call's key.
class CallKey {
 public:
  // Reads the arguments. Real tensors other than wrapped numbers count as unknown kinds: the caller converts them first.
  CallKey(const c10::OperatorHandle& op, const OpInfo& info, const torch::jit::Stack& stack, std::size_t first, std::size_t num_args);

  // Why the call can't be cached; null if it can.
  const char* bypass() const { return bypass_; }
  absl::Span<const uint64_t> words() const { return {words_.data(), words_.size()}; }
  // Null entries are no fakes (the caller looks again).
  absl::Span<FakeTensorImpl* const> inputs() const { return {inputs_.data(), inputs_.size()}; }
  // Index into inputs(), or -1.
  int IndexOf(const FakeTensorImpl* impl) const;
  // Whether there are fakes, and all elements of all of them are known.
  bool all_known() const { return all_known_ && !inputs_.empty(); }
  // A tensor that is neither a fake nor a wrapped number was among the arguments.
  bool has_real() const { return has_real_; }

 private:
  void Add(const c10::IValue& value, bool value_irrelevant);
  void Add(const at::Tensor& tensor);
  void Bypass(const char* why) {
    if (bypass_ == nullptr) bypass_ = why;
  }

  c10::SmallVector<uint64_t, 64> words_;
  c10::SmallVector<FakeTensorImpl*, 8> inputs_;
  const char* bypass_ = nullptr;
  bool all_known_ = true;
  bool has_real_ = false;
  bool views_ = false;
};

// A result: its geometry and whose memory it sees.
struct CachedTensor {
  enum class Kind : uint8_t { kUndefined, kInput, kView, kNew };
  Kind kind = Kind::kUndefined;
  bool conj = false;
  bool neg = false;
  bool wrapped_number = false;
  FakeTensorImpl::ViewKind view_kind = FakeTensorImpl::ViewKind::kAsBase;
  uint32_t index = 0;  // of the input that it is or whose memory it sees, or of the new memory
  caffe2::TypeMeta dtype;
  c10::Device device = c10::Device(c10::kCPU);
  int64_t offset = 0;
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;

  bool operator==(const CachedTensor& other) const;
};

struct CachedCall {
  static constexpr int32_t kTensor = -1;
  static constexpr int32_t kNone = -2;
  c10::SmallVector<int32_t, 3> returns;  // per return: kTensor, kNone, or the length of a list of tensors
  c10::SmallVector<CachedTensor, 1> tensors;
  c10::SmallVector<std::size_t, 1> new_bytes;  // sizes of new storages

  bool operator==(const CachedCall& other) const;
  std::string ToString() const;  // for errors
};

class CallCache {
 public:
  explicit CallCache(std::size_t limit) : limit_(limit) {}

  // Null if unknown; valid until the next Insert or Clear.
  const CachedCall* Find(absl::Span<const uint64_t> key) const;
  // When full, everything is dropped first.
  void Insert(absl::Span<const uint64_t> key, CachedCall call);
  void Clear() { calls_.clear(); }
  std::size_t size() const { return calls_.size(); }

 private:
  struct Entry {
    uint64_t hash;
    std::size_t size;
    std::unique_ptr<uint64_t[]> words;
    CachedCall call;
  };
  struct KeyView {
    uint64_t hash;
    absl::Span<const uint64_t> words;
  };
  static KeyView ViewOf(absl::Span<const uint64_t> words);
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const std::unique_ptr<Entry>& entry) const { return entry->hash; }
    std::size_t operator()(const KeyView& key) const { return key.hash; }
  };
  struct Equal {
    using is_transparent = void;
    static absl::Span<const uint64_t> Words(const std::unique_ptr<Entry>& entry) { return {entry->words.get(), entry->size}; }
    static absl::Span<const uint64_t> Words(const KeyView& key) { return key.words; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return Words(a) == Words(b);
    }
  };
  std::size_t limit_;
  absl::flat_hash_set<std::unique_ptr<Entry>, Hash, Equal> calls_;
};

// Puts the results that `call` tells on the stack, in the place of the arguments. `first`: the first argument's position.
void PushResults(const CachedCall& call, const CallKey& key, const std::shared_ptr<FakeTensorMode>& mode, torch::jit::Stack* stack,
                 std::size_t first);

// What the results on the stack are in terms of the operands. Nothing if they are of other kinds.
std::optional<CachedCall> DescribeResults(const CallKey& key, const torch::jit::Stack& stack, std::size_t first_result);

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_CALL_CACHE_H_
