// Arguments: from a recipe's text, or from the schema alone.

#include <algorithm>
#include <cctype>
#include <functional>
#include <numeric>
#include <utility>

#include "ATen/core/function_schema.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "c10/util/Exception.h"
#include "fake_tensor/cross_ref/builder.h"

namespace ddpopt::cross_ref {

using c10::IValue;
using c10::ScalarType;

Builder::Builder(const c10::OperatorHandle& op, uint64_t seed, const CallOptions& options)
    : op_(op), schema_(op.schema()), options_(options), random_(seed) {
  recipe_ = &random_.Of(RecipesOf(schema_.name(), schema_.overload_name()));
  dtype_ = RandomDtype(random_, recipe_->dtype_class);
  if (options.dtype.has_value()) dtype_ = *options.dtype;
  has_empty_ = random_.Chance(8) && !recipe_->nonempty;
  list_length_ = random_.Chance(4) ? 0 : random_.Between(1, 3);
  for (const auto& [name, range] : recipe_->variables) pending_.emplace(name, range);
}

Call Builder::Build() {
  Call call{op_, {}, random_.Next(), ""};
  const std::size_t count = schema_.arguments().size();
  values_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (!IsOut(schema_.arguments()[i])) Argument(i);
  }
  Arrange();
  if (random_.Chance(28) && !recipe_->unchecked && options_.damage) call.damage = Damage();
  if (!call.damage.empty()) {
    // What indices point into may have changed.
    ForEachTensor([](TensorSpec& spec) {
      if (spec.values == TensorSpec::Values::kBelow) spec.bound = std::min<int64_t>(spec.bound, 1);
    });
  }
  MakeOuts(/*damaged=*/!call.damage.empty());
  for (std::optional<Value>& value : values_) call.arguments.push_back(std::move(*value));
  RefuseBadIndices(call);
  return call;
}

TensorSpec Builder::Tensor(const std::string& text) {
  const std::size_t open = text.find('[');
  std::size_t close = open + 1;
  for (int depth = 1; depth > 0; ++close) {
    if (text[close] == '[') ++depth;
    if (text[close] == ']') --depth;
  }
  TensorSpec spec;
  const std::string dtype = text.substr(0, open);
  if (dtype.empty() || dtype == "T") {
    spec.dtype = dtype_;
  } else if (dtype == "R") {
    spec.dtype = c10::isComplexType(dtype_) ? c10::toRealValueType(dtype_) : dtype_;
  } else if (dtype == "X") {
    const ScalarType made = dtype_ == ScalarType::Double ? ScalarType::ComplexDouble : ScalarType::ComplexFloat;
    spec.dtype = c10::isComplexType(dtype_) ? dtype_ : made;
  } else if (dtype == "A") {
    spec.dtype = RandomDtype(random_, "any");
  } else if (dtype == "idx") {
    spec.dtype = random_.Chance(80) ? ScalarType::Long : ScalarType::Int;
  } else {
    const std::optional<ScalarType> named = DtypeNamed(dtype);
    TORCH_CHECK(named.has_value(), "cross_ref recipes: no dtype '", dtype, "' (", text, ")");
    spec.dtype = *named;
  }
  const std::string sizes = text.substr(open + 1, close - open - 2);
  if (!sizes.empty()) {
    for (const std::string& item : SplitOutside(sizes, ',')) {
      Ints part;
      if (item[0] == '*') {
        part = Shape(item.substr(1));
      } else if (item[0] == '~') {
        part = Broadcastable(Shape(item.substr(1)));
      } else if (item[0] == '@') {
        const std::size_t paren = item.find('(');
        part = ListFunction(item.substr(1, paren - 1), SplitOutside(item.substr(paren + 1, item.size() - paren - 2), ','));
      } else if (item.size() > 1 && item[0] == '1' && std::isupper(static_cast<unsigned char>(item[1]))) {
        part.assign(Shape(item.substr(1)).size(), 1);
      } else if (item.back() == '?') {
        part = {random_.Chance(50) ? 1 : Number(item.substr(0, item.size() - 1))};
      } else {
        part = {Number(item)};
      }
      spec.sizes.insert(spec.sizes.end(), part.begin(), part.end());
    }
  }
  for (const int64_t size : spec.sizes) {
    if (size < 0) throw Discard();
  }
  const std::string values = text.substr(close);
  if (values == "@pd") {
    spec.values = TensorSpec::Values::kPositiveDefinite;
  } else if (values == "@inc") {
    spec.values = TensorSpec::Values::kIncreasing;
  } else if (!values.empty()) {
    TORCH_CHECK(values[0] == '<' || values[0] == '=', "cross_ref recipes: can't read '", text, "'");
    spec.values = values[0] == '<' ? TensorSpec::Values::kBelow : TensorSpec::Values::kEqual;
    spec.bound = Expression(values.substr(1));
  }
  return spec;
}

const Value& Builder::Argument(std::size_t i) {
  if (!values_[i].has_value()) {
    // Arguments may ask about each other, but not in a circle.
    if (std::find(open_.begin(), open_.end(), i) != open_.end()) throw Discard();
    open_.push_back(i);
    Value value = Choose(i);
    open_.pop_back();
    values_[i] = std::move(value);
  }
  return *values_[i];
}

bool Builder::Fits(const std::string& text, ArgumentKind kind, bool optional) {
  if (text == "none") return optional;
  if (absl::StartsWith(text, "each(") || absl::StartsWith(text, "list(") || absl::StartsWith(text, "cat(")) {
    return kind == ArgumentKind::kTensors;
  }
  if (absl::StartsWith(text, "one(") || absl::StartsWith(text, "indices(")) return kind == ArgumentKind::kOptionalTensors;
  if (text == "scalars") return kind == ArgumentKind::kScalars;
  if (text == "scalartensor") return kind == ArgumentKind::kTensor;
  if (text.find('[') != std::string::npos) return kind == ArgumentKind::kTensor;
  if (kind == ArgumentKind::kTensor || kind == ArgumentKind::kTensors || kind == ArgumentKind::kOptionalTensors) return false;
  if (text[0] == '\'') return kind == ArgumentKind::kString;
  if (kind == ArgumentKind::kString) return false;
  if (text[0] == '(') {
    return kind == ArgumentKind::kInts || kind == ArgumentKind::kFloats || kind == ArgumentKind::kBools ||
           text.find(')') + 1 != text.size();
  }
  return kind != ArgumentKind::kScalars;
}

Value Builder::Choose(std::size_t i) {
  const c10::Argument& argument = schema_.arguments()[i];
  const ArgumentKind kind = KindOf(argument);
  const bool optional = argument.type()->kind() == c10::TypeKind::OptionalType;
  if (const auto found = recipe_->arguments.find(argument.name()); found != recipe_->arguments.end()) {
    std::vector<std::string> fitting;
    for (std::string& text : SplitOutside(found->second, '|')) {
      if (Fits(text, kind, optional)) fitting.push_back(std::move(text));
    }
    if (!fitting.empty()) return FromText(random_.Of(fitting), argument, kind);
  }
  return FromSchema(i, argument, kind, optional);
}

Value Builder::FromText(const std::string& text, const c10::Argument& argument, ArgumentKind kind) {
  if (text == "none") return kind == ArgumentKind::kTensor ? Value{Value::Kind::kTensor, {}, {Undefined()}} : Plain(IValue());
  const std::size_t paren = text.find('(');
  const std::string function = paren == std::string::npos ? "" : text.substr(0, paren);
  const std::string inside = paren == std::string::npos ? "" : text.substr(paren + 1, text.size() - paren - 2);
  switch (kind) {
    case ArgumentKind::kTensor: {
      if (text == "scalartensor") {
        TensorSpec spec;
        spec.sizes = {list_length_};
        return Value{Value::Kind::kTensor, {}, {spec}};
      }
      return Value{Value::Kind::kTensor, {}, {Tensor(text)}};
    }
    case ArgumentKind::kTensors: {
      Value value{Value::Kind::kTensors, {}, {}};
      if (function == "each") {
        for (position_ = 0; position_ < list_length_; ++position_) value.tensors.push_back(Tensor(inside));
        position_ = -1;
      } else if (function == "list") {
        const std::vector<std::string> parts = SplitOutside(inside, ',');
        const int64_t count = Number(parts[0]);
        const std::string tensor = inside.substr(parts[0].size() + 1);
        for (int64_t k = 0; k < count; ++k) value.tensors.push_back(Tensor(tensor));
      } else {
        // cat(dim): equal but for that dimension; now and then the old kind of empty tensor, of rank 1.
        TensorSpec first = Tensor("[*W]");
        values_[IndexOf(inside)] = Plain(IValue(RandomDim(static_cast<int64_t>(first.sizes.size()))));
        const int64_t dim = DimNamed(inside, static_cast<int64_t>(first.sizes.size()));
        for (int64_t k = random_.Between(1, 4); k > 0; --k) {
          TensorSpec spec = first;
          spec.sizes[dim] = Size();
          if (random_.Chance(15)) spec.dtype = RandomDtype(random_, "any");
          if (random_.Chance(5)) spec.sizes = {0};
          value.tensors.push_back(spec);
        }
      }
      return value;
    }
    case ArgumentKind::kOptionalTensors: {
      Value value{Value::Kind::kOptionalTensors, {}, {}};
      if (function == "one") {
        value.tensors.push_back(Tensor(inside));
        return value;
      }
      const Ints sizes = SizesNamed(inside);
      const Ints common = Shape("S7");
      const int64_t count = random_.Between(1, static_cast<int64_t>(sizes.size()));
      for (int64_t k = 0; k < count; ++k) {
        TensorSpec index;
        if (random_.Chance(25)) {
          index = Undefined();
        } else if (random_.Chance(6)) {
          index.dtype = random_.Chance(80) ? ScalarType::Bool : ScalarType::Byte;
          index.sizes = {sizes[k]};
          index.values = TensorSpec::Values::kEqual;
          index.bound = 1;
        } else {
          index.dtype = random_.Chance(85) ? ScalarType::Long : ScalarType::Int;
          index.sizes = Broadcastable(common);
          index.values = TensorSpec::Values::kBelow;
          index.bound = sizes[k];
        }
        value.tensors.push_back(index);
      }
      return value;
    }
    case ArgumentKind::kInt:
      return Plain(IValue(Number(text)));
    case ArgumentKind::kInts:
      return Plain(IValue(IntList(text, argument)));
    case ArgumentKind::kBool:
      return Plain(text == "true" ? true : text == "false" ? false : random_.Chance(50));
    case ArgumentKind::kBools: {
      const std::size_t power = text.find('^');
      c10::List<bool> list;
      if (text[0] == '(') {
        for (const std::string& item : SplitOutside(inside, ',')) list.push_back(item == "bool" ? random_.Chance(65) : item == "true");
        return Plain(list);
      }
      for (int64_t k = power == std::string::npos ? 1 : Number(text.substr(power + 1)); k > 0; --k) list.push_back(random_.Chance(65));
      return Plain(list);
    }
    case ArgumentKind::kFloat:
      return Plain(Float(text));
    case ArgumentKind::kFloats: {
      c10::List<double> list;
      for (const std::string& item : SplitOutside(inside, ',')) list.push_back(Float(item));
      return Plain(list);
    }
    case ArgumentKind::kScalar:
      return Plain(Scalar(text));
    case ArgumentKind::kScalars:
      return Plain(ScalarList());
    case ArgumentKind::kString:
      return Plain(text.substr(1, text.size() - 2));
    case ArgumentKind::kDtype: {
      if (function == "dtypeof") return Plain(static_cast<int64_t>(Argument(IndexOf(inside)).tensors.at(0).dtype));
      const std::optional<ScalarType> dtype = DtypeNamed(text);
      TORCH_CHECK(dtype.has_value(), "cross_ref recipes: no dtype '", text, "'");
      return Plain(static_cast<int64_t>(*dtype));
    }
    case ArgumentKind::kMemoryFormat:
      return Plain(static_cast<int64_t>(text == "contiguous" ? c10::MemoryFormat::Contiguous
                                        : text == "preserve" ? c10::MemoryFormat::Preserve
                                                             : c10::MemoryFormat::ChannelsLast));
    case ArgumentKind::kDevice:
      return Plain(c10::Device(c10::kCPU));
    default:
      TORCH_CHECK(false, "cross_ref recipes: can't make '", text, "' of ", schema_.name());
  }
}

TensorSpec Builder::Undefined() {
  TensorSpec spec;
  spec.defined = false;
  return spec;
}

double Builder::Float(const std::string& text) {
  double value = 0;
  TORCH_CHECK(absl::SimpleAtod(text, &value), "cross_ref recipes: no number '", text, "'");
  return value;
}

IValue Builder::Scalar(const std::string& text) {
  if (text == "true" || text == "false") return IValue(text == "true");
  if (text.find('.') != std::string::npos && text.find("..") == std::string::npos) return IValue(Float(text));
  return IValue(Number(text));
}

IValue Builder::AnyScalar() {
  const int64_t which = random_.Between(0, 99);
  if (which < 45) return IValue(random_.Between(1, 3));
  if (which < 80) return IValue(random_.Of(std::initializer_list<double>{0.5, 1.5, 2.0}));
  if (which < 88) return IValue(true);
  if (which < 93) return IValue(c10::complex<double>(1.0, 0.5));
  return IValue(int64_t{-1});
}

IValue Builder::ScalarList() {
  c10::impl::GenericList list(c10::NumberType::get());
  const bool mixed = random_.Chance(20);
  const IValue one = AnyScalar();
  for (int64_t k = 0; k < list_length_; ++k) list.push_back(mixed ? AnyScalar() : one);
  return list;
}

c10::List<int64_t> Builder::IntList(const std::string& text, const c10::Argument& argument) {
  Ints ints;
  const std::size_t paren = text.find('(');
  const std::size_t power = text.find('^');
  const std::string function = paren == std::string::npos ? "" : text.substr(0, paren);
  if (power != std::string::npos) {
    for (int64_t k = Number(text.substr(power + 1)); k > 0; --k) ints.push_back(Number(text.substr(0, power)));
  } else if (paren == 0 && text.back() == ')') {
    const std::string inside = text.substr(1, text.size() - 2);
    if (!inside.empty()) {
      for (const std::string& item : SplitOutside(inside, ',')) {
        if (item[0] == '*') {
          const Ints& shape = Shape(item.substr(1));
          ints.insert(ints.end(), shape.begin(), shape.end());
        } else {
          ints.push_back(Number(item));
        }
      }
    }
  } else if (IsListFunction(function)) {
    ints = ListFunction(function, SplitOutside(text.substr(paren + 1, text.size() - paren - 2), ','));
  } else {
    ints.assign(std::max(argument.N().value_or(1), 1), Number(text));
  }
  return c10::List<int64_t>(ints);
}

Value Builder::FromSchema(std::size_t i, const c10::Argument& argument, ArgumentKind kind, bool optional) {
  const std::string& name = argument.name();
  const bool has_default = argument.default_value().has_value();
  switch (kind) {
    case ArgumentKind::kTensor: {
      if (optional && random_.Chance(50)) return Value{Value::Kind::kTensor, {}, {Undefined()}};
      const bool first = i == 0 || (i == 1 && KindOf(schema_.arguments()[0]) != ArgumentKind::kTensor);
      TensorSpec spec = Tensor(first && !random_.Chance(15) ? "[*S]" : "[~S]");
      if (!first && random_.Chance(15)) spec.dtype = RandomDtype(random_, "any");
      return Value{Value::Kind::kTensor, {}, {spec}};
    }
    case ArgumentKind::kTensors:
      return FromText("each([*S])", argument, kind);
    case ArgumentKind::kOptionalTensors:
      return FromText("indices(self)", argument, kind);
    case ArgumentKind::kInt: {
      if (optional && random_.Chance(40)) return Plain(IValue());
      if (absl::StartsWith(name, "dim") || name == "axis") return Plain(RandomDim(FirstRank()));
      if (has_default && !argument.default_value()->isNone() && random_.Chance(70)) return Plain(*argument.default_value());
      return Plain(random_.Between(1, 3));
    }
    case ArgumentKind::kInts: {
      if (optional && random_.Chance(35)) return Plain(IValue());
      if (has_default && random_.Chance(35)) return Plain(*argument.default_value());
      if (name == "dim" || name == "dims") {
        const std::string first = FirstTensor();
        return first.empty() ? Plain(c10::List<int64_t>()) : Plain(c10::List<int64_t>(ListFunction("dims", {first})));
      }
      if (name == "size" || name == "sizes") return Plain(c10::List<int64_t>(Shape("S")));
      Ints ints(std::max(argument.N().value_or(2), 1));
      for (int64_t& value : ints) value = random_.Between(1, 2);
      return Plain(c10::List<int64_t>(ints));
    }
    case ArgumentKind::kFloat:
      if (optional && random_.Chance(50)) return Plain(IValue());
      if (has_default && !argument.default_value()->isNone() && random_.Chance(70)) return Plain(*argument.default_value());
      return Plain(random_.Of(std::initializer_list<double>{0.5, 0.25, 1.0}));
    case ArgumentKind::kFloats:
      if (optional) return Plain(IValue());
      return Plain(c10::List<double>({0.5, 1.0}));
    case ArgumentKind::kBool:
      if (optional && random_.Chance(60)) return Plain(IValue());
      if (name == "pin_memory") return Plain(false);
      return Plain(random_.Chance(50));
    case ArgumentKind::kBools:
      return FromText(absl::StrCat("bool^", argument.N().value_or(2)), argument, kind);
    case ArgumentKind::kScalar:
      if (optional && random_.Chance(40)) return Plain(IValue());
      if (has_default && !argument.default_value()->isNone() && random_.Chance(60)) return Plain(*argument.default_value());
      return Plain(AnyScalar());
    case ArgumentKind::kScalars:
      return Plain(ScalarList());
    case ArgumentKind::kString:
      if (optional) return Plain(IValue());
      if (has_default) return Plain(*argument.default_value());
      throw Discard();
    case ArgumentKind::kDtype: {
      if (optional && random_.Chance(60)) return Plain(IValue());
      return Plain(static_cast<int64_t>(RandomDtype(random_, recipe_->dtype_class)));
    }
    case ArgumentKind::kLayout:
      return optional && random_.Chance(80) ? Plain(IValue()) : Plain(static_cast<int64_t>(c10::Layout::Strided));
    case ArgumentKind::kMemoryFormat: {
      if (optional && random_.Chance(55)) return Plain(IValue());
      return Plain(static_cast<int64_t>(random_.Of(std::initializer_list<c10::MemoryFormat>{
          c10::MemoryFormat::Contiguous, c10::MemoryFormat::Preserve, c10::MemoryFormat::ChannelsLast})));
    }
    case ArgumentKind::kDevice:
      return optional && random_.Chance(70) ? Plain(IValue()) : Plain(c10::Device(c10::kCPU));
    case ArgumentKind::kGenerator:
      return Plain(IValue());
    default:
      TORCH_CHECK(false, "cross_ref: can't make argument '", name, "' of ", schema_);
  }
}

std::string Builder::FirstTensor() const {
  for (const c10::Argument& argument : schema_.arguments()) {
    const ArgumentKind kind = KindOf(argument);
    if (kind == ArgumentKind::kTensor || kind == ArgumentKind::kTensors) return argument.name();
  }
  return "";
}

int64_t Builder::FirstRank() {
  const std::string name = FirstTensor();
  return name.empty() ? 1 : static_cast<int64_t>(SizesNamed(name).size());
}

}  // namespace ddpopt::cross_ref
