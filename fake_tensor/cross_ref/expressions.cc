// What recipes say in numbers and lists of numbers: sizes, shapes, expressions, functions of other arguments.

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

int64_t Builder::Size() {
  if (has_empty_ && random_.Chance(30)) return 0;
  static constexpr int64_t kSizes[] = {1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 5};
  return random_.Of(kSizes);
}

int64_t Builder::Variable(const std::string& name) {
  const std::string key = Scoped(name);
  if (const auto found = variables_.find(key); found != variables_.end()) return found->second;
  const auto pending = pending_.find(name);
  const int64_t value = pending == pending_.end() ? Size() : Number(pending->second);
  variables_[key] = value;
  return value;
}

const std::vector<int64_t>& Builder::Shape(const std::string& name) {
  const std::string key = Scoped(name);
  if (const auto found = shapes_.find(key); found != shapes_.end()) return found->second;
  int64_t rank = 0;
  switch (name[0]) {
    case 'S':
      rank = random_.Of(std::initializer_list<int64_t>{0, 1, 1, 2, 2, 2, 3, 3, 4});
      break;
    case 'W':
      rank = random_.Of(std::initializer_list<int64_t>{1, 1, 2, 2, 2, 3, 3, 4});
      break;
    case 'V':
      rank = random_.Of(std::initializer_list<int64_t>{2, 2, 3, 3, 4});
      break;
    case 'P':
      rank = random_.Of(std::initializer_list<int64_t>{0, 0, 1, 1, 2});
      break;
    case 'Q':
      rank = random_.Of(std::initializer_list<int64_t>{1, 1, 2});
      break;
    default:
      TORCH_CHECK(false, "cross_ref recipes: no shape '*", name, "'");
  }
  Ints shape;
  for (int64_t i = 0; i < rank; ++i) shape.push_back(Size());
  return shapes_[key] = shape;
}

std::vector<int64_t> Builder::Broadcastable(Ints shape) {
  if (random_.Chance(50)) return shape;
  const int64_t drop = random_.Chance(50) ? random_.Between(0, static_cast<int64_t>(shape.size())) : 0;
  shape.erase(shape.begin(), shape.begin() + drop);
  for (int64_t& size : shape) {
    if (random_.Chance(25)) size = 1;
  }
  return shape;
}

int64_t Builder::Number(const std::string& text) {
  const std::size_t dots = text.find("..");
  if (dots != std::string::npos) {
    const int64_t low = Expression(text.substr(0, dots)), high = Expression(text.substr(dots + 2));
    return random_.Between(low, std::max(low, high));
  }
  return Expression(text);
}

int64_t Builder::Expression(const std::string& text) {
  std::size_t at = 0;
  const int64_t value = Sum(text, &at);
  TORCH_CHECK(at == text.size(), "cross_ref recipes: can't read '", text, "' of ", schema_.name());
  return value;
}

int64_t Builder::Sum(const std::string& text, std::size_t* at) {
  int64_t value = Term(text, at);
  while (*at < text.size() && (text[*at] == '+' || text[*at] == '-')) {
    const char sign = text[(*at)++];
    const int64_t next = Term(text, at);
    value = sign == '+' ? value + next : value - next;
  }
  return value;
}

int64_t Builder::Term(const std::string& text, std::size_t* at) {
  int64_t value = Factor(text, at);
  while (*at < text.size() && (text[*at] == '*' || text[*at] == '/')) {
    const char sign = text[(*at)++];
    const int64_t next = Factor(text, at);
    if (sign == '/' && next == 0) throw Discard();
    value = sign == '*' ? value * next : value / next;
  }
  return value;
}

int64_t Builder::Factor(const std::string& text, std::size_t* at) {
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

std::vector<int64_t> Builder::SizesNamed(const std::string& name) {
  if (name[0] == '*') return Shape(name.substr(1));
  const Value& value = Argument(IndexOf(name));
  if (value.tensors.empty()) throw Discard();
  return value.tensors[0].sizes;
}

int64_t Builder::DimNamed(const std::string& name, int64_t rank) {
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

int64_t Builder::SizeOf(const Ints& sizes, const std::string& dim_name) {
  const int64_t dim = DimNamed(dim_name, static_cast<int64_t>(sizes.size()));
  return sizes.empty() ? 1 : sizes[dim];
}

int64_t Builder::RandomDim(int64_t rank) {
  rank = std::max<int64_t>(rank, 1);
  const int64_t dim = random_.Between(0, rank - 1);
  return random_.Chance(35) ? dim - rank : dim;
}

int64_t Builder::NumberFunction(const std::string& name, const std::vector<std::string>& of) {
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

bool Builder::IsListFunction(const std::string& name) {
  static constexpr const char* kNames[] = {"dims",      "dims2", "posdims", "perm", "shape", "strides", "reshape", "expanded",
                                           "partition", "pads",  "repeats", "sub",  "with",  "drop",    "indexed"};
  for (const char* known : kNames) {
    if (name == known) return true;
  }
  return false;
}

std::vector<int64_t> Builder::ListFunction(const std::string& name, const std::vector<std::string>& of) {
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

std::vector<int64_t> Builder::IndexedShape(const Ints& sizes, const std::vector<TensorSpec>& indices) {
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

std::size_t Builder::IndexOf(const std::string& name) const {
  for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
    if (schema_.arguments()[i].name() == name) return i;
  }
  // A recipe for several overloads asks about an argument that this one hasn't.
  throw Discard();
}

}  // namespace ddpopt::cross_ref
