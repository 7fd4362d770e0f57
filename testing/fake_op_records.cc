#include "testing/fake_op_records.h"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"
#include "c10/core/Allocator.h"
#include "c10/core/MemoryFormat.h"
#include "c10/core/StorageImpl.h"
#include "c10/core/TensorImpl.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "interpreter/call_operator.h"
#include "nlohmann/json.hpp"
#include "testing/call_outcome.h"

namespace ddpopt::testing {
namespace {

using c10::IValue;
using Json = nlohmann::json;

// What is wrong with a record; reading one is deeply nested, hence an exception, caught in CheckFakeOpCase.
class BadRecord : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <typename T>
T Named(const char* what, const std::string& name, std::initializer_list<std::pair<const char*, T>> known) {
  for (const auto& [candidate, value] : known) {
    if (name == candidate) return value;
  }
  throw BadRecord(absl::StrCat("unknown ", what, " '", name, "'"));
}

c10::ScalarType Dtype(const std::string& name) {
  return Named<c10::ScalarType>("dtype", name,
                                {{"f32", c10::kFloat},
                                 {"f64", c10::kDouble},
                                 {"f16", c10::kHalf},
                                 {"bf16", c10::kBFloat16},
                                 {"i64", c10::kLong},
                                 {"i32", c10::kInt},
                                 {"i16", c10::kShort},
                                 {"i8", c10::kChar},
                                 {"u8", c10::kByte},
                                 {"u16", c10::kUInt16},
                                 {"u32", c10::kUInt32},
                                 {"u64", c10::kUInt64},
                                 {"b8", c10::kBool},
                                 {"c32", c10::kComplexHalf},
                                 {"c64", c10::kComplexFloat},
                                 {"c128", c10::kComplexDouble}});
}

c10::MemoryFormat Format(const std::string& name) {
  return Named<c10::MemoryFormat>("memory format", name,
                                  {{"contiguous_format", c10::MemoryFormat::Contiguous},
                                   {"preserve_format", c10::MemoryFormat::Preserve},
                                   {"channels_last", c10::MemoryFormat::ChannelsLast},
                                   {"channels_last_3d", c10::MemoryFormat::ChannelsLast3d}});
}

c10::Layout Layout(const std::string& name) {
  return Named<c10::Layout>("layout", name,
                            {{"strided", c10::kStrided},
                             {"sparse_coo", c10::kSparse},
                             {"sparse_csr", c10::kSparseCsr},
                             {"sparse_csc", c10::kSparseCsc},
                             {"sparse_bsr", c10::kSparseBsr},
                             {"sparse_bsc", c10::kSparseBsc},
                             {"_mkldnn", c10::kMkldnn}});
}

double Number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_object() && value.contains("f")) return Number(value.at("f"));
  return Named<double>("number", value.get<std::string>(), {{"inf", INFINITY}, {"-inf", -INFINITY}, {"nan", NAN}});
}

TensorFacts Facts(const Json& meta) {
  TensorFacts facts;
  facts.defined = true;
  facts.dtype = Dtype(meta.at("d").get<std::string>());
  facts.sizes = meta.at("s").get<std::vector<int64_t>>();
  facts.strides = meta.at("st").get<std::vector<int64_t>>();
  facts.offset = meta.at("o").get<int64_t>();
  facts.storage_bytes = meta.at("nb").get<int64_t>();
  if (meta.contains("dev")) facts.device = c10::Device(meta.at("dev").get<std::string>());
  facts.conj = meta.value("conj", 0) != 0;
  facts.neg = meta.value("neg", 0) != 0;
  if (facts.sizes.size() != facts.strides.size()) throw BadRecord("a tensor has other numbers of sizes and strides");
  return facts;
}

// The fakes of a case's inputs.
class Inputs {
 public:
  Inputs(const Json& metas, const std::shared_ptr<FakeTensorMode>& mode) {
    for (const Json& meta : metas) {
      const TensorFacts facts = Facts(meta);
      real_.push_back(Build(facts, meta.at("g").get<int64_t>()));
      fakes_.push_back(mode->FromReal(real_.back()));
    }
  }
  const std::vector<at::Tensor>& fakes() const { return fakes_; }
  const at::Tensor& fake(std::size_t i) const {
    if (i >= fakes_.size()) throw BadRecord(absl::StrCat("there is no input tensor ", i));
    return fakes_[i];
  }

 private:
  at::Tensor Build(const TensorFacts& facts, int64_t storage_number) {
    c10::Storage& storage = storages_[storage_number];
    if (!storage) {
      storage = c10::Storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(facts.storage_bytes), c10::GetAllocator(c10::kCPU),
                             /*resizable=*/true);
    }
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                     c10::scalarTypeToTypeMeta(facts.dtype));
    impl->set_sizes_and_strides(facts.sizes, facts.strides, facts.offset);
    impl->_set_conj(facts.conj);
    impl->_set_neg(facts.neg);
    return at::Tensor(std::move(impl));
  }

  absl::flat_hash_map<int64_t, c10::Storage> storages_;
  std::vector<at::Tensor> real_;  // kept: the fake mode knows them by identity
  std::vector<at::Tensor> fakes_;
};

IValue Argument(const Json& value, const Inputs& inputs) {
  if (value.is_null()) return IValue();
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_number_unsigned() || value.is_number_integer()) return value.get<int64_t>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    std::vector<IValue> elements;
    for (const Json& element : value) elements.push_back(Argument(element, inputs));
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.contains("t")) return inputs.fake(value.at("t").get<std::size_t>());
  if (value.contains("f")) return Number(value);
  if (value.contains("c")) return IValue(c10::complex<double>(Number(value.at("c").at(0)), Number(value.at("c").at(1))));
  if (value.contains("dtype")) return static_cast<int64_t>(Dtype(value.at("dtype").get<std::string>()));
  if (value.contains("device")) return c10::Device(value.at("device").get<std::string>());
  if (value.contains("mf")) return static_cast<int64_t>(Format(value.at("mf").get<std::string>()));
  if (value.contains("layout")) return static_cast<int64_t>(Layout(value.at("layout").get<std::string>()));
  throw BadRecord(absl::StrCat("an argument of unknown kind: ", value.dump()));
}

// What was recorded, as an outcome.
Outcome Expected(const Json& record) {
  Outcome outcome;
  if (record.contains("dde")) {
    outcome.kind = Outcome::Kind::kDataDependent;
    return outcome;
  }
  for (const Json& meta : record.at("T")) outcome.inputs.push_back(Facts(meta));
  if (record.contains("post")) {
    for (const auto& [index, meta] : record.at("post").items()) outcome.inputs.at(std::stoul(index)) = Facts(meta);
  }
  std::vector<int64_t> storages;
  const std::function<void(const Json&)> add = [&](const Json& value) {
    if (value.is_array()) {
      for (const Json& element : value) add(element);
      return;
    }
    ResultFacts result;
    if (value.is_object() && value.contains("o")) {
      const Json& meta = record.at("O").at(value.at("o").get<std::size_t>());
      result.tensor = Facts(meta);
      result.same = meta.value("same", -1);
      result.shares = meta.value("al", -1);
      const int64_t number = meta.at("g").get<int64_t>();
      std::size_t i = 0;
      while (i < storages.size() && storages[i] != number) ++i;
      if (i == storages.size()) storages.push_back(number);
      result.storage = static_cast<int>(i);
    } else if (value.is_boolean()) {
      result.value = value.get<bool>() ? "True" : "False";
    } else if (!value.is_null()) {
      result.value = value.dump();
    }
    outcome.results.push_back(std::move(result));
  };
  add(record.at("ret"));
  return outcome;
}

FakeOpVerdict Check(const Json& record, FakeOpVerdict verdict) {
  using Kind = FakeOpVerdict::Kind;
  const auto fail = [&](std::string category, std::string detail) {
    verdict.kind = Kind::kFailed;
    verdict.category = std::move(category);
    verdict.detail = std::move(detail);
    return verdict;
  };
  std::vector<std::string> parts = absl::StrSplit(verdict.op, absl::MaxSplits('.', 1));
  if (parts.size() == 1 || parts[1] == "default") parts = {parts[0], ""};
  const auto op = c10::Dispatcher::singleton().findSchema({parts[0], parts[1]});
  if (!op.has_value()) {
    verdict.kind = Kind::kSkipped;
    verdict.detail = "this LibTorch has no operator of the name";
    return verdict;
  }

  // No fallback to real kernels: an operator without a rule is refused.
  const auto mode = FakeTensorMode::Create();
  const Inputs inputs(record.at("T"), mode);
  std::vector<IValue> args;
  for (const Json& value : record.at("args")) args.push_back(Argument(value, inputs));
  std::vector<std::pair<std::string, IValue>> kwargs;
  for (const auto& [name, value] : record.at("kw").items()) kwargs.emplace_back(name, Argument(value, inputs));

  Outcome want = Expected(record);
  Outcome got = Observe(inputs.fakes(), [&] {
    // Recorded below autograd.
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const ModeGuard fakes(mode);
    return CallOperator(*op, std::move(args), std::move(kwargs));
  });
  // None and an undefined tensor are one in the records.
  for (Outcome* outcome : {&want, &got}) {
    for (ResultFacts& result : outcome->results) {
      if (!result.tensor.defined && (result.value.empty() || result.value == "None")) result.value = "None";
    }
  }
  if (want.kind == Outcome::Kind::kReturned && want.results.size() == 1 && want.results[0].value == "None" && got.results.empty()) {
    want.results.clear();  // an operator without results
  }
  const std::string difference = Difference(want, got);
  if (difference.empty()) return verdict;
  if (want.kind == got.kind) {
    absl::string_view category = difference;
    category = category.substr(0, category.find(':'));
    if (const std::size_t comma = category.rfind(", "); comma != absl::string_view::npos) category = category.substr(comma + 2);
    return fail(std::string(category), difference);
  }
  if (want.kind == Outcome::Kind::kDataDependent) return fail("not refused", difference);
  return fail(absl::StrContains(got.error, "has no fake rule") ? "no rule" : "unexpected error", got.error);
}

}  // namespace

FakeOpVerdict CheckFakeOpCase(absl::string_view json) {
  FakeOpVerdict verdict;
  try {
    const Json record = Json::parse(json.begin(), json.end());
    verdict.id = record.at("id").get<std::string>();
    verdict.op = record.at("op").get<std::string>();
    return Check(record, verdict);
  } catch (const std::exception& error) {
    verdict.kind = FakeOpVerdict::Kind::kFailed;
    verdict.category = "bad record";
    verdict.detail = ExceptionMessage(error);
    return verdict;
  }
}

absl::Status CheckFakeOpCases(const std::string& path, const std::function<bool(absl::string_view op)>& wanted,
                              const std::function<void(const FakeOpVerdict&)>& report) {
  DDPOPT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    // The name is wanted before the rest is parsed: a file has tens of thousands of lines.
    absl::string_view op = line;
    const std::size_t at = op.find("\"op\":");
    if (at != absl::string_view::npos) {
      op = absl::StripLeadingAsciiWhitespace(op.substr(at + 5));
      op = absl::ConsumePrefix(&op, "\"") ? op.substr(0, op.find('"')) : absl::string_view();
      if (!wanted(op)) continue;
    }
    report(CheckFakeOpCase(line));
  }
  return absl::OkStatus();
}

}  // namespace ddpopt::testing
