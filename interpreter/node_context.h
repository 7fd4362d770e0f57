#ifndef DDPOPT_INTERPRETER_NODE_CONTEXT_H_
#define DDPOPT_INTERPRETER_NODE_CONTEXT_H_

// What the error of a node that runs says of the node, whoever runs it.
//
//   catch (c10::Error& error) { error.add_context(NodeContext(node)); throw; }

#include <string>

#include "fx_graph/node.h"

namespace ddpopt {

// "While executing %add : ...", with the module path and the stack trace that the node knows of.
std::string NodeContext(const fx::Node& node);

}  // namespace ddpopt

#endif  // DDPOPT_INTERPRETER_NODE_CONTEXT_H_
