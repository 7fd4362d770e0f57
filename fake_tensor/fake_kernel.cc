#include "fake_tensor/fake_kernel.h"

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "c10/core/DispatchKey.h"
#include "c10/util/Exception.h"
#include "fake_tensor/derived_kernel.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/rules.h"

namespace ddpopt {
namespace {

using c10::DispatchKey;
using fake_kernel_internal::PendingRule;

thread_local c10::Device claimed_device = c10::Device(c10::kCPU);

c10::OperatorName ParseName(const std::string& name) {
  const std::size_t colons = name.find("::");
  const std::size_t dot = name.find('.', colons == std::string::npos ? 0 : colons);
  std::string base = name.substr(0, dot);
  if (colons == std::string::npos) base = absl::StrCat("aten::", base);
  return {std::move(base), dot == std::string::npos ? "" : name.substr(dot + 1)};
}

class RuleTable {
 public:
  // Never destroyed: kernels stay registered until the process ends.
  static RuleTable& Get() {
    static RuleTable& table = *new RuleTable();
    return table;
  }

  void Add(PendingRule rule, bool now) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (now && (started_ || c10::Dispatcher::singleton().findSchema(ParseName(rule.name)).has_value())) {
      Install(std::move(rule));
      Derive();
      return;
    }
    pending_.push_back(std::move(rule));
    has_pending_.store(true, std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_acq_rel);
  }

  void ResolveAll() {
    if (!has_pending_.load(std::memory_order_acquire)) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    started_ = true;
    // A rule that throws stays, so that every use does.
    while (!pending_.empty()) {
      Install(pending_.back());
      pending_.pop_back();
    }
    // After all rules, so that a form's own rule goes first wherever it stands.
    Derive();
    has_pending_.store(false, std::memory_order_release);
  }

  const Rule* Find(const c10::OperatorName& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = rules_.find(name);
    return found == rules_.end() ? nullptr : &found->second->rule;
  }

  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }

 private:
  struct Entry {
    Rule rule;
    std::string place;
  };
  using Rules = absl::flat_hash_map<c10::OperatorName, std::unique_ptr<Entry>, std::hash<c10::OperatorName>>;

  struct Source {
    c10::OperatorHandle op;
    c10::KernelFunction kernel;
    FakeKernelOptions options;
    std::string place;
  };

  void Install(PendingRule rule) {
    const c10::OperatorName name = ParseName(rule.name);
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value() && rule.may_be_absent) return;
    TORCH_CHECK(op.has_value(), "a fake rule (", rule.place, ") is for '", rule.name, "', which is no operator");
    if (const auto found = rules_.find(name); found != rules_.end() && !found->second->rule.derived) {
      TORCH_CHECK(false, rule.name, " has two fake rules: ", found->second->place, " and ", rule.place);
    }
    std::unique_ptr<c10::FunctionSchema> inferred;
    if (rule.check_signature != nullptr) {
      inferred = rule.infer_schema();
      const bool with_symint = rule.kernel.isValidSymUnboxed();
      const auto difference =
          c10::findSchemaDifferences(inferred->cloneWithRealTypes(with_symint), op->schema().cloneWithRealTypes(with_symint));
      TORCH_CHECK(!difference.has_value(), rule.name, ": the fake rule (", rule.place, ") doesn't have the operator's signature ",
                  c10::toString(op->schema()), ": ", difference.value_or(""));
      try {
        rule.check_signature(*op);
      } catch (const c10::Error& error) {
        TORCH_CHECK(false, rule.name, ": the fake rule (", rule.place,
                    ") doesn't have the operator's C++ signature: ", error.what_without_backtrace());
      }
    }
    Put(*op, rule.kernel, rule.signature, std::move(inferred), rule.place, /*derived=*/false, rule.options.replace_meta_kernel);
    underived_.push_back({*op, std::move(rule.kernel), rule.options, std::move(rule.place)});
  }

  void Derive() {
    if (underived_.empty()) return;
    const OverloadTable overloads;
    for (const Source& source : underived_) {
      const std::string& name = source.op.schema().name();
      std::vector<c10::OperatorHandle> forms;
      if (source.options.derive_out) forms = overloads.Named(name);
      if (source.options.derive_in_place) {
        for (const c10::OperatorHandle& op : overloads.Named(absl::StrCat(name, "_"))) forms.push_back(op);
      }
      for (const c10::OperatorHandle& form : forms) {
        if (form == source.op || rules_.contains(form.operator_name())) continue;
        if (auto kernel = DeriveKernel(form, source.op, source.kernel, source.options)) {
          Put(form, std::move(*kernel), std::nullopt, nullptr, source.place, /*derived=*/true, /*replace=*/false);
        }
      }
    }
    underived_.clear();
  }

  void Put(const c10::OperatorHandle& op, c10::KernelFunction kernel, std::optional<c10::impl::CppSignature> signature,
           std::unique_ptr<c10::FunctionSchema> inferred, const std::string& place, bool derived, bool replace) {
    const c10::OperatorName& name = op.operator_name();
    // A kernel of a form's own takes the place of the derived one.
    if (const auto registered = registrations_.find(name); registered != registrations_.end()) registrations_.erase(registered);
    const bool has_meta =
        op.hasKernelForDispatchKey(DispatchKey::Meta) || op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
    if (replace || !has_meta) {
      registrations_.emplace(name,
                             c10::Dispatcher::singleton().registerImpl(name, DispatchKey::Meta, kernel, signature, std::move(inferred),
                                                                       absl::StrCat("ddpopt fake rule, ", place)));
    }
    // The old entry may be in use by other threads.
    std::unique_ptr<Entry>& entry = rules_[name];
    if (entry != nullptr) replaced_.push_back(std::move(entry));
    entry = std::make_unique<Entry>(Entry{{std::move(kernel), derived}, place});
    epoch_.fetch_add(1, std::memory_order_acq_rel);
  }

  std::mutex mutex_;
  std::vector<PendingRule> pending_;
  std::vector<Source> underived_;
  std::atomic<bool> has_pending_{false};
  bool started_ = false;
  Rules rules_;
  std::vector<std::unique_ptr<Entry>> replaced_;
  absl::flat_hash_map<c10::OperatorName, c10::RegistrationHandleRAII, std::hash<c10::OperatorName>> registrations_;
  std::atomic<uint64_t> epoch_{0};
};

}  // namespace

c10::Device ClaimedDevice() { return claimed_device; }

ClaimedDeviceGuard::ClaimedDeviceGuard(c10::Device device) : previous_(std::exchange(claimed_device, device)) {}
ClaimedDeviceGuard::~ClaimedDeviceGuard() { claimed_device = previous_; }

const Rule* FindRule(const c10::OperatorName& name) {
  RuleTable::Get().ResolveAll();
  return RuleTable::Get().Find(name);
}
void ResolveRules() { RuleTable::Get().ResolveAll(); }
uint64_t RulesEpoch() { return RuleTable::Get().epoch(); }

void fake_kernel_internal::Register(PendingRule rule, bool now) { RuleTable::Get().Add(std::move(rule), now); }

FakeKernels::FakeKernels(void (*body)(FakeKernels&), const char* file, int line) : place_(absl::StrCat(file, ":", line)) { body(*this); }
void FakeKernels::Add(PendingRule rule) { fake_kernel_internal::Register(std::move(rule), false); }

}  // namespace ddpopt
