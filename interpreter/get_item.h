#ifndef DDPOPT_INTERPRETER_GET_ITEM_H_
#define DDPOPT_INTERPRETER_GET_ITEM_H_

// Python's operator.getitem on what operators and pieces return. Private to this package.

#include "ATen/core/ivalue.h"
#include "fx_graph/node.h"

namespace ddpopt {

// Whether the target is the opaque "operator.getitem" (or "_operator.getitem", as torch.fx names it).
bool IsGetItem(const fx::Target& target);

// An element of a tuple or list by its index (negative ones count from the end), or of a dict by its key. Throws c10::Error (IndexError for
// an index out of range); tensors are not indexed.
c10::IValue GetItem(const c10::IValue& container, const c10::IValue& key);

}  // namespace ddpopt

#endif  // DDPOPT_INTERPRETER_GET_ITEM_H_
