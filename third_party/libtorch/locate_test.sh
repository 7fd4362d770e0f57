#!/usr/bin/env bash
# A LIBTORCH_HOME that can't be used is refused with the reason; one that can is taken as it is.
set -euo pipefail
locate=third_party/libtorch/locate.sh
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/locate.XXXXXX")

refused() {  # HOME_VALUE EXPECTED_TEXT
  if out=$(LIBTORCH_HOME="$1" "$locate" 2>&1); then echo "LIBTORCH_HOME=$1 was taken: $out"; exit 1; fi
  [[ "$out" == *"$2"* ]] || { echo "LIBTORCH_HOME=$1: expected \"$2\" in: $out"; exit 1; }
}

refused "$tmp/absent" "no such folder"
mkdir "$tmp/empty"
refused "$tmp/empty" "has no include/ATen/core/Tensor.h"
mkdir -p "$tmp/torch/include/ATen/core" "$tmp/torch/lib"
touch "$tmp/torch/include/ATen/core/Tensor.h" "$tmp/torch/lib/libtorch_cpu.so"
refused "$tmp/torch" "has no lib/libc10.so"
touch "$tmp/torch/lib/libc10.so"
[[ "$(LIBTORCH_HOME="$tmp/torch" "$locate")" == "$(cd "$tmp/torch" && pwd -P)" ]]
