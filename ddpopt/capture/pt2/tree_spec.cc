#include "ddpopt/capture/pt2/tree_spec.h"

#include <utility>

#include "ATen/core/Dict.h"
#include "ATen/core/List.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "fx_graph/text/json_view.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::JsonView;

std::string KeyText(const IValue& key) {
  if (key.isString()) return absl::StrCat("\"", key.toStringRef(), "\"");
  if (key.isBool()) return key.toBool() ? "True" : "False";
  return absl::StrCat(key.toInt());
}

absl::Status ReadKeys(const JsonView& list, TreeSpec* spec) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    const fx::JsonValue& key = list[i].value();
    if (key.kind == fx::JsonValue::Kind::kString) {
      spec->keys.emplace_back(key.text);
    } else if (key.kind == fx::JsonValue::Kind::kInt) {
      spec->keys.emplace_back(key.integer);
    } else if (key.kind == fx::JsonValue::Kind::kBool) {
      spec->keys.emplace_back(key.boolean);
    } else {
      return list[i].Expected("a key that is a string, an integer or a bool");
    }
  }
  return absl::OkStatus();
}

// What pytree notes of a container beside its children: JSON within a string.
absl::Status ReadContext(const JsonView& context, TreeSpec* spec) {
  if (spec->kind != TreeSpec::Kind::kDict) return absl::OkStatus();
  DDPOPT_ASSIGN_OR_RETURN(const std::string text, context.AsString());
  const absl::StatusOr<fx::JsonValue> json = fx::ParseJson(text);
  if (!json.ok()) return context.Error(json.status().message());
  const JsonView root(*json);
  absl::Status status;
  if (root.is_object() && root.Has("dict_context")) {  // of a defaultdict
    status = root.Array("dict_context").status();
    if (status.ok()) status = ReadKeys(*root.Array("dict_context"), spec);
  } else {
    status = root.ExpectArray();
    if (status.ok()) status = ReadKeys(root, spec);
  }
  if (!status.ok()) return context.Error(status.message());
  if (spec->keys.size() != spec->children.size()) {
    return context.Error("expected ", spec->children.size(), " keys, as many as children_spec holds, got ", spec->keys.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<TreeSpec> ReadSpec(const JsonView& view) {
  TreeSpec spec;
  DDPOPT_ASSIGN_OR_RETURN(const JsonView type, view.At("type"));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView children, view.Array("children_spec"));
  for (std::size_t i = 0; i < children.size(); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(TreeSpec child, ReadSpec(children[i]));
    spec.children.push_back(std::move(child));
  }
  if (type.is_null()) {
    if (children.size() != 0) return view.Error("a leaf can't have children");
    return spec;
  }
  DDPOPT_ASSIGN_OR_RETURN(spec.type, type.AsString());
  if (spec.type == "builtins.tuple" || spec.type == "collections.namedtuple" || spec.type == "torch.Size" ||
      spec.type == "torch.return_types") {
    spec.kind = TreeSpec::Kind::kTuple;
  } else if (spec.type == "builtins.list" || spec.type == "collections.deque" ||
             spec.type == "torch.fx.immutable_collections.immutable_list") {
    spec.kind = TreeSpec::Kind::kList;
  } else if (spec.type == "builtins.dict" || spec.type == "collections.OrderedDict" || spec.type == "collections.defaultdict" ||
             spec.type == "torch.fx.immutable_collections.immutable_dict") {
    spec.kind = TreeSpec::Kind::kDict;
  } else {
    spec.kind = TreeSpec::Kind::kOpaque;
  }
  DDPOPT_ASSIGN_OR_RETURN(const JsonView context, view.At("context"));
  DDPOPT_RETURN_IF_ERROR(ReadContext(context, &spec));
  return spec;
}

absl::Status RefuseType(absl::string_view place, const TreeSpec& spec) {
  return absl::UnimplementedError(absl::StrCat(place, ": values of the Python type ", spec.type, " are not supported; give and take its ",
                                               spec.num_leaves(), " leaves flat"));
}

std::string Describe(const IValue& value) {
  if (value.isTuple()) return absl::StrCat("a tuple of ", value.toTupleRef().elements().size());
  if (value.isList()) return absl::StrCat("a list of ", value.toListRef().size());
  if (value.isGenericDict()) return absl::StrCat("a dict of ", value.toGenericDict().size());
  return absl::StrCat("a ", value.tagKind());
}

absl::StatusOr<IValue> Build(const TreeSpec& spec, absl::Span<const IValue>* leaves) {
  if (spec.kind == TreeSpec::Kind::kLeaf) {
    IValue value = leaves->front();
    leaves->remove_prefix(1);
    return value;
  }
  if (spec.kind == TreeSpec::Kind::kOpaque) return RefuseType("the tree", spec);
  std::vector<IValue> elements;
  for (const TreeSpec& child : spec.children) {
    DDPOPT_ASSIGN_OR_RETURN(IValue element, Build(child, leaves));
    elements.push_back(std::move(element));
  }
  if (spec.kind == TreeSpec::Kind::kTuple) return IValue(c10::ivalue::Tuple::create(std::move(elements)));
  if (spec.kind == TreeSpec::Kind::kList) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (IValue& element : elements) list.push_back(std::move(element));
    return IValue(std::move(list));
  }
  // A dict's key type must be one type; mixed keys have no IValue form.
  c10::TypePtr key_type = spec.keys.empty() ? c10::TypePtr(c10::StringType::get()) : spec.keys.front().type();
  c10::impl::GenericDict dict(key_type, c10::AnyType::get());
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (*spec.keys[i].type() != *key_type) return absl::UnimplementedError("dicts whose keys are of different types are not supported");
    dict.insert_or_assign(spec.keys[i], std::move(elements[i]));
  }
  return IValue(std::move(dict));
}

}  // namespace

absl::StatusOr<TreeSpec> TreeSpec::Parse(absl::string_view text) {
  DDPOPT_ASSIGN_OR_RETURN(const fx::JsonValue json, fx::ParseJson(text));
  const JsonView root(json);
  DDPOPT_RETURN_IF_ERROR(root.ExpectArray());
  if (root.size() != 2) return root.Expected("[protocol, tree]");
  DDPOPT_ASSIGN_OR_RETURN(const int64_t protocol, root[0].AsInt());
  if (protocol != 1) return absl::UnimplementedError(absl::StrCat("the tree is written in protocol ", protocol, ", where 1 is expected"));
  return ReadSpec(root[1]);
}

TreeSpec TreeSpec::TupleOf(std::size_t leaves) {
  TreeSpec spec;
  spec.kind = Kind::kTuple;
  spec.type = "builtins.tuple";
  spec.children.resize(leaves);
  return spec;
}

std::size_t TreeSpec::num_leaves() const {
  if (kind == Kind::kLeaf) return 1;
  std::size_t count = 0;
  for (const TreeSpec& child : children) count += child.num_leaves();
  return count;
}

absl::StatusOr<std::vector<IValue>> TreeSpec::Flatten(const IValue& value, absl::string_view name) const {
  std::vector<IValue> leaves;
  DDPOPT_RETURN_IF_ERROR(FlattenInto(value, std::string(name), &leaves));
  return leaves;
}

absl::Status TreeSpec::FlattenInto(const IValue& value, const std::string& place, std::vector<IValue>* leaves) const {
  const auto expected = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": expected a ", what, " of ", children.size(), ", got ", Describe(value)));
  };
  switch (kind) {
    case Kind::kLeaf:
      leaves->push_back(value);
      return absl::OkStatus();
    case Kind::kOpaque:
      return RefuseType(place, *this);
    case Kind::kTuple: {
      if (!value.isTuple() || value.toTupleRef().elements().size() != children.size()) return expected("tuple");
      for (std::size_t i = 0; i < children.size(); ++i) {
        DDPOPT_RETURN_IF_ERROR(children[i].FlattenInto(value.toTupleRef().elements()[i], absl::StrCat(place, "[", i, "]"), leaves));
      }
      return absl::OkStatus();
    }
    case Kind::kList: {
      if (!value.isList() || value.toList().size() != children.size()) return expected("list");
      const c10::List<IValue> list = value.toList();
      for (std::size_t i = 0; i < children.size(); ++i) {
        DDPOPT_RETURN_IF_ERROR(children[i].FlattenInto(list.get(i), absl::StrCat(place, "[", i, "]"), leaves));
      }
      return absl::OkStatus();
    }
    case Kind::kDict: {
      if (!value.isGenericDict()) return expected("dict");
      const c10::impl::GenericDict dict = value.toGenericDict();
      if (dict.size() != children.size()) return expected("dict");
      for (std::size_t i = 0; i < children.size(); ++i) {
        if (*dict.keyType() != *keys[i].type() && dict.keyType()->kind() != c10::TypeKind::AnyType) return expected("dict");
        const auto it = dict.find(keys[i]);
        const std::string inner = absl::StrCat(place, "[", KeyText(keys[i]), "]");
        if (it == dict.end()) return absl::InvalidArgumentError(absl::StrCat(inner, " is missing"));
        DDPOPT_RETURN_IF_ERROR(children[i].FlattenInto(it->value(), inner, leaves));
      }
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<IValue> TreeSpec::Unflatten(absl::Span<const IValue> leaves) const {
  if (leaves.size() != num_leaves()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tree ", ToString(), " has ", num_leaves(), " leaves, but ", leaves.size(), " values were given"));
  }
  return Build(*this, &leaves);
}

std::string TreeSpec::ToString() const {
  std::string inner;
  for (std::size_t i = 0; i < children.size(); ++i) {
    absl::StrAppend(&inner, i == 0 ? "" : ", ", kind == Kind::kDict ? absl::StrCat(KeyText(keys[i]), ": ") : "", children[i].ToString());
  }
  switch (kind) {
    case Kind::kLeaf:
      return "*";
    case Kind::kTuple:
      return absl::StrCat("(", inner, children.size() == 1 ? ",)" : ")");
    case Kind::kList:
      return absl::StrCat("[", inner, "]");
    case Kind::kDict:
      return absl::StrCat("{", inner, "}");
    case Kind::kOpaque:
      break;
  }
  return absl::StrCat(type, "(", inner, ")");
}

}  // namespace ddpopt
