#include "ddpopt/capture/pt2/schema.h"

namespace ddpopt::pt2 {

bool DtypeFromSchema(int64_t number, c10::ScalarType* dtype) {
  using c10::ScalarType;
  switch (number) {
    case 1: *dtype = ScalarType::Byte; return true;
    case 2: *dtype = ScalarType::Char; return true;
    case 3: *dtype = ScalarType::Short; return true;
    case 4: *dtype = ScalarType::Int; return true;
    case 5: *dtype = ScalarType::Long; return true;
    case 6: *dtype = ScalarType::Half; return true;
    case 7: *dtype = ScalarType::Float; return true;
    case 8: *dtype = ScalarType::Double; return true;
    case 9: *dtype = ScalarType::ComplexHalf; return true;
    case 10: *dtype = ScalarType::ComplexFloat; return true;
    case 11: *dtype = ScalarType::ComplexDouble; return true;
    case 12: *dtype = ScalarType::Bool; return true;
    case 13: *dtype = ScalarType::BFloat16; return true;
    case 28: *dtype = ScalarType::UInt16; return true;
    case 29: *dtype = ScalarType::Float8_e4m3fn; return true;
    case 30: *dtype = ScalarType::Float8_e5m2; return true;
    case 31: *dtype = ScalarType::Float8_e4m3fnuz; return true;
    case 32: *dtype = ScalarType::Float8_e5m2fnuz; return true;
    case 33: *dtype = ScalarType::Float8_e8m0fnu; return true;
    case 34: *dtype = ScalarType::UInt32; return true;
    case 35: *dtype = ScalarType::UInt64; return true;
    default: return false;
  }
}

bool LayoutFromSchema(int64_t number, c10::Layout* layout) {
  switch (number) {
    case 1: *layout = c10::Layout::Sparse; return true;
    case 2: *layout = c10::Layout::SparseCsr; return true;
    case 3: *layout = c10::Layout::SparseCsc; return true;
    case 4: *layout = c10::Layout::SparseBsr; return true;
    case 5: *layout = c10::Layout::SparseBsc; return true;
    case 6: *layout = c10::Layout::Mkldnn; return true;
    case 7: *layout = c10::Layout::Strided; return true;
    default: return false;
  }
}

bool MemoryFormatFromSchema(int64_t number, c10::MemoryFormat* format) {
  switch (number) {
    case 1: *format = c10::MemoryFormat::Contiguous; return true;
    case 2: *format = c10::MemoryFormat::ChannelsLast; return true;
    case 3: *format = c10::MemoryFormat::ChannelsLast3d; return true;
    case 4: *format = c10::MemoryFormat::Preserve; return true;
    default: return false;
  }
}

}  // namespace ddpopt::pt2
