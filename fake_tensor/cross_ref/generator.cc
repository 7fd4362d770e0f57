#include "fake_tensor/cross_ref/generator.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/List.h"
#include "ATen/core/function_schema.h"
#include "ATen/core/jit_type.h"
#include "ATen/ops/_neg_view.h"
#include "ATen/ops/as_strided.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "c10/core/GradMode.h"
#include "c10/util/Exception.h"
#include "fake_tensor/cross_ref/recipe.h"

namespace ddpopt::cross_ref {
namespace {

using c10::IValue;
using c10::ScalarType;
using Ints = std::vector<int64_t>;

// The call doesn't work out with what was chosen so far.
struct Discard {};

const char* NameOf(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return "f32";
    case ScalarType::Double: return "f64";
    case ScalarType::Half: return "f16";
    case ScalarType::BFloat16: return "bf16";
    case ScalarType::Long: return "i64";
    case ScalarType::Int: return "i32";
    case ScalarType::Short: return "i16";
    case ScalarType::Char: return "i8";
    case ScalarType::Byte: return "u8";
    case ScalarType::Bool: return "bool";
    case ScalarType::ComplexFloat: return "c64";
    case ScalarType::ComplexDouble: return "c128";
    default: return c10::toString(type);
  }
}

constexpr ScalarType kDtypes[] = {ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16,
                                  ScalarType::Long,  ScalarType::Int,    ScalarType::Short, ScalarType::Char,
                                  ScalarType::Byte,  ScalarType::Bool,   ScalarType::ComplexFloat, ScalarType::ComplexDouble};

std::optional<ScalarType> DtypeNamed(absl::string_view name) {
  for (const ScalarType type : kDtypes) {
    if (name == NameOf(type)) return type;
  }
  return std::nullopt;
}

ScalarType RandomDtype(Random& random, const std::string& dtype_class) {
  static constexpr ScalarType kAny[] = {ScalarType::Float,    ScalarType::Float, ScalarType::Float, ScalarType::Double,
                                        ScalarType::BFloat16, ScalarType::Half,  ScalarType::Long,  ScalarType::Long,
                                        ScalarType::Int,      ScalarType::Byte,  ScalarType::Bool,  ScalarType::ComplexFloat,
                                        ScalarType::Short,    ScalarType::Char,  ScalarType::ComplexDouble};
  static constexpr ScalarType kFloats[] = {ScalarType::Float, ScalarType::Float, ScalarType::Float, ScalarType::Double,
                                           ScalarType::BFloat16,
                                           ScalarType::Half};
  static constexpr ScalarType kInts[] = {ScalarType::Long, ScalarType::Int, ScalarType::Short, ScalarType::Char, ScalarType::Byte};
  static constexpr ScalarType kComplex[] = {ScalarType::ComplexFloat, ScalarType::ComplexDouble};
  if (random.Chance(7)) return random.Of(kAny);
  if (dtype_class == "float") return random.Of(kFloats);
  if (dtype_class == "fc") return random.Chance(25) ? random.Of(kComplex) : random.Of(kFloats);
  if (dtype_class == "complex") return random.Of(kComplex);
  if (dtype_class == "real") return random.Chance(30) ? random.Of(kInts) : random.Of(kFloats);
  if (dtype_class == "int") return random.Of(kInts);
  if (dtype_class == "bits") return random.Chance(25) ? ScalarType::Bool : random.Of(kInts);
  if (dtype_class == "bool") return ScalarType::Bool;
  TORCH_CHECK(dtype_class == "any", "cross_ref recipes: no dtype class '", dtype_class, "'");
  return random.Of(kAny);
}

int64_t Product(const Ints& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()); }

// Splits where the separator stands outside brackets and quotes.
std::vector<std::string> SplitOutside(absl::string_view text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    if (c == '(' || c == '[') ++depth;
    if (c == ')' || c == ']') --depth;
    if (c == separator && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

c10::TypePtr WithoutOptional(c10::TypePtr type) {
  while (type->kind() == c10::TypeKind::OptionalType) type = type->containedType(0);
  return type;
}

enum class ArgumentKind { kTensor, kTensors, kOptionalTensors, kInt, kInts, kFloat, kFloats, kBool, kBools, kScalar, kScalars, kString,
                          kDtype, kLayout, kMemoryFormat, kDevice, kGenerator, kUnknown };

ArgumentKind KindOf(const c10::Argument& argument) {
  using c10::TypeKind;
  const auto kind = [](const c10::TypePtr& type, const c10::TypePtr& real) {
    switch (real->kind()) {
      case TypeKind::ScalarTypeType: return ArgumentKind::kDtype;
      case TypeKind::LayoutType: return ArgumentKind::kLayout;
      case TypeKind::MemoryFormatType: return ArgumentKind::kMemoryFormat;
      default: break;
    }
    switch (type->kind()) {
      case TypeKind::TensorType: return ArgumentKind::kTensor;
      case TypeKind::IntType: case TypeKind::SymIntType: return ArgumentKind::kInt;
      case TypeKind::FloatType: return ArgumentKind::kFloat;
      case TypeKind::BoolType: return ArgumentKind::kBool;
      case TypeKind::NumberType: return ArgumentKind::kScalar;
      case TypeKind::StringType: return ArgumentKind::kString;
      case TypeKind::DeviceObjType: return ArgumentKind::kDevice;
      case TypeKind::GeneratorType: return ArgumentKind::kGenerator;
      default: return ArgumentKind::kUnknown;
    }
  };
  const c10::TypePtr type = WithoutOptional(argument.type());
  if (type->kind() != TypeKind::ListType) return kind(type, WithoutOptional(argument.real_type()));
  const c10::TypePtr element = type->containedType(0);
  if (element->kind() == TypeKind::OptionalType) {
    return element->containedType(0)->kind() == TypeKind::TensorType ? ArgumentKind::kOptionalTensors : ArgumentKind::kUnknown;
  }
  switch (kind(element, element)) {
    case ArgumentKind::kTensor: return ArgumentKind::kTensors;
    case ArgumentKind::kInt: return ArgumentKind::kInts;
    case ArgumentKind::kFloat: return ArgumentKind::kFloats;
    case ArgumentKind::kBool: return ArgumentKind::kBools;
    case ArgumentKind::kScalar: return ArgumentKind::kScalars;
    default: return ArgumentKind::kUnknown;
  }
}

bool IsOut(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Evaluates a recipe for one call.
class Builder {
 public:
  Builder(const c10::OperatorHandle& op, uint64_t seed, const CallOptions& options)
      : op_(op), schema_(op.schema()), options_(options), random_(seed) {
    recipe_ = &random_.Of(RecipesOf(schema_.name(), schema_.overload_name()));
    dtype_ = RandomDtype(random_, recipe_->dtype_class);
    if (options.dtype.has_value()) dtype_ = *options.dtype;
    has_empty_ = random_.Chance(8) && !recipe_->nonempty;
    list_length_ = random_.Chance(4) ? 0 : random_.Between(1, 3);
    for (const auto& [name, range] : recipe_->variables) pending_.emplace(name, range);
  }

  Call Build() {
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
    MakeOuts();
    for (std::optional<Value>& value : values_) call.arguments.push_back(std::move(*value));
    RefuseBadIndices(call);
    return call;
  }

 private:
  // ---- recipes' expressions

  std::string Scoped(const std::string& name) const { return position_ < 0 ? name : absl::StrCat(name, "#", position_); }

  int64_t Size() {
    if (has_empty_ && random_.Chance(30)) return 0;
    static constexpr int64_t kSizes[] = {1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 5};
    return random_.Of(kSizes);
  }

  int64_t Variable(const std::string& name) {
    const std::string key = Scoped(name);
    if (const auto found = variables_.find(key); found != variables_.end()) return found->second;
    const auto pending = pending_.find(name);
    const int64_t value = pending == pending_.end() ? Size() : Number(pending->second);
    variables_[key] = value;
    return value;
  }

  const Ints& Shape(const std::string& name) {
    const std::string key = Scoped(name);
    if (const auto found = shapes_.find(key); found != shapes_.end()) return found->second;
    int64_t rank = 0;
    switch (name[0]) {
      case 'S': rank = random_.Of(std::initializer_list<int64_t>{0, 1, 1, 2, 2, 2, 3, 3, 4}); break;
      case 'W': rank = random_.Of(std::initializer_list<int64_t>{1, 1, 2, 2, 2, 3, 3, 4}); break;
      case 'V': rank = random_.Of(std::initializer_list<int64_t>{2, 2, 3, 3, 4}); break;
      case 'P': rank = random_.Of(std::initializer_list<int64_t>{0, 0, 1, 1, 2}); break;
      case 'Q': rank = random_.Of(std::initializer_list<int64_t>{1, 1, 2}); break;
      default: TORCH_CHECK(false, "cross_ref recipes: no shape '*", name, "'");
    }
    Ints shape;
    for (int64_t i = 0; i < rank; ++i) shape.push_back(Size());
    return shapes_[key] = shape;
  }

  // A shape that broadcasts to the other one.
  Ints Broadcastable(Ints shape) {
    if (random_.Chance(50)) return shape;
    const int64_t drop = random_.Chance(50) ? random_.Between(0, static_cast<int64_t>(shape.size())) : 0;
    shape.erase(shape.begin(), shape.begin() + drop);
    for (int64_t& size : shape) {
      if (random_.Chance(25)) size = 1;
    }
    return shape;
  }

  int64_t Number(const std::string& text) {
    const std::size_t dots = text.find("..");
    if (dots != std::string::npos) {
      const int64_t low = Expression(text.substr(0, dots)), high = Expression(text.substr(dots + 2));
      return random_.Between(low, std::max(low, high));
    }
    return Expression(text);
  }

  int64_t Expression(const std::string& text) {
    std::size_t at = 0;
    const int64_t value = Sum(text, &at);
    TORCH_CHECK(at == text.size(), "cross_ref recipes: can't read '", text, "' of ", schema_.name());
    return value;
  }

  int64_t Sum(const std::string& text, std::size_t* at) {
    int64_t value = Term(text, at);
    while (*at < text.size() && (text[*at] == '+' || text[*at] == '-')) {
      const char sign = text[(*at)++];
      const int64_t next = Term(text, at);
      value = sign == '+' ? value + next : value - next;
    }
    return value;
  }

  int64_t Term(const std::string& text, std::size_t* at) {
    int64_t value = Factor(text, at);
    while (*at < text.size() && (text[*at] == '*' || text[*at] == '/')) {
      const char sign = text[(*at)++];
      const int64_t next = Factor(text, at);
      if (sign == '/' && next == 0) throw Discard();
      value = sign == '*' ? value * next : value / next;
    }
    return value;
  }

  int64_t Factor(const std::string& text, std::size_t* at) {
    TORCH_CHECK(*at < text.size(), "cross_ref recipes: can't read '", text, "' of ", schema_.name());
    if (text[*at] == '-') {
      ++*at;
      return -Factor(text, at);
    }
    if (text[*at] == '(') {
      ++*at;
      const int64_t value = Sum(text, at);
      ++*at;
      return value;
    }
    std::size_t end = *at;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
    const std::string word = text.substr(*at, end - *at);
    *at = end;
    if (end < text.size() && text[end] == '(') {
      std::size_t close = end + 1;
      for (int depth = 1; depth > 0; ++close) {
        if (text[close] == '(') ++depth;
        if (text[close] == ')') --depth;
      }
      *at = close;
      return NumberFunction(word, SplitOutside(text.substr(end + 1, close - end - 2), ','));
    }
    if (word == "n") return list_length_;
    int64_t number = 0;
    if (absl::SimpleAtoi(word, &number)) return number;
    TORCH_CHECK(!word.empty() && std::isupper(static_cast<unsigned char>(word[0])), "cross_ref recipes: can't read '", text, "' of ",
                schema_.name());
    return Variable(word);
  }

  // The sizes a function is asked about: *S, or a tensor argument.
  Ints SizesNamed(const std::string& name) {
    if (name[0] == '*') return Shape(name.substr(1));
    const Value& value = Argument(IndexOf(name));
    if (value.tensors.empty()) throw Discard();
    return value.tensors[0].sizes;
  }

  // A dimension: a number, or an argument that is one; wrapped.
  int64_t DimNamed(const std::string& name, int64_t rank) {
    int64_t dim = 0;
    if (!absl::SimpleAtoi(name, &dim)) {
      const Value& value = Argument(IndexOf(name));
      if (!value.plain.isInt()) throw Discard();
      dim = value.plain.toInt();
    }
    if (dim < 0) dim += std::max<int64_t>(rank, 1);
    if (dim < 0 || dim >= std::max<int64_t>(rank, 1)) throw Discard();
    return dim;
  }

  int64_t SizeOf(const Ints& sizes, const std::string& dim_name) {
    const int64_t dim = DimNamed(dim_name, static_cast<int64_t>(sizes.size()));
    return sizes.empty() ? 1 : sizes[dim];
  }

  int64_t RandomDim(int64_t rank) {
    rank = std::max<int64_t>(rank, 1);
    const int64_t dim = random_.Between(0, rank - 1);
    return random_.Chance(35) ? dim - rank : dim;
  }

  int64_t NumberFunction(const std::string& name, const std::vector<std::string>& of) {
    const Ints sizes = SizesNamed(of[0]);
    const int64_t rank = static_cast<int64_t>(sizes.size());
    if (name == "rank") return rank;
    if (name == "prod" || name == "numel") return Product(sizes);
    if (name == "dim") return RandomDim(rank);
    if (name == "newdim") return random_.Chance(35) ? random_.Between(-rank - 1, -1) : random_.Between(0, rank);
    if (name == "sizeof") return SizeOf(sizes, of[1]);
    if (name == "upto") return random_.Between(0, SizeOf(sizes, of[1]));
    if (name == "from1") {
      const int64_t size = SizeOf(sizes, of[1]);
      if (size < 1) throw Discard();
      return random_.Between(1, size);
    }
    if (name == "at") {
      const int64_t size = SizeOf(sizes, of[1]);
      if (size < 1) return 0;
      return random_.Between(-size, size - 1);
    }
    TORCH_CHECK(false, "cross_ref recipes: no function '", name, "'");
  }

  bool IsListFunction(const std::string& name) {
    static constexpr const char* kNames[] = {"dims",      "dims2", "posdims", "perm",    "shape", "strides", "reshape", "expanded",
                                             "partition", "pads",  "repeats", "sub",   "with",    "drop",    "indexed"};
    for (const char* known : kNames) {
      if (name == known) return true;
    }
    return false;
  }

  Ints ListFunction(const std::string& name, const std::vector<std::string>& of) {
    Ints sizes = SizesNamed(of[0]);
    const int64_t rank = static_cast<int64_t>(sizes.size());
    if (name == "shape") return sizes;
    if (name == "dims" || name == "posdims" || name == "dims2" || name == "perm") {
      Ints dims(rank);
      std::iota(dims.begin(), dims.end(), 0);
      for (int64_t i = rank - 1; i > 0; --i) std::swap(dims[i], dims[random_.Between(0, i)]);
      if ((name == "dims" || name == "posdims") && rank > 0) dims.resize(random_.Between(1, rank));
      if (name == "dims2") dims.resize(std::min<int64_t>(rank, 2));
      for (int64_t& dim : dims) {
        if (name != "posdims" && random_.Chance(25)) dim -= rank;
      }
      return dims;
    }
    if (name == "strides") {
      Ints strides(rank, 1);
      for (int64_t i = rank - 2; i >= 0; --i) strides[i] = strides[i + 1] * std::max<int64_t>(sizes[i + 1], 1);
      return strides;
    }
    if (name == "reshape") {
      Ints shape;
      int64_t left = Product(sizes);
      if (left == 0) return random_.Chance(50) ? sizes : Ints{0, 2};
      if (random_.Chance(15)) shape.push_back(1);
      while (left > 1 && shape.size() < 4) {
        Ints divisors;
        for (int64_t d = 2; d <= left; ++d) {
          if (left % d == 0) divisors.push_back(d);
        }
        const int64_t divisor = shape.size() == 3 ? left : random_.Of(divisors);
        shape.push_back(divisor);
        left /= divisor;
      }
      if (left > 1) shape.push_back(left);
      if (!shape.empty() && random_.Chance(25)) shape[random_.Between(0, static_cast<int64_t>(shape.size()) - 1)] = -1;
      return shape;
    }
    if (name == "expanded") {
      Ints shape;
      for (int64_t i = random_.Between(0, 1); i > 0; --i) shape.push_back(random_.Between(0, 3));
      for (const int64_t size : sizes) shape.push_back(size == 1 ? random_.Between(0, 3) : random_.Chance(20) ? -1 : size);
      return shape;
    }
    if (name == "partition") {
      Ints parts;
      for (int64_t left = SizeOf(sizes, of[1]); left > 0;) {
        parts.push_back(random_.Between(0, left));
        left -= parts.back();
      }
      return parts;
    }
    if (name == "pads") {
      Ints pads(2 * random_.Between(0, rank));
      for (int64_t& pad : pads) pad = random_.Between(-1, 2);
      return pads;
    }
    if (name == "repeats") {
      Ints repeats(rank + random_.Between(0, 1));
      for (int64_t& repeat : repeats) repeat = random_.Between(random_.Chance(10) ? 0 : 1, 3);
      return repeats;
    }
    if (name == "sub") {
      for (int64_t& size : sizes) {
        if (size > 0) size = random_.Between(random_.Chance(5) ? 0 : 1, size);
      }
      return sizes;
    }
    if (name == "with") {
      const int64_t dim = DimNamed(of[1], rank);
      if (!sizes.empty()) sizes[dim] = Expression(of[2]);
      return sizes;
    }
    if (name == "drop") {
      const int64_t dim = DimNamed(of[1], rank);
      if (!sizes.empty()) sizes.erase(sizes.begin() + dim);
      return sizes;
    }
    if (name == "indexed") return IndexedShape(sizes, Argument(IndexOf(of[1])).tensors);
    TORCH_CHECK(false, "cross_ref recipes: no function '", name, "'");
  }

  // The shape of self[indices], for integer indices.
  static Ints IndexedShape(const Ints& sizes, const std::vector<TensorSpec>& indices) {
    Ints common;
    std::vector<std::size_t> at;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (!indices[i].defined) continue;
      if (indices[i].dtype == ScalarType::Bool || indices[i].dtype == ScalarType::Byte) throw Discard();
      at.push_back(i);
      Ints shape = indices[i].sizes;
      if (shape.size() < common.size()) std::swap(shape, common);
      for (std::size_t k = 0; k < common.size(); ++k) {
        int64_t& size = shape[shape.size() - 1 - k];
        const int64_t other = common[common.size() - 1 - k];
        if (size == 1) size = other;
      }
      common = shape;
    }
    if (at.empty()) return sizes;
    const bool adjacent = at.back() - at.front() + 1 == at.size();
    Ints result;
    if (!adjacent) result = common;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (adjacent && i == at.front()) result.insert(result.end(), common.begin(), common.end());
      if (i >= indices.size() || !indices[i].defined) result.push_back(sizes[i]);
    }
    return result;
  }

  std::size_t IndexOf(const std::string& name) const {
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      if (schema_.arguments()[i].name() == name) return i;
    }
    // A recipe for several overloads asks about an argument that this one hasn't.
    throw Discard();
  }

  // ---- tensors

  TensorSpec Tensor(const std::string& text) {
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

  // ---- arguments

  const Value& Argument(std::size_t i) {
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

  static bool Fits(const std::string& text, ArgumentKind kind, bool optional) {
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

  Value Choose(std::size_t i) {
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

  static Value Plain(IValue value) { return Value{Value::Kind::kPlain, std::move(value), {}}; }

  Value FromText(const std::string& text, const c10::Argument& argument, ArgumentKind kind) {
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
      case ArgumentKind::kInt: return Plain(IValue(Number(text)));
      case ArgumentKind::kInts: return Plain(IValue(IntList(text, argument)));
      case ArgumentKind::kBool: return Plain(text == "true" ? true : text == "false" ? false : random_.Chance(50));
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
      case ArgumentKind::kFloat: return Plain(Float(text));
      case ArgumentKind::kFloats: {
        c10::List<double> list;
        for (const std::string& item : SplitOutside(inside, ',')) list.push_back(Float(item));
        return Plain(list);
      }
      case ArgumentKind::kScalar: return Plain(Scalar(text));
      case ArgumentKind::kScalars: return Plain(ScalarList());
      case ArgumentKind::kString: return Plain(text.substr(1, text.size() - 2));
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
      case ArgumentKind::kDevice: return Plain(c10::Device(c10::kCPU));
      default: TORCH_CHECK(false, "cross_ref recipes: can't make '", text, "' of ", schema_.name());
    }
  }

  static TensorSpec Undefined() {
    TensorSpec spec;
    spec.defined = false;
    return spec;
  }

  static double Float(const std::string& text) {
    double value = 0;
    TORCH_CHECK(absl::SimpleAtod(text, &value), "cross_ref recipes: no number '", text, "'");
    return value;
  }

  IValue Scalar(const std::string& text) {
    if (text == "true" || text == "false") return IValue(text == "true");
    if (text.find('.') != std::string::npos && text.find("..") == std::string::npos) return IValue(Float(text));
    return IValue(Number(text));
  }

  IValue AnyScalar() {
    const int64_t which = random_.Between(0, 99);
    if (which < 45) return IValue(random_.Between(1, 3));
    if (which < 80) return IValue(random_.Of(std::initializer_list<double>{0.5, 1.5, 2.0}));
    if (which < 88) return IValue(true);
    if (which < 93) return IValue(c10::complex<double>(1.0, 0.5));
    return IValue(int64_t{-1});
  }

  IValue ScalarList() {
    c10::impl::GenericList list(c10::NumberType::get());
    const bool mixed = random_.Chance(20);
    const IValue one = AnyScalar();
    for (int64_t k = 0; k < list_length_; ++k) list.push_back(mixed ? AnyScalar() : one);
    return list;
  }

  c10::List<int64_t> IntList(const std::string& text, const c10::Argument& argument) {
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

  Value FromSchema(std::size_t i, const c10::Argument& argument, ArgumentKind kind, bool optional) {
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
      case ArgumentKind::kTensors: return FromText("each([*S])", argument, kind);
      case ArgumentKind::kOptionalTensors: return FromText("indices(self)", argument, kind);
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
      case ArgumentKind::kBools: return FromText(absl::StrCat("bool^", argument.N().value_or(2)), argument, kind);
      case ArgumentKind::kScalar:
        if (optional && random_.Chance(40)) return Plain(IValue());
        if (has_default && !argument.default_value()->isNone() && random_.Chance(60)) return Plain(*argument.default_value());
        return Plain(AnyScalar());
      case ArgumentKind::kScalars: return Plain(ScalarList());
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
      case ArgumentKind::kDevice: return optional && random_.Chance(70) ? Plain(IValue()) : Plain(c10::Device(c10::kCPU));
      case ArgumentKind::kGenerator: return Plain(IValue());
      default: TORCH_CHECK(false, "cross_ref: can't make argument '", name, "' of ", schema_);
    }
  }

  std::string FirstTensor() const {
    for (const c10::Argument& argument : schema_.arguments()) {
      const ArgumentKind kind = KindOf(argument);
      if (kind == ArgumentKind::kTensor || kind == ArgumentKind::kTensors) return argument.name();
    }
    return "";
  }

  int64_t FirstRank() {
    const std::string name = FirstTensor();
    return name.empty() ? 1 : static_cast<int64_t>(SizesNamed(name).size());
  }

  // ---- layouts, damage, out=

  template <typename Fn>
  void ForEachTensor(Fn&& fn) {
    for (std::optional<Value>& value : values_) {
      if (!value.has_value()) continue;
      for (TensorSpec& spec : value->tensors) {
        if (spec.defined) fn(spec);
      }
    }
  }

  void ChooseLayout(TensorSpec& spec) {
    using Layout = TensorSpec::Layout;
    spec.detail = static_cast<int64_t>(random_.Next() >> 1);
    const int64_t rank = static_cast<int64_t>(spec.sizes.size());
    const int64_t which = random_.Between(0, 99);
    if (recipe_->contiguous) return;
    const bool structured = spec.values == TensorSpec::Values::kPositiveDefinite || spec.values == TensorSpec::Values::kIncreasing;
    if (which < 50 || rank == 0) {
      spec.layout = which >= 95 ? Layout::kOffset : Layout::kContiguous;
    } else if (which < 66) {
      spec.layout = Layout::kPermuted;
    } else if (which < 76) {
      spec.layout = rank == 4 || rank == 5 ? Layout::kChannelsLast : Layout::kPermuted;
    } else if (which < 88) {
      spec.layout = Layout::kSliced;
    } else if (which < 95) {
      spec.layout = structured ? Layout::kContiguous : Layout::kExpanded;
    } else {
      spec.layout = Layout::kOffset;
    }
    if (c10::isComplexType(spec.dtype)) spec.conj = random_.Chance(12);
    if (spec.dtype != ScalarType::Bool && !structured) spec.neg = (c10::isFloatingType(spec.dtype) || spec.conj) && random_.Chance(2);
    spec.wrapped = rank == 0 && spec.layout == Layout::kContiguous && !spec.conj && !spec.neg && random_.Chance(25) &&
                   (spec.dtype == ScalarType::Double || spec.dtype == ScalarType::Long || spec.dtype == ScalarType::Bool ||
                    spec.dtype == ScalarType::ComplexDouble);
  }

  void Arrange() {
    std::vector<TensorSpec*> earlier;
    ForEachTensor([&](TensorSpec& spec) {
      ChooseLayout(spec);
      if (!earlier.empty() && random_.Chance(5) && !recipe_->unchecked) {
        // Another argument's tensor, or a view of it, where that could be meant.
        const int other = static_cast<int>(random_.Between(0, static_cast<int64_t>(earlier.size()) - 1));
        const TensorSpec& that = *earlier[other];
        if (that.dtype == spec.dtype && that.sizes == spec.sizes && that.values == TensorSpec::Values::kPlain &&
            spec.values == TensorSpec::Values::kPlain && that.other < 0) {
          spec = that;
          spec.layout = random_.Chance(60) ? TensorSpec::Layout::kSameAs : TensorSpec::Layout::kViewOf;
          spec.other = other;
        }
      }
      earlier.push_back(&spec);
    });
  }

  std::string Damage() {
    std::vector<std::size_t> candidates;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (!values_[i].has_value()) continue;
      const Value& value = *values_[i];
      if (!value.tensors.empty() || value.plain.isInt() || value.plain.isIntList() || value.plain.isDouble()) candidates.push_back(i);
    }
    if (candidates.empty()) return "";
    const std::size_t i = random_.Of(candidates);
    Value& value = *values_[i];
    const std::string& name = schema_.arguments()[i].name();
    if (!value.tensors.empty()) {
      // Whatever views it had been asked to be, sizes may not fit any more.
      ForEachTensor([](TensorSpec& spec) {
        if (spec.other >= 0) spec.layout = TensorSpec::Layout::kContiguous;
        spec.other = -1;
      });
      TensorSpec& spec = value.tensors[random_.Between(0, static_cast<int64_t>(value.tensors.size()) - 1)];
      if (!spec.defined) return "";
      spec.wrapped = false;
      switch (random_.Between(0, 7)) {
        case 0: case 1:
          spec.dtype = random_.Of(kDtypes);
          spec.conj &= c10::isComplexType(spec.dtype);
          spec.neg = false;
          return absl::StrCat("dtype of ", name);
        case 2: case 3: {
          if (spec.sizes.empty()) break;
          int64_t& size = spec.sizes[random_.Between(0, static_cast<int64_t>(spec.sizes.size()) - 1)];
          size += size == 0 || random_.Chance(60) ? 1 : -1;
          if (random_.Chance(10)) size = 0;
          return absl::StrCat("size of ", name);
        }
        case 4:
          if (spec.sizes.empty()) break;
          spec.sizes.erase(spec.sizes.begin() + random_.Between(0, static_cast<int64_t>(spec.sizes.size()) - 1));
          if (spec.layout == TensorSpec::Layout::kChannelsLast) spec.layout = TensorSpec::Layout::kPermuted;
          return absl::StrCat("rank of ", name);
        case 5:
          spec.sizes.insert(spec.sizes.begin() + random_.Between(0, static_cast<int64_t>(spec.sizes.size())), random_.Between(1, 3));
          if (spec.layout == TensorSpec::Layout::kChannelsLast) spec.layout = TensorSpec::Layout::kPermuted;
          return absl::StrCat("rank of ", name);
        case 6:
          if (spec.sizes.size() < 2) break;
          std::swap(spec.sizes.front(), spec.sizes.back());
          return absl::StrCat("sizes of ", name);
        default: {
          if (schema_.arguments()[i].type()->kind() == c10::TypeKind::OptionalType) {
            spec = Undefined();
            return absl::StrCat(name, " left out");
          }
          if (value.tensors.size() > 1) {
            value.tensors.pop_back();
            return absl::StrCat("length of ", name);
          }
          break;
        }
      }
      return "";
    }
    if (value.plain.isInt()) {
      const int64_t before = value.plain.toInt();
      if (KindOf(schema_.arguments()[i]) != ArgumentKind::kInt) return "";
      value.plain = random_.Of(std::initializer_list<int64_t>{before + 1, before - 1, -before, before + 7, before - 9, 0});
      return absl::StrCat("value of ", name);
    }
    if (value.plain.isIntList()) {
      Ints ints = value.plain.toIntVector();
      switch (random_.Between(0, 3)) {
        case 0: ints.push_back(1); break;
        case 1: if (!ints.empty()) ints.pop_back(); break;
        case 2: if (!ints.empty()) ints[random_.Between(0, static_cast<int64_t>(ints.size()) - 1)] += random_.Chance(50) ? 5 : 1; break;
        default: if (!ints.empty()) ints[random_.Between(0, static_cast<int64_t>(ints.size()) - 1)] -= random_.Chance(30) ? 5 : 1; break;
      }
      value.plain = c10::List<int64_t>(ints);
      return absl::StrCat("value of ", name);
    }
    value.plain = random_.Of(std::initializer_list<double>{-0.5, 0.0, 3.0});
    return absl::StrCat("value of ", name);
  }

  // The functional form: the same name and arguments but for out=.
  std::optional<c10::OperatorHandle> Functional() const {
    std::vector<const c10::Argument*> wanted;
    for (const c10::Argument& argument : schema_.arguments()) {
      if (!IsOut(argument)) wanted.push_back(&argument);
    }
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name != schema_.name() || name.overload_name == schema_.overload_name()) continue;
      const std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema(name);
      if (!op.has_value() || op->schema().arguments().size() != wanted.size()) continue;
      bool equal = true;
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        equal &= op->schema().arguments()[i].name() == wanted[i]->name() && *op->schema().arguments()[i].type() == *wanted[i]->type();
      }
      if (equal) return op;
    }
    return std::nullopt;
  }

  void MakeOuts() {
    std::vector<std::size_t> outs;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (!values_[i].has_value()) outs.push_back(i);
    }
    if (outs.empty()) return;
    std::vector<TensorSpec> expected;
    bool several = false;  // results, of which out= is one
    if (const std::optional<c10::OperatorHandle> functional = Functional(); functional.has_value()) {
      Call call{*functional, {}, random_.Next(), ""};
      for (const std::optional<Value>& value : values_) {
        if (value.has_value()) call.arguments.push_back(*value);
      }
      RefuseBadIndices(call);
      several = functional->schema().returns().size() > 1;
      try {
        std::vector<at::Tensor> results;
        Flatten(Run(*functional, Make(call).arguments), &results);
        for (const at::Tensor& result : results) {
          TensorSpec spec;
          if (result.defined() && std::find(std::begin(kDtypes), std::end(kDtypes), result.scalar_type()) != std::end(kDtypes)) {
            spec.dtype = result.scalar_type();
            spec.sizes = result.sizes().vec();
          }
          expected.push_back(spec);
        }
      } catch (const std::exception&) {
        // Refused: any out will do.
      }
    }
    std::size_t next = 0;
    for (const std::size_t i : outs) {
      Value value;
      const ArgumentKind kind = KindOf(schema_.arguments()[i]);
      value.kind = kind == ArgumentKind::kTensors ? Value::Kind::kTensors : Value::Kind::kTensor;
      std::size_t count = 1;
      if (kind == ArgumentKind::kTensors) count = expected.empty() || several ? list_length_ : expected.size();
      for (std::size_t k = 0; k < count; ++k) {
        TensorSpec spec;
        spec.dtype = dtype_;
        spec.sizes = {0};
        if (next < expected.size()) spec = expected[next++];
        OutSpec(spec);
        value.tensors.push_back(spec);
      }
      values_[i] = std::move(value);
    }
  }

  void OutSpec(TensorSpec& spec) {
    const int64_t which = random_.Between(0, 99);
    spec.detail = static_cast<int64_t>(random_.Next() >> 1);
    if (which < 45 || recipe_->plain_outs) return;
    if (which < 60) {
      spec.sizes = {0};
    } else if (which < 68) {
      spec.sizes = Shape("S9");
    } else if (which < 78) {
      spec.dtype = random_.Of(kDtypes);
    } else if (recipe_->contiguous) {
      return;
    } else if (which < 88) {
      spec.layout = TensorSpec::Layout::kPermuted;
    } else if (which < 91 && !recipe_->distinct_outs) {
      spec.layout = TensorSpec::Layout::kExpanded;
    } else if (which < 95 || recipe_->distinct_outs) {
      spec.layout = TensorSpec::Layout::kSliced;
    } else if (!recipe_->unchecked) {
      // An input's own tensor or memory.
      std::vector<TensorSpec*> inputs;
      std::vector<int> at;
      int number = 0;
      ForEachTensor([&](TensorSpec& input) {
        if (input.other < 0 && input.dtype == spec.dtype && input.values == TensorSpec::Values::kPlain && !input.wrapped) {
          inputs.push_back(&input);
          at.push_back(number);
        }
        ++number;
      });
      if (inputs.empty()) return;
      const std::size_t k = random_.Between(0, static_cast<int64_t>(inputs.size()) - 1);
      spec = *inputs[k];
      spec.other = at[k];
      spec.layout = random_.Chance(50) ? TensorSpec::Layout::kSameAs : TensorSpec::Layout::kViewOf;
    }
  }

  static void Flatten(const IValue& value, std::vector<at::Tensor>* out) {
    if (value.isTensor()) {
      out->push_back(value.toTensor());
    } else if (value.isTuple()) {
      for (const IValue& element : value.toTupleRef().elements()) Flatten(element, out);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) out->push_back(tensor);
    }
  }

  // Whether a kernel would look at an index that can't be right: that is refused for its value, which a fake can't know.
  static void RefuseBadIndices(const Call& call) {
    bool index = false;
    for (const Value& value : call.arguments) {
      for (const TensorSpec& spec : value.tensors) {
        if (!spec.defined || spec.values != TensorSpec::Values::kBelow || spec.numel() == 0) continue;
        if (spec.bound < 1) throw Discard();
        index = true;
      }
    }
    if (!index || call.damage.empty()) return;
    for (const Value& value : call.arguments) {
      for (const TensorSpec& spec : value.tensors) {
        if (spec.defined && spec.values != TensorSpec::Values::kBelow && spec.numel() == 0) throw Discard();
      }
    }
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  const CallOptions options_;
  Random random_;
  const Recipe* recipe_;
  ScalarType dtype_;
  bool has_empty_;
  int64_t list_length_;
  int64_t position_ = -1;  // within each(…)
  std::map<std::string, std::string> pending_;
  std::map<std::string, int64_t> variables_;
  std::map<std::string, Ints> shapes_;
  std::vector<std::optional<Value>> values_;
  std::vector<std::size_t> open_;
};

// ---- from specs to tensors

template <typename T>
void FillAs(const at::Tensor& flat, const std::vector<double>& values) {
  T* data = flat.mutable_data_ptr<T>();
  for (std::size_t i = 0; i < values.size(); ++i) data[i] = static_cast<T>(values[i]);
}

// A tensor of one dimension and n elements.
at::Tensor Flat(const TensorSpec& spec, int64_t n, bool ordered, Random& random) {
  const at::Tensor flat = at::empty({n}, at::TensorOptions(spec.dtype));
  std::vector<double> values(n);
  const int64_t last = spec.sizes.empty() ? 1 : spec.sizes.back();
  const int64_t rows = spec.sizes.size() < 2 ? 1 : spec.sizes[spec.sizes.size() - 2];
  for (int64_t i = 0; i < n; ++i) {
    switch (spec.values) {
      case TensorSpec::Values::kBelow: values[i] = static_cast<double>(random.Between(0, std::max<int64_t>(spec.bound, 1) - 1)); break;
      case TensorSpec::Values::kEqual: values[i] = static_cast<double>(spec.bound); break;
      case TensorSpec::Values::kIncreasing: values[i] = ordered ? static_cast<double>(i % last) : 0; break;
      case TensorSpec::Values::kPositiveDefinite:
        values[i] = ordered && i % last == (i / last) % rows     ? static_cast<double>(last + 1)
                    : c10::isIntegralType(spec.dtype, true) ? 0
                                                            : 0.25;
        break;
      case TensorSpec::Values::kPlain:
        values[i] = c10::isIntegralType(spec.dtype, false) ? static_cast<double>(random.Between(1, 3))
                    : spec.dtype == ScalarType::Bool       ? static_cast<double>(random.Between(0, 1))
                                                           : 0.1 + 0.8 * random.Unit();
        break;
    }
  }
  // The values that the tensor will show.
  if (spec.neg && spec.values == TensorSpec::Values::kPlain) {
    for (double& value : values) value = -value;
  }
  switch (spec.dtype) {
    case ScalarType::Float: FillAs<float>(flat, values); break;
    case ScalarType::Double: FillAs<double>(flat, values); break;
    case ScalarType::Half: FillAs<at::Half>(flat, values); break;
    case ScalarType::BFloat16: FillAs<at::BFloat16>(flat, values); break;
    case ScalarType::Long: FillAs<int64_t>(flat, values); break;
    case ScalarType::Int: FillAs<int32_t>(flat, values); break;
    case ScalarType::Short: FillAs<int16_t>(flat, values); break;
    case ScalarType::Char: FillAs<int8_t>(flat, values); break;
    case ScalarType::Byte: FillAs<uint8_t>(flat, values); break;
    case ScalarType::Bool: FillAs<bool>(flat, values); break;
    case ScalarType::ComplexFloat: FillAs<c10::complex<float>>(flat, values); break;
    case ScalarType::ComplexDouble: FillAs<c10::complex<double>>(flat, values); break;
    default: TORCH_CHECK(false, "cross_ref: values of ", c10::toString(spec.dtype));
  }
  return flat;
}

at::Tensor MakeTensor(const TensorSpec& spec, Random& random) {
  using Layout = TensorSpec::Layout;
  const int64_t rank = static_cast<int64_t>(spec.sizes.size());
  Random detail(static_cast<uint64_t>(spec.detail));
  Ints strides(rank, 1);
  int64_t offset = 0;
  // Dimensions from the innermost, and how many elements there are between neighbours.
  Ints order(rank);
  std::iota(order.rbegin(), order.rend(), 0);
  if (spec.layout == Layout::kPermuted) {
    for (int64_t i = rank - 1; i > 0; --i) std::swap(order[i], order[detail.Between(0, i)]);
  } else if (spec.layout == Layout::kChannelsLast && rank >= 3) {
    order.clear();
    order.push_back(1);
    for (int64_t i = rank - 1; i >= 2; --i) order.push_back(i);
    order.push_back(0);
  }
  int64_t step = 1;
  const int64_t special = rank == 0 ? 0 : detail.Between(0, rank - 1);
  for (const int64_t dim : order) {
    if (spec.layout == Layout::kSliced && dim == special) {
      const int64_t pace = detail.Between(1, 2), before = detail.Between(0, 1);
      strides[dim] = step * pace;
      offset += step * before;
      step *= spec.sizes[dim] * pace + before + detail.Between(0, 1);
    } else if (spec.layout == Layout::kExpanded && dim == special) {
      strides[dim] = 0;
    } else {
      strides[dim] = step;
      step *= std::max<int64_t>(spec.sizes[dim], 1);
    }
  }
  if (spec.layout == Layout::kOffset) {
    offset = detail.Between(1, 3);
    step += offset + detail.Between(0, 2);
  }
  // Some kernels write to out= as if it were contiguous; that shall stay within its storage.
  if (spec.layout != Layout::kContiguous) step = std::max(step, offset + spec.numel());
  const bool ordered = spec.layout == Layout::kContiguous;
  at::Tensor flat = Flat(spec, spec.numel() == 0 ? offset : step, ordered, random);
  at::Tensor tensor = at::as_strided(flat, spec.sizes, strides, offset);
  if (ordered && spec.numel() > 0) {
    // A base of its own: as_strided's result is a view.
    tensor = flat.view(spec.sizes);
  }
  if (spec.conj) tensor = tensor.conj();
  if (spec.neg) tensor = at::_neg_view(tensor);
  if (spec.wrapped) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

std::string Text(const IValue& value) {
  if (value.isNone()) return "None";
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

uint64_t Random::Next() {
  state_ += 0x9e3779b97f4a7c15;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

int64_t Random::Between(int64_t low, int64_t high) {
  if (high <= low) return low;
  return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
}

double Random::Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

int64_t TensorSpec::numel() const { return Product(sizes); }

std::string TensorSpec::ToString() const {
  static constexpr const char* kLayouts[] = {"",          " permuted", " channels_last", " sliced",
                                             " expanded", " offset",   " view of #",     " same as #"};
  if (!defined) return "None";
  return absl::StrCat(NameOf(dtype), "[", absl::StrJoin(sizes, ","), "]", kLayouts[static_cast<int>(layout)],
                      other >= 0 ? absl::StrCat(other) : "",
                      conj ? " conj" : "", neg ? " neg" : "", wrapped ? " number" : "");
}

std::string Call::ToString() const {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Value& value = arguments[i];
    const c10::Argument& argument = op.schema().arguments()[i];
    std::string text;
    if (value.kind == Value::Kind::kPlain) {
      if (value.plain.isNone()) continue;
      const ArgumentKind kind = KindOf(argument);
      text = kind == ArgumentKind::kDtype && value.plain.isInt() ? NameOf(static_cast<ScalarType>(value.plain.toInt())) : Text(value.plain);
    } else {
      std::vector<std::string> tensors;
      for (const TensorSpec& spec : value.tensors) tensors.push_back(spec.ToString());
      text = absl::StrJoin(tensors, "; ");
      if (value.kind != Value::Kind::kTensor) text = absl::StrCat("[", text, "]");
    }
    parts.push_back(absl::StrCat(argument.name(), "=", text));
  }
  return absl::StrCat(c10::toString(op.operator_name()), "(", absl::StrJoin(parts, ", "), ")",
                      damage.empty() ? "" : absl::StrCat("  # ", damage));
}

std::optional<Call> RandomCall(const c10::OperatorHandle& op, uint64_t seed, const CallOptions& options) {
  try {
    return Builder(op, seed, options).Build();
  } catch (const Discard&) {
    return std::nullopt;
  }
}

MadeCall Make(const Call& call) {
  // Tensors that autograd doesn't know as views: some operators refuse those.
  const at::AutoDispatchBelowADInplaceOrView no_views;
  Random random(call.seed);
  MadeCall made;
  const auto make = [&](const TensorSpec& spec) {
    at::Tensor tensor;
    if (spec.layout == TensorSpec::Layout::kSameAs) {
      tensor = made.tensors.at(spec.other);
    } else if (spec.layout == TensorSpec::Layout::kViewOf) {
      const at::Tensor& other = made.tensors.at(spec.other);
      tensor = other.dim() >= 2 && spec.detail % 2 == 0 ? other.transpose(0, 1) : other.alias();
    } else {
      tensor = MakeTensor(spec, random);
    }
    made.tensors.push_back(tensor);
    return tensor;
  };
  for (const Value& value : call.arguments) {
    switch (value.kind) {
      case Value::Kind::kPlain: made.arguments.push_back(value.plain); break;
      case Value::Kind::kTensor:
        if (value.tensors[0].defined) {
          made.arguments.emplace_back(make(value.tensors[0]));
        } else {
          made.arguments.emplace_back();
        }
        break;
      case Value::Kind::kTensors: {
        c10::List<at::Tensor> list;
        for (const TensorSpec& spec : value.tensors) list.push_back(make(spec));
        made.arguments.emplace_back(std::move(list));
        break;
      }
      case Value::Kind::kOptionalTensors: {
        c10::List<std::optional<at::Tensor>> list;
        for (const TensorSpec& spec : value.tensors) {
          if (spec.defined) {
            list.push_back(std::optional<at::Tensor>(make(spec)));
          } else {
            list.push_back(std::optional<at::Tensor>());
          }
        }
        made.arguments.emplace_back(std::move(list));
        break;
      }
    }
  }
  return made;
}

c10::IValue Run(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments) {
  c10::AutoGradMode no_grad(false);
  op.callBoxed(arguments);
  if (arguments.empty()) return IValue();
  if (arguments.size() == 1) return arguments[0];
  return c10::ivalue::Tuple::create(std::move(arguments));
}

}  // namespace ddpopt::cross_ref
