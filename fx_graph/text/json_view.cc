#include "fx_graph/text/json_view.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace ddpopt::fx {
namespace {

// "line 3, column 14" of the byte (counted from 0).
std::string Position(absl::string_view text, std::size_t byte) {
  byte = std::min(byte, text.size());
  const absl::string_view before = text.substr(0, byte);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t newline = before.rfind('\n');
  return absl::StrCat("line ", line, ", column ", byte - (newline == absl::string_view::npos ? 0 : newline + 1) + 1);
}

// Builds the document, and refuses what nlohmann's own builder would take: deep nesting, repeated keys.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(absl::string_view text) : text_(text) {}

  absl::Status status() const { return status_; }
  JsonValue& document() { return document_; }

  bool null() override { return Put(JsonValue()); }
  bool boolean(bool value) override { return Put({.kind = Kind::kBool, .boolean = value}); }
  bool number_integer(number_integer_t value) override { return Put({.kind = Kind::kInt, .integer = value}); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<uint64_t>(INT64_MAX)) return number_integer(static_cast<int64_t>(value));
    return Put({.kind = Kind::kFloat, .number = static_cast<double>(value), .text = absl::StrCat(value)});
  }
  bool number_float(number_float_t value, const string_t& source) override {
    // An integer too large for 64 bits comes here as well.
    const bool is_integer = source.find_first_of(".eE") == std::string::npos;
    return Put({.kind = Kind::kFloat, .number = value, .text = is_integer ? source : std::string()});
  }
  bool string(string_t& value) override { return Put({.kind = Kind::kString, .text = std::move(value)}); }
  bool binary(binary_t&) override { return false; }  // JSON text has none
  bool start_object(std::size_t) override { return Open(Kind::kObject); }
  bool start_array(std::size_t) override { return Open(Kind::kArray); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& value) override {
    Level& level = levels_.back();
    std::vector<std::string>& keys = level.container->keys;
    // Small objects are searched as they are, large ones get an index.
    constexpr std::size_t kSmall = 16;
    bool repeated = false;
    if (keys.size() < kSmall) {
      repeated = std::find(keys.begin(), keys.end(), value) != keys.end();
    } else {
      if (level.index.empty()) level.index.insert(keys.begin(), keys.end());
      repeated = !level.index.insert(value).second;
    }
    if (repeated) {
      status_ = absl::InvalidArgumentError(absl::StrCat(Where(), ": the key \"", value, "\" is repeated"));
      return false;
    }
    keys.push_back(std::move(value));
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing value - ...": the last part
    absl::string_view message = error.what();
    const std::size_t colon = message.find(": ");
    if (colon != absl::string_view::npos) message = message.substr(colon + 2);
    // Bytes of a damaged file that are no text must not get into our message.
    std::string clean(message);
    for (char& c : clean) {
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
    }
    status_ = absl::InvalidArgumentError(absl::StrCat(Position(text_, byte == 0 ? 0 : byte - 1), ": ", clean));
    return false;
  }

 private:
  using Kind = JsonValue::Kind;
  struct Level {
    JsonValue* container;
    std::unordered_set<std::string> index;
  };

  std::string Where() const {
    std::string where;
    for (std::size_t i = 0; i < levels_.size(); ++i) {
      const JsonValue& container = *levels_[i].container;
      if (i + 1 == levels_.size()) break;
      if (container.kind == Kind::kArray) {
        absl::StrAppend(&where, "[", container.elements.size() - 1, "]");
      } else {
        absl::StrAppend(&where, where.empty() ? "" : ".", container.keys.back());
      }
    }
    return where.empty() ? "the document" : where;
  }

  JsonValue* Add(JsonValue&& value) {
    if (levels_.empty()) {
      document_ = std::move(value);
      return &document_;
    }
    std::vector<JsonValue>& elements = levels_.back().container->elements;
    elements.push_back(std::move(value));
    return &elements.back();
  }
  bool Put(JsonValue&& value) {
    Add(std::move(value));
    return true;
  }
  bool Open(Kind kind) {
    if (levels_.size() >= kMaxJsonDepth) {
      status_ = absl::InvalidArgumentError(absl::StrCat("the document is nested more than ", kMaxJsonDepth, " levels deep"));
      return false;
    }
    JsonValue container;
    container.kind = kind;
    levels_.push_back(Level{Add(std::move(container)), {}});
    return true;
  }
  bool Close() {
    levels_.pop_back();
    return true;
  }

  absl::string_view text_;
  JsonValue document_;
  std::vector<Level> levels_;
  absl::Status status_;
};

void AppendExcerpt(const JsonValue& value, std::size_t limit, std::string* out) {
  if (out->size() > limit) return;
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      out->append("null");
      return;
    case JsonValue::Kind::kBool:
      out->append(value.boolean ? "true" : "false");
      return;
    case JsonValue::Kind::kInt:
      absl::StrAppend(out, value.integer);
      return;
    case JsonValue::Kind::kFloat:
      absl::StrAppend(out, value.text.empty() ? absl::StrCat(value.number) : value.text);
      return;
    case JsonValue::Kind::kString:
      absl::StrAppend(out, "\"", absl::CHexEscape(absl::string_view(value.text).substr(0, limit)), "\"");
      return;
    case JsonValue::Kind::kArray:
    case JsonValue::Kind::kObject:
      break;
  }
  const bool is_array = value.kind == JsonValue::Kind::kArray;
  out->push_back(is_array ? '[' : '{');
  for (std::size_t i = 0; i < value.elements.size() && out->size() <= limit; ++i) {
    if (i != 0) out->append(", ");
    if (!is_array) absl::StrAppend(out, "\"", absl::CHexEscape(value.keys[i]), "\": ");
    AppendExcerpt(value.elements[i], limit, out);
  }
  out->push_back(is_array ? ']' : '}');
}

}  // namespace

absl::StatusOr<JsonValue> ParseJson(absl::string_view text) {
  Builder builder(text);
  // The library reports damage through the builder; what it may still throw is lack of memory, or a bug.
  DDPOPT_ASSIGN_OR_RETURN(const bool parsed,
                          CatchAsStatus("parsing JSON", [&] { return nlohmann::json::sax_parse(text.begin(), text.end(), &builder); }));
  if (!builder.status().ok()) return builder.status();
  if (!parsed) return absl::InvalidArgumentError("this is no JSON");
  return std::move(builder.document());
}

std::size_t JsonView::Find(absl::string_view key) const {
  const auto found = std::find(json_->keys.begin(), json_->keys.end(), key);
  return found == json_->keys.end() ? kNotFound : static_cast<std::size_t>(found - json_->keys.begin());
}

absl::StatusOr<JsonView> JsonView::At(absl::string_view key) const {
  DDPOPT_RETURN_IF_ERROR(ExpectObject());
  const std::size_t index = Find(key);
  if (index == kNotFound) return Error("lacks \"", key, "\"");
  return (*this)[index];
}

absl::StatusOr<JsonView> JsonView::Array(absl::string_view key) const {
  DDPOPT_ASSIGN_OR_RETURN(const JsonView value, At(key));
  DDPOPT_RETURN_IF_ERROR(value.ExpectArray());
  return value;
}

absl::StatusOr<JsonView> JsonView::Object(absl::string_view key) const {
  DDPOPT_ASSIGN_OR_RETURN(const JsonView value, At(key));
  DDPOPT_RETURN_IF_ERROR(value.ExpectObject());
  return value;
}

absl::StatusOr<std::string> JsonView::String(absl::string_view key) const {
  DDPOPT_ASSIGN_OR_RETURN(const JsonView value, At(key));
  return value.AsString();
}

absl::StatusOr<int64_t> JsonView::Int(absl::string_view key) const {
  DDPOPT_ASSIGN_OR_RETURN(const JsonView value, At(key));
  return value.AsInt();
}

absl::StatusOr<bool> JsonView::BoolOr(absl::string_view key, bool otherwise) const {
  const std::size_t index = Find(key);
  return index == kNotFound ? otherwise : (*this)[index].AsBool();
}

absl::StatusOr<int64_t> JsonView::IntOr(absl::string_view key, int64_t otherwise) const {
  const std::size_t index = Find(key);
  return index == kNotFound ? otherwise : (*this)[index].AsInt();
}

absl::StatusOr<std::string> JsonView::StringOr(absl::string_view key, std::string otherwise) const {
  const std::size_t index = Find(key);
  if (index == kNotFound) return otherwise;
  return (*this)[index].AsString();
}

absl::StatusOr<std::string> JsonView::AsString() const {
  if (!is_string()) return Expected("a string");
  return json_->text;
}

absl::StatusOr<int64_t> JsonView::AsInt() const {
  if (kind() != Kind::kInt) return Expected(json_->text.empty() || kind() != Kind::kFloat ? "an integer" : "an integer of 64 bits");
  return json_->integer;
}

absl::StatusOr<bool> JsonView::AsBool() const {
  if (kind() != Kind::kBool) return Expected("true or false");
  return json_->boolean;
}

absl::StatusOr<std::vector<int64_t>> JsonView::AsInts() const {
  DDPOPT_RETURN_IF_ERROR(ExpectArray());
  std::vector<int64_t> values;
  values.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(const int64_t value, (*this)[i].AsInt());
    values.push_back(value);
  }
  return values;
}

absl::Status JsonView::ExpectArray() const { return is_array() ? absl::OkStatus() : Expected("an array"); }

absl::Status JsonView::ExpectObject() const { return is_object() ? absl::OkStatus() : Expected("an object"); }

absl::Status JsonView::ExpectKeys(std::initializer_list<absl::string_view> allowed) const {
  DDPOPT_RETURN_IF_ERROR(ExpectObject());
  for (const std::string& key : json_->keys) {
    if (std::find(allowed.begin(), allowed.end(), key) == allowed.end()) return Error("has an unknown field \"", key, "\"");
  }
  return absl::OkStatus();
}

std::string JsonView::Path() const {
  if (parent_ == nullptr) return "the document";
  const std::string prefix = parent_->parent_ == nullptr ? "" : parent_->Path();
  if (parent_->is_array()) return absl::StrCat(prefix, "[", index_, "]");
  return absl::StrCat(prefix, prefix.empty() ? "" : ".", parent_->KeyAt(index_));
}

std::string JsonView::Excerpt() const {
  constexpr std::size_t kLimit = 60;
  std::string excerpt;
  AppendExcerpt(*json_, kLimit, &excerpt);
  return excerpt.size() <= kLimit ? excerpt : absl::StrCat(excerpt.substr(0, kLimit - 3), "...");
}

absl::Status JsonView::Expected(absl::string_view what) const { return Error("expected ", what, ", got ", Excerpt()); }

}  // namespace ddpopt::fx
