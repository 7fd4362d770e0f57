#ifndef DDPOPT_FX_GRAPH_CONSTANTS_H_
#define DDPOPT_FX_GRAPH_CONSTANTS_H_

// Constants of torch.fx graphs that c10::IValue has no tag of its own for. The dispatcher's form of a dtype, a layout or a memory format
// is an integer, whose meaning the operator's schema tells; an argument of a method or of an opaque function has no schema, and there an
// integer would lose it.
//
//   fx::Argument dtype(fx::DtypeConstant(c10::ScalarType::BFloat16));      // prints "torch.bfloat16"
//   dtype = fx::FitToSchema(std::move(dtype), schema.arguments()[1]);      // 15, if the schema says ScalarType
//
// Each value of dtype, layout, memory format and Ellipsis is one shared object, so that IValue::is compares them; thread-safe.

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/function_schema.h"
#include "ATen/core/ivalue.h"
#include "absl/strings/string_view.h"
#include "c10/core/Layout.h"
#include "c10/core/MemoryFormat.h"
#include "c10/core/ScalarType.h"
#include "fx_graph/node.h"

namespace ddpopt::fx {

struct TypedConstant : torch::CustomClassHolder {
  enum class Kind { kDtype, kLayout, kMemoryFormat, kEllipsis, kOpaque };
  Kind kind = Kind::kOpaque;
  int64_t value = 0;      // of a dtype, a layout or a memory format: the dispatcher's integer
  std::string text;       // of an opaque value: what Python's str() of it says
  std::string type_name;  // of an opaque value: its Python type, may be empty
};

c10::IValue DtypeConstant(c10::ScalarType dtype);
c10::IValue LayoutConstant(c10::Layout layout);
c10::IValue MemoryFormatConstant(c10::MemoryFormat format);
c10::IValue EllipsisConstant();
// A value that only Python has. It prints, and is refused by whatever executes or measures it.
c10::IValue OpaqueConstant(std::string text, std::string type_name = "");

// The constant, which lives as long as `value`; null if `value` is anything else.
const TypedConstant* AsTypedConstant(const c10::IValue& value);

// What the dispatcher takes: dtypes, layouts and memory formats as integers, everything else as it is.
c10::IValue DispatcherValue(const c10::IValue& value);

// `argument` in the form that the dispatcher takes for the parameter `declared`: a typed constant becomes the integer if the parameter has
// that type. Everything else stays as it is.
Argument FitToSchema(Argument argument, const c10::Argument& declared);
// The same for all arguments of a call. Targets that are no operators leave them unchanged.
void FitToSchema(const Target& target, std::vector<Argument>* args, Kwargs* kwargs);

// The parameter of that position or name, null if the operator has none such.
const c10::Argument* DeclaredArgument(const c10::FunctionSchema& schema, std::size_t position);
const c10::Argument* DeclaredArgument(const c10::FunctionSchema& schema, absl::string_view name);
// The type inside any Optional.
c10::TypeKind DeclaredKind(const c10::Argument& declared);

// Python's names: "torch.float32", "torch.strided", "torch.channels_last"; empty if there is none.
absl::string_view DtypeName(c10::ScalarType dtype);
absl::string_view LayoutName(c10::Layout layout);
absl::string_view MemoryFormatName(c10::MemoryFormat format);
// PyTorch's short names: "f32", "bf16", "i64", "b8"; the long one without "torch." if there is no short one.
std::string ShortDtypeName(c10::ScalarType dtype);
// The other way round: false for a name that is none.
bool DtypeFromName(absl::string_view name, c10::ScalarType* dtype);
bool DtypeFromShortName(absl::string_view name, c10::ScalarType* dtype);
bool LayoutFromName(absl::string_view name, c10::Layout* layout);
bool MemoryFormatFromName(absl::string_view name, c10::MemoryFormat* format);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_CONSTANTS_H_
