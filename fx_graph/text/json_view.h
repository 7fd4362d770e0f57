#ifndef DDPOPT_FX_GRAPH_TEXT_JSON_VIEW_H_
#define DDPOPT_FX_GRAPH_TEXT_JSON_VIEW_H_

// Reading JSON without exceptions, with the place in every error: "nodes[3].args[0]: expected a string, got 12".
//
//   DDPOPT_ASSIGN_OR_RETURN(const JsonValue json, ParseJson(text));
//   const JsonView root(json);
//   DDPOPT_ASSIGN_OR_RETURN(const JsonView nodes, root.Array("nodes"));
//   for (std::size_t i = 0; i < nodes.size(); ++i) { const JsonView node = nodes[i]; ... }
//
// A view points to its parent, from which an error's path is made, and to the JSON: both must outlive it. Thread-safe.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ddpopt::fx {

// A document. Objects keep the order in which they were written.
struct JsonValue {
  enum class Kind { kNull, kBool, kInt, kFloat, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string text = {};                   // of a string; of an integer that 64 bits can't hold (its kind is kFloat)
  std::vector<std::string> keys = {};      // of an object, as many as elements
  std::vector<JsonValue> elements = {};    // of an array or an object
};

// The deepest nesting that is read.
inline constexpr int kMaxJsonDepth = 500;

// Error: InvalidArgument with line, column and what was expected there; a repeated key of an object is one too.
absl::StatusOr<JsonValue> ParseJson(absl::string_view text);

class JsonView {
 public:
  using Kind = JsonValue::Kind;

  explicit JsonView(const JsonValue& root) : json_(&root) {}

  Kind kind() const { return json_->kind; }
  const JsonValue& value() const { return *json_; }
  bool is_object() const { return kind() == Kind::kObject; }
  bool is_array() const { return kind() == Kind::kArray; }
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_string() const { return kind() == Kind::kString; }
  // Of an array or an object, else 0.
  std::size_t size() const { return json_->elements.size(); }

  // Whether this object has the key, with any value.
  bool Has(absl::string_view key) const { return Find(key) != kNotFound; }
  // Error: this is no object, or lacks the key.
  absl::StatusOr<JsonView> At(absl::string_view key) const;
  // At, and that it is of that kind.
  absl::StatusOr<JsonView> Array(absl::string_view key) const;
  absl::StatusOr<JsonView> Object(absl::string_view key) const;
  absl::StatusOr<std::string> String(absl::string_view key) const;
  absl::StatusOr<int64_t> Int(absl::string_view key) const;
  // The value, `otherwise` if the key is missing; error if it is of another kind.
  absl::StatusOr<bool> BoolOr(absl::string_view key, bool otherwise) const;
  absl::StatusOr<int64_t> IntOr(absl::string_view key, int64_t otherwise) const;
  absl::StatusOr<std::string> StringOr(absl::string_view key, std::string otherwise) const;

  // Precondition: this is an array or an object, and index < size().
  JsonView operator[](std::size_t index) const { return JsonView(json_->elements[index], this, index); }
  // The key of the index-th entry of an object.
  const std::string& KeyAt(std::size_t index) const { return json_->keys[index]; }

  absl::StatusOr<std::string> AsString() const;
  absl::StatusOr<int64_t> AsInt() const;
  absl::StatusOr<bool> AsBool() const;
  absl::StatusOr<std::vector<int64_t>> AsInts() const;
  absl::Status ExpectArray() const;
  absl::Status ExpectObject() const;
  // That an object has no keys but these.
  absl::Status ExpectKeys(std::initializer_list<absl::string_view> allowed) const;

  // "nodes[3].args[0]"; "the document" for the root.
  std::string Path() const;
  // The value itself as JSON, cut to a few words.
  std::string Excerpt() const;
  // InvalidArgument "PATH: message".
  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(Path(), ": ", parts...));
  }
  // "PATH: expected WHAT, got EXCERPT".
  absl::Status Expected(absl::string_view what) const;

 private:
  static constexpr std::size_t kNotFound = ~std::size_t{0};

  JsonView(const JsonValue& json, const JsonView* parent, std::size_t index) : json_(&json), parent_(parent), index_(index) {}
  std::size_t Find(absl::string_view key) const;

  const JsonValue* json_;
  const JsonView* parent_ = nullptr;
  std::size_t index_ = 0;
};

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_TEXT_JSON_VIEW_H_
