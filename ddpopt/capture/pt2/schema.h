#ifndef DDPOPT_CAPTURE_PT2_SCHEMA_H_
#define DDPOPT_CAPTURE_PT2_SCHEMA_H_

// The numbers and versions of torch.export's files. Private to this package; schema_test.cc holds them to LibTorch's own schema header.

#include <cstdint>

#include "c10/core/Layout.h"
#include "c10/core/MemoryFormat.h"
#include "c10/core/ScalarType.h"

namespace ddpopt::pt2 {

// The newest schema that is read: torch.export's of PyTorch 2.15. The oldest has the same major version.
inline constexpr int64_t kSchemaMajor = 8;
inline constexpr int64_t kSchemaMinor = 20;
inline constexpr int64_t kNewestOpset = 10;

// False for a number that stands for nothing.
bool DtypeFromSchema(int64_t number, c10::ScalarType* dtype);
bool LayoutFromSchema(int64_t number, c10::Layout* layout);
bool MemoryFormatFromSchema(int64_t number, c10::MemoryFormat* format);

}  // namespace ddpopt::pt2

#endif  // DDPOPT_CAPTURE_PT2_SCHEMA_H_
