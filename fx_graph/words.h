#ifndef DDPOPT_FX_GRAPH_WORDS_H_
#define DDPOPT_FX_GRAPH_WORDS_H_

// What a bare word in a graph's text form stands for: torch.fx prints constants with Python's str(), a string without quotes.
//
//   c10::IValue value;
//   fx::ClassifyWord("1e-05", &value);   // kFloat, 1e-05
//   fx::ClassifyWord("mean", &value);    // kString
//
// Thread-safe.

#include "ATen/core/ivalue.h"
#include "absl/strings/string_view.h"

namespace ddpopt::fx {

enum class WordKind {
  kString,  // nothing below
  kNone,
  kBool,
  kInt,
  kBigInt,  // an integer that 64 bits can't hold; it has no value
  kFloat,
  kComplex,  // "2j", "(1+2j)"
  kEllipsis,
  kDtype,         // "torch.float32"
  kLayout,        // "torch.strided"
  kMemoryFormat,  // "torch.channels_last"
  kDevice,        // "cpu", "cuda:0"
  kOpaque,        // "<function f at 0x...>"
};

// Sets *value to the constant (see constants.h), for kString and kBigInt to None.
WordKind ClassifyWord(absl::string_view word, c10::IValue* value);

// Whether a string argument reads back as itself without quotes.
bool IsPlainString(absl::string_view text);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_WORDS_H_
