#include "fx_graph/words.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <system_error>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "c10/core/Device.h"
#include "c10/core/DeviceType.h"
#include "fx_graph/constants.h"

namespace ddpopt::fx {
namespace {

std::size_t SkipDigits(absl::string_view text, std::size_t at) {
  while (at < text.size() && absl::ascii_isdigit(text[at])) ++at;
  return at;
}

// The number at the start of `text`, as Python's repr() writes ints and floats; its length, 0 if there is none. *is_float tells a float.
std::size_t NumberLength(absl::string_view text, bool* is_float) {
  *is_float = false;
  std::size_t at = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  for (const absl::string_view name : {"inf", "nan"}) {
    if (absl::StartsWith(text.substr(at), name)) {
      *is_float = true;
      return at + name.size();
    }
  }
  const std::size_t digits = at;
  at = SkipDigits(text, at);
  if (at == digits) return 0;
  if (at < text.size() && text[at] == '.') {
    *is_float = true;
    at = SkipDigits(text, at + 1);
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    std::size_t exponent = at + 1;
    if (exponent < text.size() && (text[exponent] == '-' || text[exponent] == '+')) ++exponent;
    const std::size_t end = SkipDigits(text, exponent);
    if (end > exponent) {
      *is_float = true;
      at = end;
    }
  }
  return at;
}

double ToDouble(absl::string_view text) {
  absl::ConsumePrefix(&text, "+");
  const bool negative = absl::StartsWith(text, "-");
  const absl::string_view magnitude = negative ? text.substr(1) : text;
  double value = 0;
  if (magnitude == "inf") {
    value = std::numeric_limits<double>::infinity();
  } else if (magnitude == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    const auto result = std::from_chars(magnitude.data(), magnitude.data() + magnitude.size(), value);
    // Out of range: Python reads such a literal as 0.0 or inf; the exponent's sign tells which.
    if (result.ec == std::errc::result_out_of_range) {
      value = magnitude.find("e-") != absl::string_view::npos ? 0.0 : std::numeric_limits<double>::infinity();
    }
  }
  return negative ? -value : value;
}

bool ParseComplex(absl::string_view word, c10::complex<double>* value) {
  bool is_float;
  if (absl::ConsumePrefix(&word, "(")) {
    if (!absl::ConsumeSuffix(&word, "j)")) return false;
    const std::size_t real = NumberLength(word, &is_float);
    if (real == 0 || real == word.size() || (word[real] != '+' && word[real] != '-')) return false;
    const absl::string_view imaginary = word.substr(real);
    if (NumberLength(imaginary, &is_float) != imaginary.size()) return false;
    *value = c10::complex<double>(ToDouble(word.substr(0, real)), ToDouble(imaginary));
    return true;
  }
  if (!absl::ConsumeSuffix(&word, "j") || word.empty() || NumberLength(word, &is_float) != word.size()) return false;
  *value = c10::complex<double>(0, ToDouble(word));
  return true;
}

const absl::flat_hash_map<std::string, c10::DeviceType>& DeviceTypes() {
  static const auto* types = [] {
    auto* result = new absl::flat_hash_map<std::string, c10::DeviceType>();
    for (int i = 0; i < static_cast<int>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES); ++i) {
      const auto type = static_cast<c10::DeviceType>(i);
      if (c10::isValidDeviceType(type)) result->emplace(c10::DeviceTypeName(type, /*lower_case=*/true), type);
    }
    return result;
  }();
  return *types;
}

bool ParseDevice(absl::string_view word, c10::Device* device) {
  const std::size_t colon = word.find(':');
  const auto type = DeviceTypes().find(word.substr(0, colon));
  if (type == DeviceTypes().end()) return false;
  int index = -1;
  if (colon != absl::string_view::npos) {
    const absl::string_view digits = word.substr(colon + 1);
    if (digits.empty() || digits.size() > 3 || SkipDigits(digits, 0) != digits.size() || !absl::SimpleAtoi(digits, &index) || index > 127 ||
        (digits.size() > 1 && digits[0] == '0')) {
      return false;
    }
    if (index != 0 && type->second == c10::DeviceType::CPU) return false;  // LibTorch has one CPU
  }
  *device = c10::Device(type->second, static_cast<c10::DeviceIndex>(index));
  return true;
}

}  // namespace

WordKind ClassifyWord(absl::string_view word, c10::IValue* value) {
  *value = c10::IValue();
  if (word.empty()) return WordKind::kString;
  const char first = word[0];
  if (absl::ascii_isdigit(first) || first == '-' || first == '+' || first == 'i' || first == 'n' || first == '(') {
    bool is_float;
    const std::size_t length = NumberLength(word, &is_float);
    if (length == word.size()) {
      if (is_float) {
        *value = c10::IValue(ToDouble(word));
        return WordKind::kFloat;
      }
      int64_t integer;
      if (!absl::SimpleAtoi(word, &integer)) return WordKind::kBigInt;
      *value = c10::IValue(integer);
      return WordKind::kInt;
    }
    c10::complex<double> number;
    if (ParseComplex(word, &number)) {
      *value = c10::IValue(number);
      return WordKind::kComplex;
    }
    if (first != 'i' && first != 'n') return WordKind::kString;
  }
  switch (first) {
    case 'N':
      if (word == "None") return WordKind::kNone;
      return WordKind::kString;
    case 'T':
    case 'F':
      if (word != "True" && word != "False") return WordKind::kString;
      *value = c10::IValue(first == 'T');
      return WordKind::kBool;
    case 'E':
      if (word != "Ellipsis") return WordKind::kString;
      *value = EllipsisConstant();
      return WordKind::kEllipsis;
    case '<':
      if (word.size() < 2 || word.back() != '>') return WordKind::kString;
      *value = OpaqueConstant(std::string(word));
      return WordKind::kOpaque;
    default:
      break;
  }
  if (absl::StartsWith(word, "torch.")) {
    c10::ScalarType dtype;
    c10::Layout layout;
    c10::MemoryFormat format;
    if (DtypeFromName(word, &dtype)) {
      *value = DtypeConstant(dtype);
      return WordKind::kDtype;
    }
    if (LayoutFromName(word, &layout)) {
      *value = LayoutConstant(layout);
      return WordKind::kLayout;
    }
    if (MemoryFormatFromName(word, &format)) {
      *value = MemoryFormatConstant(format);
      return WordKind::kMemoryFormat;
    }
    return WordKind::kString;
  }
  c10::Device device(c10::DeviceType::CPU);
  if (ParseDevice(word, &device)) {
    *value = c10::IValue(device);
    return WordKind::kDevice;
  }
  return WordKind::kString;
}

bool IsPlainString(absl::string_view text) {
  if (text.empty() || (!absl::ascii_isalpha(text[0]) && text[0] != '_')) return false;
  if (!std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.'; })) return false;
  c10::IValue value;
  return ClassifyWord(text, &value) == WordKind::kString;
}

}  // namespace ddpopt::fx
