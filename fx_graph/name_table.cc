#include "fx_graph/name_table.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ddpopt::fx {
namespace {

// Longer numbers are part of the base; a uint64_t holds any of this many digits.
constexpr std::size_t kMaxDigits = 18;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string Identifier(absl::string_view wish) {
  std::string result;
  result.reserve(wish.size() + 1);
  bool illegal = false;  // a run of characters that identifiers can't have becomes one '_'
  for (const char c : wish) {
    const bool legal = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
    if (legal || !illegal) result += legal ? c : '_';
    illegal = !legal;
  }
  if (result.empty()) return "_unnamed";
  if (IsDigit(result[0])) result.insert(0, "_");
  return result;
}

// The length of the base of "add_1": 3; of a name without a number: all of it.
std::size_t BaseLength(absl::string_view name) {
  std::size_t digits = 0;
  while (digits < name.size() && IsDigit(name[name.size() - 1 - digits])) ++digits;
  if (digits == 0 || digits > kMaxDigits || name.size() < digits + 2 || name[name.size() - 1 - digits] != '_') return name.size();
  return name.size() - 1 - digits;
}

std::uint64_t ToNumber(absl::string_view digits) {
  std::uint64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

// "add_01" and "add_1" are two names with one number; the first is kept as text.
bool IsOdd(absl::string_view name, std::size_t base_length) { return name.size() > base_length + 2 && name[base_length + 1] == '0'; }

}  // namespace

bool NameTable::Base::Has(std::uint64_t number) const {
  if (number / 64 < dense_.size() && (dense_[number / 64] >> (number % 64) & 1) != 0) return true;
  return sparse_ != nullptr && sparse_->contains(number);
}

void NameTable::Base::Add(std::uint64_t number) {
  ++size_;
  if (number < 1024 || number < 4 * size_) {
    if (number / 64 >= dense_.size()) dense_.resize(number / 64 + 1);
    dense_[number / 64] |= std::uint64_t{1} << (number % 64);
  } else {
    if (sparse_ == nullptr) sparse_ = std::make_unique<absl::flat_hash_set<std::uint64_t>>();
    sparse_->insert(number);
  }
}

std::uint64_t NameTable::Base::NextFree(std::uint64_t from) {
  while (Has(first_free_)) ++first_free_;
  from = std::max(from, first_free_);
  while (true) {
    while (from / 64 < dense_.size() && from % 64 == 0 && dense_[from / 64] == ~std::uint64_t{0}) from += 64;
    if (!Has(from)) return from;
    ++from;
  }
}

NameTable::NameTable() = default;
NameTable::~NameTable() = default;

std::uint32_t NameTable::Index(const Base* base) { return base->index_; }
absl::string_view NameTable::Text(const Base* base) { return base->text_; }

absl::string_view NameTable::Store(absl::string_view text) {
  if (text.size() > left_) {
    const std::size_t size = std::max<std::size_t>(text.size(), std::size_t{256} << std::min<std::size_t>(chunks_.size(), 8));
    chunks_.push_back(std::make_unique<char[]>(size));
    free_ = chunks_.back().get();
    left_ = size;
  }
  char* stored = free_;
  std::memcpy(stored, text.data(), text.size());
  free_ += text.size();
  left_ -= text.size();
  return absl::string_view(stored, text.size());
}

NameTable::Base* NameTable::FindOrAddBase(absl::string_view text) {
  const auto found = by_text_.lazy_emplace(text, [&](const auto& make) {
    Base& base = bases_.emplace_back();
    base.text_ = Store(text);
    base.index_ = static_cast<std::uint32_t>(bases_.size() - 1);
    base.reserved_ = IsReservedName(text);
    make(base.text_, &base);
  });
  return found->second;
}

NameTable::Candidate NameTable::Parse(absl::string_view wish) {
  Candidate candidate;
  candidate.text = Identifier(wish);
  const std::size_t length = BaseLength(candidate.text);
  candidate.base = FindOrAddBase(absl::string_view(candidate.text).substr(0, length));
  candidate.numbered = length < candidate.text.size();
  if (candidate.numbered) candidate.number = ToNumber(absl::string_view(candidate.text).substr(length + 1));
  return candidate;
}

NameTable::Name NameTable::Create(absl::string_view wish) { return Create(Parse(wish)); }

NameTable::Name NameTable::Create(const Candidate& candidate) {
  Base* base = candidate.base;
  if (!candidate.numbered) {
    if (base->reserved_ || base->used_) return Number(base, base->count_ + 1);
    base->used_ = true;
    return {base->text_, base};
  }
  const bool odd = IsOdd(candidate.text, base->text_.size());
  if (odd ? !odd_.contains(candidate.text) : !base->Has(candidate.number)) {
    const absl::string_view text = Store(candidate.text);
    odd ? static_cast<void>(odd_.insert(text)) : base->Add(candidate.number);
    base->count_ = candidate.number;
    return {text, base};
  }
  // torch.fx looks the last number up under the whole name here, which is seldom a base itself, and so searches from 1.
  const auto whole = by_text_.find(candidate.text);
  return Number(base, (whole == by_text_.end() ? 0 : whole->second->count_) + 1);
}

NameTable::Name NameTable::CreateLike(Base* base, absl::string_view like) {
  if (like.size() == base->text_.size()) {
    if (base->reserved_ || base->used_) return Number(base, base->count_ + 1);
    base->used_ = true;
    return {base->text_, base};
  }
  const std::uint64_t number = ToNumber(like.substr(base->text_.size() + 1));
  if (IsOdd(like, base->text_.size()) || base->Has(number)) return Create(like);
  base->Add(number);
  base->count_ = number;
  return {Store(like), base};
}

NameTable::Name NameTable::Number(Base* base, std::uint64_t at_least) {
  const std::uint64_t number = base->NextFree(at_least);
  base->Add(number);
  base->count_ = number;
  char digits[24];
  const char* end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  const std::size_t length = base->text_.size() + 1 + static_cast<std::size_t>(end - digits);
  char buffer[64];
  std::string longer;
  char* text = buffer;
  if (length > sizeof(buffer)) {
    longer.resize(length);
    text = longer.data();
  }
  std::memcpy(text, base->text_.data(), base->text_.size());
  text[base->text_.size()] = '_';
  std::memcpy(text + base->text_.size() + 1, digits, static_cast<std::size_t>(end - digits));
  return {Store(absl::string_view(text, length)), base};
}

NameTable::Checker::Checker(const NameTable& table) : table_(table) {
  std::uint64_t bits = 0;
  offsets_.reserve(table.bases_.size());
  for (const Base& base : table.bases_) {
    offsets_.push_back(bits);
    bits += 1 + 64 * base.dense_.size();
  }
  seen_.resize(bits / 64 + 1);
}

NameTable::Checker::Verdict NameTable::Checker::Check(absl::string_view text, const Base* base) {
  if (base == nullptr || base->index_ >= table_.bases_.size() || &table_.bases_[base->index_] != base) return Verdict::kUnknown;
  const std::size_t length = base->text_.size();
  if (text.size() < length || std::memcmp(text.data(), base->text_.data(), length) != 0) return Verdict::kUnknown;
  if (BaseLength(text) != length) return Verdict::kUnknown;
  std::uint64_t bit = offsets_[base->index_];
  if (text.size() == length) {
    if (!base->used_) return Verdict::kUnknown;
  } else {
    const std::uint64_t number = ToNumber(text.substr(length + 1));
    const bool odd = IsOdd(text, length);
    if (odd ? !table_.odd_.contains(text) : !base->Has(number)) return Verdict::kUnknown;
    if (odd || number / 64 >= base->dense_.size()) return others_.insert(text).second ? Verdict::kGood : Verdict::kTwice;
    bit += 1 + number;
  }
  const std::uint64_t mask = std::uint64_t{1} << (bit % 64);
  if ((seen_[bit / 64] & mask) != 0) return Verdict::kTwice;
  seen_[bit / 64] |= mask;
  return Verdict::kGood;
}

// Python's keywords and builtins, and the names torch.fx keeps for its generated code: a node of that name gets a suffix.
bool IsReservedName(absl::string_view name) {
  static const auto* reserved = new absl::flat_hash_set<absl::string_view>{
      "__build_class__", "__debug__", "__doc__", "__import__", "__loader__", "__name__", "__package__", "__spec__", "abs", "aiter",
      "all", "and", "anext", "any", "ArithmeticError", "as", "ascii", "assert", "AssertionError", "async", "AttributeError", "await",
      "BaseException", "BaseExceptionGroup", "bin", "BlockingIOError", "bool", "break", "breakpoint", "BrokenPipeError", "BufferError",
      "bytearray", "bytes", "BytesWarning", "callable", "ChildProcessError", "chr", "class", "classmethod", "compile", "complex",
      "copyright", "ConnectionAbortedError", "ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "continue", "credits", "def", "del",
      "delattr", "DeprecationWarning", "device", "dict", "dir", "divmod", "elif", "Ellipsis", "else", "EncodingWarning", "enumerate",
      "EnvironmentError", "EOFError", "eval", "except", "Exception", "ExceptionGroup", "exec", "exit", "False", "FileExistsError",
      "FileNotFoundError", "filter", "finally", "float", "FloatingPointError", "for", "format", "from", "frozenset", "FutureWarning",
      "fx_pytree", "GeneratorExit", "getattr", "global", "globals", "hasattr", "hash", "help", "hex", "id", "if", "import",
      "ImportError", "ImportWarning", "in", "IndentationError", "IndexError", "inf", "input", "int", "InterruptedError", "IOError",
      "is", "IsADirectoryError", "isinstance", "issubclass", "iter", "KeyboardInterrupt", "KeyError", "lambda", "len", "license", "list",
      "locals", "LookupError", "map", "max", "MemoryError", "memoryview", "min", "ModuleNotFoundError", "NameError", "nan", "next",
      "None", "NoneType", "nonlocal", "not", "NotADirectoryError", "NotImplemented", "NotImplementedError", "object", "oct", "open",
      "or", "ord", "OSError", "OverflowError", "pass", "PendingDeprecationWarning", "PermissionError", "pow", "print",
      "ProcessLookupError", "property", "pytree", "quit", "raise", "range", "RecursionError", "ReferenceError", "repr", "ResourceWarning",
      "return", "reversed", "round", "RuntimeError", "RuntimeWarning", "set", "setattr", "slice", "sorted", "staticmethod",
      "StopAsyncIteration", "StopIteration", "str", "sum", "super", "SyntaxError", "SyntaxWarning", "SystemError", "SystemExit",
      "TabError", "TimeoutError", "torch", "True", "try", "tuple", "type", "TypeError", "UnboundLocalError", "UnicodeDecodeError",
      "UnicodeEncodeError", "UnicodeError", "UnicodeTranslateError", "UnicodeWarning", "UserWarning", "ValueError", "vars", "Warning",
      "while", "with", "yield", "ZeroDivisionError", "zip"};
  return reserved->contains(name);
}

}  // namespace ddpopt::fx
