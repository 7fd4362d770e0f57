#include "fx_graph/constants.h"

#include <array>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace ddpopt::fx {
namespace {

constexpr int kDtypes = static_cast<int>(c10::ScalarType::NumOptions);
constexpr int kLayouts = static_cast<int>(c10::Layout::NumOptions);
constexpr int kMemoryFormats = static_cast<int>(c10::MemoryFormat::NumOptions);

std::string NewDtypeName(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Byte:
      return "torch.uint8";
    case c10::ScalarType::Char:
      return "torch.int8";
    case c10::ScalarType::Short:
      return "torch.int16";
    case c10::ScalarType::Int:
      return "torch.int32";
    case c10::ScalarType::Long:
      return "torch.int64";
    case c10::ScalarType::Half:
      return "torch.float16";
    case c10::ScalarType::Float:
      return "torch.float32";
    case c10::ScalarType::Double:
      return "torch.float64";
    case c10::ScalarType::ComplexHalf:
      return "torch.complex32";
    case c10::ScalarType::ComplexFloat:
      return "torch.complex64";
    case c10::ScalarType::ComplexDouble:
      return "torch.complex128";
    case c10::ScalarType::Undefined:
      return "";
    default:  // Bool, BFloat16, Float8_e5m2, QInt8, UInt16, ...
      return absl::StrCat("torch.", absl::AsciiStrToLower(c10::toString(dtype)));
  }
}

constexpr std::pair<c10::ScalarType, const char*> kShortDtypeNames[] = {
    {c10::ScalarType::Float, "f32"},       {c10::ScalarType::Double, "f64"},        {c10::ScalarType::Half, "f16"},
    {c10::ScalarType::BFloat16, "bf16"},   {c10::ScalarType::Long, "i64"},          {c10::ScalarType::Int, "i32"},
    {c10::ScalarType::Short, "i16"},       {c10::ScalarType::Char, "i8"},           {c10::ScalarType::Byte, "u8"},
    {c10::ScalarType::UInt16, "u16"},      {c10::ScalarType::UInt32, "u32"},        {c10::ScalarType::UInt64, "u64"},
    {c10::ScalarType::Bool, "b8"},         {c10::ScalarType::ComplexHalf, "c32"},   {c10::ScalarType::ComplexFloat, "c64"},
    {c10::ScalarType::ComplexDouble, "c128"}};

struct Names {
  std::array<std::string, kDtypes> dtypes;
  std::array<std::string, kLayouts> layouts = {"torch.strided",    "torch.sparse_coo", "torch.sparse_csr", "torch._mkldnn",
                                               "torch.sparse_csc", "torch.sparse_bsr", "torch.sparse_bsc", "torch.jagged"};
  std::array<std::string, kMemoryFormats> memory_formats = {"torch.contiguous_format", "torch.preserve_format", "torch.channels_last",
                                                            "torch.channels_last_3d"};
  absl::flat_hash_map<std::string, int> dtype_of, layout_of, memory_format_of;

  Names() {
    for (int i = 0; i < kDtypes; ++i) dtypes[i] = NewDtypeName(static_cast<c10::ScalarType>(i));
    const auto index = [](const auto& names, absl::flat_hash_map<std::string, int>* of) {
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (!names[i].empty()) of->emplace(names[i], static_cast<int>(i));
      }
    };
    index(dtypes, &dtype_of);
    index(layouts, &layout_of);
    index(memory_formats, &memory_format_of);
  }
};

const Names& AllNames() {
  static const Names* names = new Names();
  return *names;
}

template <std::size_t N>
absl::string_view NameAt(const std::array<std::string, N>& names, int index) {
  return index >= 0 && index < static_cast<int>(N) ? absl::string_view(names[index]) : absl::string_view();
}

template <typename T>
bool FromName(const absl::flat_hash_map<std::string, int>& of, absl::string_view name, T* value) {
  const auto it = of.find(name);
  if (it == of.end()) return false;
  *value = static_cast<T>(it->second);
  return true;
}

c10::IValue NewConstant(TypedConstant::Kind kind, int64_t value, std::string text = "", std::string type_name = "") {
  auto constant = c10::make_intrusive<TypedConstant>();
  constant->kind = kind;
  constant->value = value;
  constant->text = std::move(text);
  constant->type_name = std::move(type_name);
  return c10::IValue::make_capsule(std::move(constant));
}

// One shared object for each of `count` values.
std::vector<c10::IValue> NewShared(TypedConstant::Kind kind, int count) {
  std::vector<c10::IValue> constants;
  for (int i = 0; i < count; ++i) constants.push_back(NewConstant(kind, i));
  return constants;
}

}  // namespace

c10::IValue DtypeConstant(c10::ScalarType dtype) {
  static const auto* shared = new std::vector<c10::IValue>(NewShared(TypedConstant::Kind::kDtype, kDtypes));
  return shared->at(static_cast<std::size_t>(dtype));
}

c10::IValue LayoutConstant(c10::Layout layout) {
  static const auto* shared = new std::vector<c10::IValue>(NewShared(TypedConstant::Kind::kLayout, kLayouts));
  return shared->at(static_cast<std::size_t>(layout));
}

c10::IValue MemoryFormatConstant(c10::MemoryFormat format) {
  static const auto* shared = new std::vector<c10::IValue>(NewShared(TypedConstant::Kind::kMemoryFormat, kMemoryFormats));
  return shared->at(static_cast<std::size_t>(format));
}

c10::IValue EllipsisConstant() {
  static const auto* shared = new c10::IValue(NewConstant(TypedConstant::Kind::kEllipsis, 0));
  return *shared;
}

c10::IValue OpaqueConstant(std::string text, std::string type_name) {
  return NewConstant(TypedConstant::Kind::kOpaque, 0, std::move(text), std::move(type_name));
}

const TypedConstant* AsTypedConstant(const c10::IValue& value) {
  return value.isCapsule() ? dynamic_cast<const TypedConstant*>(value.toCapsule().get()) : nullptr;
}

c10::IValue DispatcherValue(const c10::IValue& value) {
  const TypedConstant* constant = AsTypedConstant(value);
  if (constant == nullptr) return value;
  switch (constant->kind) {
    case TypedConstant::Kind::kDtype:
    case TypedConstant::Kind::kLayout:
    case TypedConstant::Kind::kMemoryFormat:
      return c10::IValue(constant->value);
    case TypedConstant::Kind::kEllipsis:
    case TypedConstant::Kind::kOpaque:
      break;
  }
  return value;
}

Argument FitToSchema(Argument argument, const c10::Argument& declared) {
  if (argument.kind() != Argument::Kind::kConstant) return argument;
  const TypedConstant* constant = AsTypedConstant(argument.constant());
  if (constant == nullptr) return argument;
  const c10::TypeKind kind = DeclaredKind(declared);
  const bool fits = (constant->kind == TypedConstant::Kind::kDtype && kind == c10::TypeKind::ScalarTypeType) ||
                    (constant->kind == TypedConstant::Kind::kLayout && kind == c10::TypeKind::LayoutType) ||
                    (constant->kind == TypedConstant::Kind::kMemoryFormat && kind == c10::TypeKind::MemoryFormatType);
  return fits ? Argument(c10::IValue(constant->value)) : argument;
}

void FitToSchema(const Target& target, std::vector<Argument>* args, Kwargs* kwargs) {
  const auto* op = std::get_if<OperatorTarget>(&target);
  if (op == nullptr || !op->op.hasSchema()) return;
  const c10::FunctionSchema& schema = op->op.schema();
  for (std::size_t i = 0; i < args->size(); ++i) {
    if (const c10::Argument* declared = DeclaredArgument(schema, i)) (*args)[i] = FitToSchema(std::move((*args)[i]), *declared);
  }
  for (auto& [name, argument] : *kwargs) {
    if (const c10::Argument* declared = DeclaredArgument(schema, name)) argument = FitToSchema(std::move(argument), *declared);
  }
}

const c10::Argument* DeclaredArgument(const c10::FunctionSchema& schema, std::size_t position) {
  return position < schema.arguments().size() ? &schema.arguments()[position] : nullptr;
}

const c10::Argument* DeclaredArgument(const c10::FunctionSchema& schema, absl::string_view name) {
  for (const c10::Argument& declared : schema.arguments()) {
    if (declared.name() == name) return &declared;
  }
  return nullptr;
}

c10::TypeKind DeclaredKind(const c10::Argument& declared) {
  const c10::Type* type = declared.real_type().get();
  while (type->kind() == c10::TypeKind::OptionalType) type = type->containedTypes()[0].get();
  return type->kind();
}

absl::string_view DtypeName(c10::ScalarType dtype) { return NameAt(AllNames().dtypes, static_cast<int>(dtype)); }
absl::string_view LayoutName(c10::Layout layout) { return NameAt(AllNames().layouts, static_cast<int>(layout)); }
absl::string_view MemoryFormatName(c10::MemoryFormat format) { return NameAt(AllNames().memory_formats, static_cast<int>(format)); }

std::string ShortDtypeName(c10::ScalarType dtype) {
  for (const auto& [known, name] : kShortDtypeNames) {
    if (known == dtype) return name;
  }
  return std::string(absl::StripPrefix(DtypeName(dtype), "torch."));
}

bool DtypeFromShortName(absl::string_view name, c10::ScalarType* dtype) {
  for (const auto& [known, short_name] : kShortDtypeNames) {
    if (name != short_name) continue;
    *dtype = known;
    return true;
  }
  return DtypeFromName(absl::StrCat("torch.", absl::StripPrefix(name, "torch.")), dtype);
}

bool DtypeFromName(absl::string_view name, c10::ScalarType* dtype) { return FromName(AllNames().dtype_of, name, dtype); }
bool LayoutFromName(absl::string_view name, c10::Layout* layout) { return FromName(AllNames().layout_of, name, layout); }
bool MemoryFormatFromName(absl::string_view name, c10::MemoryFormat* format) { return FromName(AllNames().memory_format_of, name, format); }

}  // namespace ddpopt::fx
