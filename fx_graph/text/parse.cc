#include "fx_graph/text/parse.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "fx_graph/constants.h"
#include "fx_graph/format.h"
#include "fx_graph/words.h"

namespace ddpopt::fx {
namespace {

constexpr int kMaxDepth = 200;  // of nested values

bool IsNameChar(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// UTF-8 of a code point; Python's lone surrogates \udc80..\udcff are bytes that were no text.
void AppendCodePoint(uint32_t c, std::string* out) {
  if (c >= 0xdc80 && c <= 0xdcff) {
    out->push_back(static_cast<char>(c - 0xdc00));
  } else if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xc0 | (c >> 6)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xe0 | (c >> 12)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3f)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else {
    out->push_back(static_cast<char>(0xf0 | (c >> 18)));
    out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3f)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3f)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  }
}

class Parser {
 public:
  Parser(absl::string_view text, const ParseOptions& options) : text_(text), options_(options), graph_(std::make_unique<Graph>()) {
    by_name_.reserve(text.size() / 100);  // about a node a line
  }

  absl::StatusOr<std::unique_ptr<Graph>> Parse() {
    SkipBlankLines();
    if (!Consume("graph()")) return Expected("\"graph():\"");
    std::string output_type;
    if (Consume(" -> ")) {
      const std::size_t colon = text_.substr(0, LineEnd()).rfind(':');
      if (colon == absl::string_view::npos || colon <= at_) return Expected("a type and \":\"");
      output_type = std::string(text_.substr(at_, colon - at_));
      at_ = colon;
    }
    if (!Consume(":")) return Expected("\":\"");
    DDPOPT_RETURN_IF_ERROR(EndLine());
    Node* output = nullptr;
    for (SkipBlankLines(); at_ < text_.size(); SkipBlankLines()) {
      if (output != nullptr) return Expected("the end of the graph after its return");
      if (ConsumeWord("return")) {
        DDPOPT_ASSIGN_OR_RETURN(output, ParseReturn());
      } else {
        DDPOPT_RETURN_IF_ERROR(ParseNode());
      }
      DDPOPT_RETURN_IF_ERROR(EndLine());
    }
    if (!output_type.empty()) {
      if (output == nullptr) return Expected("a return, since the graph has a type");
      output->meta().type_expr = std::move(output_type);
    }
    for (const Claim& claim : claims_) {
      if (claim.node->users().size() == claim.num_users) continue;
      at_ = claim.at;
      return Fail("%", claim.node->name(), " has ", claim.node->users().size(), " users in this text, not ", claim.num_users);
    }
    return std::move(graph_);
  }

 private:
  // --- Positions and errors ---

  std::size_t LineEnd() const {
    const std::size_t end = text_.find('\n', at_);
    return end == absl::string_view::npos ? text_.size() : end;
  }

  template <typename... Parts>
  absl::Status Fail(const Parts&... parts) const {
    const absl::string_view before = text_.substr(0, at_);
    const std::size_t newline = before.rfind('\n');
    return absl::InvalidArgumentError(absl::StrCat("line ", std::count(before.begin(), before.end(), '\n') + 1, ", column ",
                                                   at_ - (newline == absl::string_view::npos ? 0 : newline + 1) + 1, ": ", parts...));
  }
  absl::Status Expected(absl::string_view what) const {
    const absl::string_view rest = text_.substr(at_, LineEnd() - at_);
    if (at_ >= text_.size()) return Fail("expected ", what, ", got the end of the text");
    if (rest.empty()) return Fail("expected ", what, ", got the end of the line");
    return Fail("expected ", what, ", got \"", absl::CHexEscape(rest.substr(0, 40)), rest.size() > 40 ? "..." : "", "\"");
  }

  // --- Characters ---

  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Consume(absl::string_view literal) {
    if (!absl::StartsWith(text_.substr(at_), literal)) return false;
    at_ += literal.size();
    return true;
  }
  // The literal, not followed by more of a name.
  bool ConsumeWord(absl::string_view literal) {
    if (!absl::StartsWith(text_.substr(at_), literal)) return false;
    const std::size_t end = at_ + literal.size();
    if (end < text_.size() && IsNameChar(text_[end])) return false;
    at_ = end;
    return true;
  }
  void SkipSpaces() {
    while (Peek() == ' ' || Peek() == '\t') ++at_;
  }
  void SkipBlankLines() {
    while (true) {
      while (at_ < text_.size() && absl::ascii_isspace(text_[at_])) ++at_;
      if (Peek() != '#') return;
      at_ = LineEnd();
    }
  }
  absl::Status EndLine() {
    SkipSpaces();
    if (Peek() == '#') at_ = LineEnd();
    if (Peek() == '\r') ++at_;
    if (at_ < text_.size() && text_[at_] != '\n') return Expected("the end of the line");
    return absl::OkStatus();
  }
  absl::string_view Name() {
    const std::size_t start = at_;
    while (at_ < text_.size() && IsNameChar(text_[at_])) ++at_;
    return text_.substr(start, at_ - start);
  }

  // --- Lines ---

  absl::Status ParseNode() {
    const std::size_t start = at_;
    if (!Consume("%")) return Expected("a node (\"%name\") or \"return\"");
    const absl::string_view name = Name();
    if (name.empty()) return Expected("a node's name");
    const std::size_t line_end = LineEnd();
    std::string type_expr;
    std::size_t num_users = 0, claim_at = 0;
    SkipSpaces();
    const std::size_t equals = text_.substr(0, line_end).find("= ", at_);
    if (equals == absl::string_view::npos) return Expected("\" : \" or \" = \" after the name");
    if (Consume(":")) {
      SkipSpaces();
      absl::string_view claim = "[num_users=";
      const std::size_t users = text_.substr(0, line_end).find(claim, at_);
      const std::size_t type_end = std::min(users, equals);
      type_expr = std::string(absl::StripTrailingAsciiWhitespace(text_.substr(at_, type_end - std::min(at_, type_end))));
      at_ = std::max(at_, type_end);
      if (Consume(claim)) {
        claim_at = at_;
        while (absl::ascii_isdigit(Peek())) ++at_;
        if (!absl::SimpleAtoi(text_.substr(claim_at, at_ - claim_at), &num_users)) {
          at_ = claim_at;
          return Expected("the number of users");
        }
        if (!Consume("]")) return Expected("\"]\"");
      }
      SkipSpaces();
    }
    if (!Consume("= ")) return Expected("\" = \"");
    SkipSpaces();

    const std::size_t op_at = at_;
    const absl::string_view op_name = Name();
    Op op;
    if (!OpFromName(op_name, &op)) {
      at_ = op_at;
      return Expected("placeholder, get_attr, call_function, call_method or call_module");
    }
    if (!Consume("[target=")) return Expected("\"[target=\"");
    const bool is_call = op != Op::kPlaceholder && op != Op::kGetAttr;
    DDPOPT_ASSIGN_OR_RETURN(const absl::string_view target_text, TargetText(op, line_end));
    const Target target = MakeTarget(op, target_text);

    std::vector<Argument> args;
    Kwargs kwargs;
    if (is_call) {
      DDPOPT_RETURN_IF_ERROR(ParseCall(target, &args, &kwargs));
    } else if (op == Op::kPlaceholder && Consume("(default=")) {
      DDPOPT_ASSIGN_OR_RETURN(Argument value, ParseValue(FormatStyle::kRepr, {.bare_strings = true}, 0));
      args.push_back(std::move(value));
      if (!Consume(")")) return Expected("\")\"");
    }

    Node* node = graph_->CreateNode(op, target, std::move(args), std::move(kwargs), name);
    if (absl::string_view(node->name()) != name) {
      at_ = start;
      if (by_name_.contains(name)) return Fail("the name %", name, " is taken by an earlier node");
      return Fail("a node can't be named %", name, ": the name is reserved; %", node->name(), " would do");
    }
    by_name_.emplace(name, node);
    recent_[num_recent_++ % recent_.size()] = node;
    if (!type_expr.empty()) node->meta().type_expr = std::move(type_expr);
    if (claim_at != 0 && options_.check_num_users) claims_.push_back({node, num_users, claim_at});
    return absl::OkStatus();
  }

  // Null if there is none. Most arguments are nodes of a few lines before: in a large graph they spare a walk to far memory.
  Node* FindNode(absl::string_view name) const {
    for (std::size_t i = 1; i <= recent_.size() && i <= num_recent_; ++i) {
      Node* node = recent_[(num_recent_ - i) % recent_.size()];
      if (absl::string_view(node->name()) == name) return node;
    }
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  absl::StatusOr<Node*> ParseReturn() {
    SkipSpaces();
    DDPOPT_ASSIGN_OR_RETURN(Argument result, ParseValue(FormatStyle::kRepr, {}, 0));
    return graph_->CreateNode(Op::kOutput, PathTarget{"output"}, {std::move(result)}, {}, "output");
  }

  static bool OpFromName(absl::string_view name, Op* op) {
    for (const Op candidate : {Op::kCallFunction, Op::kPlaceholder, Op::kGetAttr, Op::kCallMethod, Op::kCallModule}) {
      if (name == OpName(candidate)) {
        *op = candidate;
        return true;
      }
    }
    return false;
  }

  // A target may hold any text: what follows it tells its end.
  absl::StatusOr<absl::string_view> TargetText(Op op, std::size_t line_end) {
    const absl::string_view line = text_.substr(0, line_end);
    std::size_t end = absl::string_view::npos;
    if (op != Op::kPlaceholder && op != Op::kGetAttr) {
      end = line.find("](args = ", at_);
    } else {
      for (end = line.find(']', at_); end != absl::string_view::npos; end = line.find(']', end + 1)) {
        absl::string_view rest = line.substr(end + 1);
        if (op == Op::kPlaceholder && absl::StartsWith(rest, "(default=")) break;
        rest = absl::StripLeadingAsciiWhitespace(rest);
        if (rest.empty() || rest[0] == '#') break;
      }
    }
    if (end == absl::string_view::npos) {
      at_ = line_end;
      return Expected(op == Op::kPlaceholder || op == Op::kGetAttr ? "\"]\" after the target" : "\"](args = \" after the target");
    }
    const absl::string_view target = line.substr(at_, end - at_);
    if (target.empty()) return Expected("a target");
    at_ = end + 1;
    return target;
  }

  const Target& MakeTarget(Op op, absl::string_view text) {
    if (op == Op::kCallFunction) {
      const auto cached = functions_.find(text);
      if (cached != functions_.end()) return cached->second;
      return functions_.emplace(text, FunctionTargetFromText(text)).first->second;
    }
    if (op == Op::kCallMethod) {
      target_ = MethodTarget{std::string(text)};
    } else {
      target_ = PathTarget{std::string(text)};
    }
    return target_;
  }

  // --- Arguments ---

  // What the place of a value says of it.
  struct Place {
    const c10::Argument* declared = nullptr;  // by the operator's schema
    bool is_key = false;                      // of a dict: ends at ": "
    bool bare_strings = false;                // in repr style: a word that is no value and no node is a string
  };

  absl::Status ParseCall(const Target& target, std::vector<Argument>* args, Kwargs* kwargs) {
    const auto* op = std::get_if<OperatorTarget>(&target);
    const c10::FunctionSchema* schema = op != nullptr && op->op.hasSchema() ? &op->op.schema() : nullptr;
    if (!Consume("(args = (")) return Expected("\"(args = (\"");
    if (!Consume(")")) {
      while (true) {
        Place place;
        if (schema != nullptr) place.declared = DeclaredArgument(*schema, args->size());
        DDPOPT_ASSIGN_OR_RETURN(Argument argument, ParseValue(FormatStyle::kFormatNode, place, 0));
        args->push_back(std::move(argument));
        if (args->size() > 1 && Consume(")")) break;
        if (!Consume(",")) return Expected(args->size() > 1 ? "\",\" or \")\"" : "\",\" (a tuple of one is \"(x,)\")");
        if (Peek() == ')') {
          if (args->size() > 1) return Expected("another argument");
          ++at_;
          break;
        }
        SkipSpaces();
      }
    }
    if (Consume(", kwargs = {")) {
      while (!Consume("}")) {
        if (!kwargs->empty()) {
          if (!Consume(",")) return Expected("\",\" or \"}\"");
          SkipSpaces();
        }
        const std::size_t start = at_;
        while (at_ < text_.size() && text_[at_] != ':' && text_[at_] != '\n') ++at_;
        const absl::string_view key = text_.substr(start, at_ - start);
        if (Peek() != ':' || key.empty()) {
          at_ = start;
          return Expected("an argument's name and \":\"");
        }
        for (const auto& entry : *kwargs) {
          if (absl::string_view(entry.first) == key) {
            at_ = start;
            return Fail("the argument ", key, " is repeated");
          }
        }
        ++at_;
        SkipSpaces();
        Place place;
        if (schema != nullptr) place.declared = DeclaredArgument(*schema, key);
        DDPOPT_ASSIGN_OR_RETURN(Argument argument, ParseValue(FormatStyle::kFormatNode, place, 0));
        kwargs->emplace_back(std::string(key), std::move(argument));
      }
    }
    if (!Consume(")")) return Expected("\")\"");
    return absl::OkStatus();
  }

  absl::StatusOr<Argument> ParseValue(FormatStyle style, const Place& place, int depth) {
    if (depth > kMaxDepth) return Fail("values are nested more than ", kMaxDepth, " levels deep");
    const std::size_t start = at_;
    switch (Peek()) {
      case '%': {
        if (style != FormatStyle::kFormatNode) return Expected("a value (nodes have no \"%\" here)");
        ++at_;
        const absl::string_view name = Name();
        if (Node* node = FindNode(name)) return Argument(node);
        at_ = start;
        return Expected(absl::StrCat("an earlier node (there is none named %", name, ")"));
      }
      case '[': {
        ++at_;
        DDPOPT_ASSIGN_OR_RETURN(std::vector<Argument> elements, ParseElements(']', style, place, depth));
        return Argument::List(std::move(elements));
      }
      case '(': {
        c10::IValue number;
        if (ConsumeComplex(&number)) return Argument(std::move(number));
        ++at_;
        DDPOPT_ASSIGN_OR_RETURN(std::vector<Argument> elements, ParseElements(')', style, place, depth));
        return Argument::Tuple(std::move(elements));
      }
      case '{':
        return ParseDict(style, place, depth);
      case '\'':
      case '"': {
        DDPOPT_ASSIGN_OR_RETURN(std::string text, ParseQuoted());
        return Argument(c10::IValue(std::move(text)));
      }
      case 's':
        if (Consume("slice(")) return ParseSlice(place, depth);
        break;
      case 'd':
        if (Consume("device(")) return ParseDevice();
        break;
      case 'o':
        if (Consume("opaque(")) return ParseOpaque();
        break;
      case 't':
        if (absl::StartsWith(text_.substr(at_), "tensor(")) {
          return Fail("a tensor can't be read from text: its data isn't there; make it an attribute");
        }
        break;
      default:
        break;
    }
    return ParseWord(style, place);
  }

  // Up to `close`, which is taken. In format style an empty element is an empty string.
  absl::StatusOr<std::vector<Argument>> ParseElements(char close, FormatStyle style, Place place, int depth) {
    place.is_key = false;
    std::vector<Argument> elements;
    if (Peek() == close) {
      ++at_;
      return elements;
    }
    while (true) {
      DDPOPT_ASSIGN_OR_RETURN(Argument element, ParseValue(style, place, depth + 1));
      elements.push_back(std::move(element));
      const bool is_tuple_of_one = close == ')' && elements.size() == 1;
      if (Peek() == close && !is_tuple_of_one) break;
      if (!Consume(","))
        return Expected(is_tuple_of_one ? "\",\" (a tuple of one is \"(x,)\")" : close == ')' ? "\",\" or \")\"" : "\",\" or \"]\"");
      if (Peek() == close) {
        if (is_tuple_of_one) break;
        return Expected("another element");
      }
      SkipSpaces();
    }
    ++at_;
    return elements;
  }

  absl::StatusOr<Argument> ParseDict(FormatStyle style, Place place, int depth) {
    ++at_;
    std::vector<Argument> elements;
    while (!Consume("}")) {
      if (!elements.empty()) {
        if (!Consume(",")) return Expected("\",\" or \"}\"");
        SkipSpaces();
      }
      place.is_key = true;
      DDPOPT_ASSIGN_OR_RETURN(Argument key, ParseValue(style, place, depth + 1));
      if (!Consume(":")) return Expected("\":\" after a key");
      SkipSpaces();
      place.is_key = false;
      DDPOPT_ASSIGN_OR_RETURN(Argument value, ParseValue(style, place, depth + 1));
      elements.push_back(std::move(key));
      elements.push_back(std::move(value));
    }
    return Argument::Dict(std::move(elements));
  }

  absl::StatusOr<Argument> ParseSlice(Place place, int depth) {
    place = Place();
    std::vector<Argument> bounds;
    for (int i = 0; i < 3; ++i) {
      if (i != 0) {
        if (!Consume(",")) return Expected("\",\"");
        SkipSpaces();
      }
      DDPOPT_ASSIGN_OR_RETURN(Argument bound, ParseValue(FormatStyle::kRepr, place, depth + 1));
      bounds.push_back(std::move(bound));
    }
    if (!Consume(")")) return Expected("\")\"");
    return Argument::Slice(std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2]));
  }

  absl::StatusOr<Argument> ParseDevice() {
    const std::size_t start = at_;
    if (!Consume("type=")) return Expected("\"type=\"");
    if (Peek() != '\'' && Peek() != '"') return Expected("a device type in quotes");
    DDPOPT_ASSIGN_OR_RETURN(std::string word, ParseQuoted());
    if (Consume(", index=")) {
      const std::size_t index = at_;
      while (absl::ascii_isdigit(Peek())) ++at_;
      absl::StrAppend(&word, ":", text_.substr(index, at_ - index));
    }
    if (!Consume(")")) return Expected("\")\"");
    c10::IValue device;
    if (ClassifyWord(word, &device) != WordKind::kDevice) {
      at_ = start;
      return Fail("there is no device \"", absl::CHexEscape(word), "\"");
    }
    return Argument(std::move(device));
  }

  absl::StatusOr<Argument> ParseOpaque() {
    if (Peek() != '\'' && Peek() != '"') return Expected("a text in quotes");
    DDPOPT_ASSIGN_OR_RETURN(std::string text, ParseQuoted());
    if (!Consume(", ") || (Peek() != '\'' && Peek() != '"')) return Expected("\", \" and a type in quotes");
    DDPOPT_ASSIGN_OR_RETURN(std::string type_name, ParseQuoted());
    if (!Consume(")")) return Expected("\")\"");
    return Argument(OpaqueConstant(std::move(text), std::move(type_name)));
  }

  bool ConsumeComplex(c10::IValue* number) {
    constexpr std::size_t kLongest = 64;
    const absl::string_view rest = text_.substr(at_, kLongest);
    const std::size_t close = rest.find_first_of("),\n");
    if (close == absl::string_view::npos || close < 2 || rest[close] != ')' || rest[close - 1] != 'j') return false;
    if (ClassifyWord(rest.substr(0, close + 1), number) != WordKind::kComplex) return false;
    at_ += close + 1;
    return true;
  }

  // A Python string literal as repr() writes it.
  absl::StatusOr<std::string> ParseQuoted() {
    const std::size_t start = at_;
    const char quote = text_[at_++];
    std::string value;
    while (true) {
      const char c = Peek();
      if (at_ >= text_.size() || c == '\n') {
        at_ = start;
        return Expected("a string that ends on its line");
      }
      ++at_;
      if (c == quote) return value;
      if (c != '\\') {
        value.push_back(c);
        continue;
      }
      const char escape = Peek();
      if (at_ < text_.size()) ++at_;
      int digits = 0;
      switch (escape) {
        case 'n':
          value.push_back('\n');
          continue;
        case 'r':
          value.push_back('\r');
          continue;
        case 't':
          value.push_back('\t');
          continue;
        case '\\':
        case '\'':
        case '"':
          value.push_back(escape);
          continue;
        case 'x':
          digits = 2;
          break;
        case 'u':
          digits = 4;
          break;
        case 'U':
          digits = 8;
          break;
        default:
          at_ -= 2;
          return Expected("an escape of a Python string");
      }
      uint32_t code_point = 0;
      for (int i = 0; i < digits; ++i) {
        const char digit = Peek();
        if (!absl::ascii_isxdigit(digit)) return Expected("a hexadecimal digit");
        code_point = code_point * 16 + static_cast<uint32_t>(digit <= '9' ? digit - '0' : absl::ascii_tolower(digit) - 'a' + 10);
        ++at_;
      }
      if (code_point > 0x10ffff || (code_point >= 0xd800 && code_point < 0xe000 && (code_point < 0xdc80 || code_point > 0xdcff))) {
        at_ -= static_cast<std::size_t>(digits);
        return Expected("a character's number");
      }
      AppendCodePoint(code_point, &value);
    }
  }

  // A bare word: up to what ends a value at this depth.
  absl::string_view Word(FormatStyle style, const Place& place) {
    const std::size_t start = at_;
    int open = 0;
    const bool is_opaque = Peek() == '<';  // "<object at 0x1>"
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n' || c == '\r') break;
      if (c == '(' || c == '[' || c == '{') ++open;
      if (c == ')' || c == ']' || c == '}') {
        if (open == 0) break;
        --open;
      }
      if (open != 0) continue;
      if (c == ',') break;
      if (place.is_key && c == ':' && at_ + 1 < text_.size() && text_[at_ + 1] == ' ') break;
      if (style == FormatStyle::kRepr && ((c == ' ' && !is_opaque) || (c == ':' && place.is_key))) break;
    }
    std::size_t end = at_;
    while (end > start && text_[end - 1] == ' ') --end;
    return text_.substr(start, end - start);
  }

  absl::StatusOr<Argument> ParseWord(FormatStyle style, const Place& place) {
    const std::size_t start = at_;
    const absl::string_view word = Word(style, place);
    if (style == FormatStyle::kRepr) {
      if (Node* node = FindNode(word)) return Argument(node);
    } else if (place.declared != nullptr && DeclaredKind(*place.declared) == c10::TypeKind::StringType && word != "None") {
      return Argument(c10::IValue(std::string(word)));
    }
    c10::IValue value;
    switch (ClassifyWord(word, &value)) {
      case WordKind::kBigInt:
        at_ = start;
        return Expected("an integer of 64 bits");
      case WordKind::kString:
        break;
      default:
        return place.declared == nullptr ? Argument(std::move(value)) : FitToSchema(Argument(std::move(value)), *place.declared);
    }
    if (style == FormatStyle::kFormatNode || (place.bare_strings && !word.empty())) return Argument(c10::IValue(std::string(word)));
    at_ = start;
    return Expected("a value or the name of an earlier node");
  }

  struct Claim {
    Node* node;
    std::size_t num_users;
    std::size_t at;
  };

  const absl::string_view text_;
  const ParseOptions options_;
  std::size_t at_ = 0;
  std::unique_ptr<Graph> graph_;
  absl::flat_hash_map<absl::string_view, Node*> by_name_;
  std::array<Node*, 8> recent_{};
  std::size_t num_recent_ = 0;
  absl::flat_hash_map<absl::string_view, Target> functions_;
  Target target_ = OpaqueTarget{};
  std::vector<Claim> claims_;
};

}  // namespace

Target FunctionTargetFromText(absl::string_view text) {
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "torch.ops.")) {
    const std::vector<absl::string_view> parts = absl::StrSplit(rest, '.');
    if (parts.size() == 2 && parts[0] == "higher_order") return HigherOrderTarget{std::string(parts[1])};
    if (parts.size() == 3) {
      const c10::OperatorName name(absl::StrCat(parts[0], "::", parts[1]), parts[2] == "default" ? "" : std::string(parts[2]));
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (op.has_value()) return OperatorTarget{*op};
    }
  }
  return OpaqueTarget{std::string(text)};
}

absl::StatusOr<std::unique_ptr<Graph>> ParseGraph(absl::string_view text, const ParseOptions& options) {
  return Parser(text, options).Parse();
}

absl::StatusOr<std::shared_ptr<GraphModule>> ParseModule(absl::string_view text, const ParseOptions& options) {
  DDPOPT_ASSIGN_OR_RETURN(const std::unique_ptr<Graph> graph, ParseGraph(text, options));
  return ModuleOfGraph(*graph);
}

absl::StatusOr<std::shared_ptr<GraphModule>> ModuleOfGraph(const Graph& graph) {
  DDPOPT_RETURN_IF_ERROR(graph.Lint());
  auto module = std::make_shared<GraphModule>();
  module->graph().CopyFrom(graph);
  absl::flat_hash_map<std::string, std::size_t> called;  // to the number of arguments
  for (const Node* node : graph.nodes()) {
    if (node->op() == Op::kCallModule) called.emplace(std::string(node->path()), node->args().size());
  }
  for (const Node* node : graph.nodes()) {
    const std::string path = TargetToString(node->target());
    if (node->op() == Op::kGetAttr && !module->attrs().contains(path) && !called.contains(path)) {
      DDPOPT_RETURN_IF_ERROR(
          module->AddAttr(path, OpaqueConstant(absl::StrCat("<", path, ">"), "attribute"), GraphModule::AttrKind::kConstant));
    }
    if (node->op() != Op::kCallModule || module->submodules().contains(path)) continue;
    GraphModule::Submodule submodule;
    submodule.graph_module = std::make_shared<GraphModule>();
    Graph& inner = submodule.graph_module->graph();
    std::vector<Argument> inputs;
    for (std::size_t i = 0; i < called[path]; ++i) inputs.push_back(inner.Placeholder(absl::StrCat("arg_", i)));
    inner.Output(inner.CreateNode(Op::kCallFunction, OpaqueTarget{absl::StrCat(path, ".forward")}, std::move(inputs)));
    DDPOPT_RETURN_IF_ERROR(module->AddSubmodule(path, std::move(submodule)));
  }
  return module;
}

}  // namespace ddpopt::fx
