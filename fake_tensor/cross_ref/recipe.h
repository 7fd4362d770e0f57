#ifndef DDPOPT_FAKE_TENSOR_CROSS_REF_RECIPE_H_
#define DDPOPT_FAKE_TENSOR_CROSS_REF_RECIPE_H_

// How to make arguments for an operator that it will probably accept: a line of text per operator, over what the schema alone tells (types,
// names, defaults). Arguments that a recipe doesn't mention are made from their type and name.
//
//   addmm  self=[M,N]|[N]|[]  mat1=[M,K]  mat2=[K,N]
//
// Capitals are sizes, chosen at random once a call; `K:=1..3` chooses one from a range. Alternatives are separated by |. Values are
//   tensor        dtype[sizes]values, where
//                 dtype: T (the call's, the default), R (its real counterpart), X (its complex one), A (any), idx (i64, sometimes i32) or a
//                   name;
//                 sizes: expressions; N? (N or 1); *S (a shape: S rank 0-4, W 1-4, V 2-4, P 0-2, Q 1-2); ~S (a shape that broadcasts to S);
//                        1S (as many ones as S has dimensions); @f(…) (a function of other arguments, see generator.cc);
//                 values: <n (integers below n), =n, @pd (positive definite), @inc (increasing); default 0.1 to 0.9, or 1 to 3 for integers
//   each(tensor)  a list; lists of one call have equal lengths, and capitals are chosen anew for each position
//   list(n,tensor) a list of n tensors, capitals as in the call
//   number, a..b, expressions, (…,…) lists, x^n (a list of n), 'text', none, true, false, bool, dtype names, functions of other arguments
// T=class chooses the call's dtype from any, float, fc (float or complex), complex, real (no complex), int, bits (int or bool), bool.
// What real kernels don't stand (undefined behaviour or a crash, not a refusal):
//   !unchecked   wrong arguments: the generator doesn't damage them
//   !contiguous  tensors that aren't contiguous
//   !nonempty    tensors without elements
//   !outs        out= tensors of another shape, dtype or layout
//   !distinct    out= tensors that share memory with inputs, or elements of them with each other

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace ddpopt::cross_ref {

struct Recipe {
  std::string dtype_class = "any";
  bool unchecked = false, contiguous = false, nonempty = false, plain_outs = false, distinct_outs = false;
  std::vector<std::pair<std::string, std::string>> variables;  // name, range
  absl::flat_hash_map<std::string, std::string> arguments;     // name → value text
};

// The recipes for an operator overload (full names: "aten::add_", "Tensor"), all alternatives: those of the overload, else of its
// functional form's name, else empty. Throws std::invalid_argument at first use if the table can't be read.
const std::vector<Recipe>& RecipesOf(const std::string& name, const std::string& overload);

// Names of operators in the table, for a check that each exists.
std::vector<std::string> RecipeNames();

// Why an operator is not called at random, or "" if it may be: sparse and quantized arguments, no CPU kernel behind its name, a real kernel
// that is unsafe on any input, …
std::string WhyExcluded(const std::string& name, const std::string& overload);

// Whether the operator is listed in unfinished.cc: its fakes are known to differ from real tensors for some calls. An operator whose fakes
// are mended is taken off the list.
bool IsUnfinished(const std::string& name, const std::string& overload);
std::vector<std::string> UnfinishedOperators();

}  // namespace ddpopt::cross_ref

#endif  // DDPOPT_FAKE_TENSOR_CROSS_REF_RECIPE_H_
