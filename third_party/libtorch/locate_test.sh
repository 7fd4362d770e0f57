#!/usr/bin/env bash
# A LibTorch that can't be used is refused with the reason, one that can is taken as it is; wheels are unpacked whole or not at all.
set -euo pipefail
locate=third_party/libtorch/locate.sh
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/locate.XXXXXX")
unset LIBTORCH_VERSION DDPOPT_ANY_LIBTORCH

refused() {  # HOME_VALUE EXPECTED_TEXT
  if out=$(LIBTORCH_HOME="$1" "$locate" 2>&1); then echo "LIBTORCH_HOME=$1 was taken: $out"; exit 1; fi
  [[ "$out" == *"$2"* ]] || { echo "LIBTORCH_HOME=$1: expected \"$2\" in: $out"; exit 1; }
}
taken() {  # HOME_VALUE FOLDER
  out=$(LIBTORCH_HOME="$1" "$locate") || { echo "LIBTORCH_HOME=$1 was refused"; exit 1; }
  [[ "$out" == "$(cd "$2" && pwd -P)" ]] || { echo "LIBTORCH_HOME=$1: expected $2, got $out"; exit 1; }
}
libtorch() {  # FOLDER MAJOR MINOR: something that looks like one
  mkdir -p "$1/include/ATen/core" "$1/include/torch/headeronly" "$1/lib"
  touch "$1/include/ATen/core/Tensor.h"
  printf '#define TORCH_VERSION_MAJOR %d\n#define TORCH_VERSION_MINOR %d\n#define TORCH_VERSION_PATCH 3\n' "$2" "$3" >"$1/include/torch/headeronly/version.h"
  printf '\0_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcE\0' >"$1/lib/libc10.so"
  touch "$1/lib/libtorch_cpu.so"
}

refused "$tmp/absent" "no such folder"
mkdir "$tmp/empty"
refused "$tmp/empty" "has no include/ATen/core/Tensor.h"

libtorch "$tmp/good/torch" 2 11
taken "$tmp/good/torch" "$tmp/good/torch"
taken "$tmp/good" "$tmp/good/torch"  # the folder that a wheel was unpacked in
libtorch "$tmp/zip/libtorch" 2 15
taken "$tmp/zip" "$tmp/zip/libtorch"

rm "$tmp/zip/libtorch/lib/libc10.so"
refused "$tmp/zip/libtorch" "has no lib/libc10.so"
libtorch "$tmp/cuda_only" 2 15
mv "$tmp/cuda_only/lib/libtorch_cpu.so" "$tmp/cuda_only/lib/libtorch_cuda.so"
refused "$tmp/cuda_only" "CUDA libraries only"
libtorch "$tmp/old" 2 9
refused "$tmp/old" "LibTorch 2.9.3, older than 2.11"
libtorch "$tmp/ancient" 1 13
refused "$tmp/ancient" "LibTorch 1.13.3, older than 2.11"
libtorch "$tmp/new" 2 16
refused "$tmp/new" "LibTorch 2.16.3, newer than 2.15"
DDPOPT_ANY_LIBTORCH=1 taken "$tmp/new" "$tmp/new"
libtorch "$tmp/abi" 2 15
printf '\0_ZN3c105ErrorC1ENS_14SourceLocationESs\0' >"$tmp/abi/lib/libc10.so"
refused "$tmp/abi" "pre-C++11 ABI"
libtorch "$tmp/needy" 2 15
echo 'void f() {}' >"$tmp/f.c"
gcc -shared -fPIC -Wl,-soname,libabsent.so.13 -o "$tmp/libabsent.so.13" "$tmp/f.c"
echo 'void f(); void g() { f(); }' >"$tmp/g.c"
gcc -shared -fPIC -o "$tmp/needy/lib/libtorch_cpu.so" "$tmp/g.c" "$tmp/libabsent.so.13"
refused "$tmp/needy" "not found: libabsent.so.13"

if out=$(LIBTORCH_HOME='' LIBTORCH_VERSION=2.7.1 "$locate" 2>&1); then echo "an unknown version was taken: $out"; exit 1; fi
[[ "$out" == *"LIBTORCH_VERSION=2.7.1 is not known; known are: 2.11.0 2.15.0"* ]] || { echo "unexpected: $out"; exit 1; }

# Fetching, with a pip of our own: one that can't reach its index, one that brings the wrong file.
mkdir "$tmp/bin"
fetch() {  # BODY_OF_PIP
  printf '#!/bin/bash\n[[ "$1" == --version ]] && exit 0\n%s\n' "$1" >"$tmp/bin/pip3"
  chmod +x "$tmp/bin/pip3"
  if out=$(PATH="$tmp/bin:$PATH" LIBTORCH_HOME='' XDG_CACHE_HOME="$tmp/cache" "$locate" 2>&1); then echo "was fetched: $out"; exit 1; fi
  [[ -z "$(ls -A "$tmp/cache/ddpopt")" ]] || { echo "left behind: $(ls -A "$tmp/cache/ddpopt")"; exit 1; }
}
fetch 'echo "NewConnectionError: Failed to establish a new connection" >&2; exit 1'
[[ "$out" == *"no network"*"LIBTORCH_HOME"* ]] || { echo "unexpected: $out"; exit 1; }
fetch 'while [[ "$1" != -d ]]; do shift; done; echo other >"$2/torch.whl"'
[[ "$out" == *"has sha256"*"expected"* ]] || { echo "unexpected: $out"; exit 1; }
