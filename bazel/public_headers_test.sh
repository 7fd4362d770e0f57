#!/usr/bin/env bash
# public_headers_test.sh PACKAGE FILE... -- HEADER...: the files of the package must be the headers, no more and no fewer; and each may define
# its include guard only, and include only what is public, LibTorch, abseil and the standard library. (That each compiles alone is seen
# when it is built.)
set -euo pipefail
package=$1
shift
files=()
while [[ "$1" != -- ]]; do files+=("$1"); shift; done
shift
bad=0
say() { echo "$@"; bad=1; }

declare -A listed=() public=()
for header in "$@"; do listed[$header]=no; done
header_of() { header=${1#*_public_headers/} header=${header#*/}; }
for file in "${files[@]}"; do header_of "$file"; public[$header]=yes; done
for file in "${files[@]}"; do
  header_of "$file"
  [[ "$header" == "$package"/* ]] || continue
  [[ -n "${listed[$header]:-}" ]] || { say "$header is public, but isn't listed"; continue; }
  listed[$header]=yes

  guard=$(tr 'a-z/.' 'A-Z__' <<<"$header")_
  [[ "$guard" == DDPOPT_* ]] || guard=DDPOPT_$guard
  while read -r _ macro _; do
    macro=${macro%%(*}
    [[ "$macro" == "$guard" || "$macro" == "${guard/DDPOPT_DDPOPT_/DDPOPT_}" ]] || say "$header defines $macro: a public header leaks no macro"
  done < <(grep -E '^[[:space:]]*#[[:space:]]*define' "$file" | sed -E 's/^[[:space:]]*#[[:space:]]*/#/')
  while read -r include; do
    case $include in
      ATen/* | c10/* | absl/*) ;;
      torch/nn/*) ;;  # the surface over nn::Module
      *) [[ -n "${public[$include]:-}" ]] || say "$header includes $include, which is neither public nor LibTorch's or abseil's" ;;
    esac
  done < <(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"([^"]+)".*/\1/p' "$file")
  if grep -qE '#[[:space:]]*include[[:space:]]*<[^>]*[/.]' "$file"; then say "$header includes more than the standard library in <>"; fi
done
for header in "$@"; do [[ ${listed[$header]} == yes ]] || say "$header is listed, but the library doesn't have it"; done
exit $bad
