#!/usr/bin/env bash
# Headers that fit LibTorch are found where they may be, in order; those that don't fit are passed over by name. Nothing is fetched.
set -euo pipefail
locate=third_party/cuda/locate.sh
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/locate.XXXXXX")
export XDG_CACHE_HOME="$tmp/cache"
unset CUDA_HOME NCCL_HOME

headers() {  # FOLDER CUDA_VERSION NCCL_VERSION
  mkdir -p "$1"
  [[ -z "$2" ]] || { echo "#define CUDA_VERSION $2" >"$1/cuda.h"; touch "$1/cuda_runtime_api.h"; }
  local major minor patch
  IFS=. read -r major minor patch <<<"$3"
  [[ -z "$3" ]] || printf '#define NCCL_MAJOR %s\n#define NCCL_MINOR %s\n#define NCCL_PATCH %s\n' "$major" "$minor" "$patch" >"$1/nccl.h"
}
libtorch() {  # FOLDER VERSION
  mkdir -p "$1/include/torch/headeronly" "$1/lib"
  local major minor patch
  IFS=. read -r major minor patch <<<"$2"
  printf '#define TORCH_VERSION_MAJOR %s\n#define TORCH_VERSION_MINOR %s\n#define TORCH_VERSION_PATCH %s\n' "$major" "$minor" "$patch" \
    >"$1/include/torch/headeronly/version.h"
}
expect() {  # EXPECTED_LINE; of the output in $out
  [[ "$out" == *"$1"* ]] || { echo "expected \"$1\" in: $out"; exit 1; }
}

# The wheels' own headers, as if they had been fetched before.
libtorch "$tmp/site/torch" 2.15.0
wheels="$tmp/cache/ddpopt/cuda-headers-2.15.0-$(sha256sum third_party/cuda/wheels/2.15.0.txt | cut -c1-8)"
headers "$wheels/nvidia/cu13/include" 13020 ""
headers "$wheels/nvidia/nccl/include" "" 2.30.7
out=$("$locate" "$tmp/site/torch" 2>&1)
expect "cuda_include=$wheels/nvidia/cu13/include"
expect "nccl_include=$wheels/nvidia/nccl/include"
[[ "$out" == *"torch_cuda=" ]] || { echo "a LibTorch without CUDA has no libraries: $out"; exit 1; }

# A toolkit of the right CUDA, with another NCCL.
headers "$tmp/cuda-13.0/include" 13000 2.28.3
out=$(CUDA_HOME="$tmp/cuda-13.0" "$locate" "$tmp/site/torch" 2>&1)
expect "cuda_include=$tmp/cuda-13.0/include"
expect "$tmp/cuda-13.0/include is NCCL 2.28.3, and LibTorch 2.15.0 was built with 2.30.7: passed over"
expect "nccl_include=$wheels/nvidia/nccl/include"

# A toolkit of another CUDA, and a fitting NCCL elsewhere.
headers "$tmp/cuda-12.4/include" 12040 ""
headers "$tmp/nccl/include" "" 2.30.7
out=$(CUDA_HOME="$tmp/cuda-12.4" NCCL_HOME="$tmp/nccl" "$locate" "$tmp/site/torch" 2>&1)
expect "$tmp/cuda-12.4/include is CUDA 12.4, and LibTorch was built with 13: passed over"
expect "cuda_include=$wheels/nvidia/cu13/include"
expect "nccl_include=$tmp/nccl/include"

# What pip installs beside LibTorch comes first.
headers "$tmp/site/nvidia/cu13/include" 13020 ""
headers "$tmp/site/nvidia/nccl/include" "" 2.30.7
touch "$tmp/site/torch/lib/libtorch_cuda.so" "$tmp/site/torch/lib/libc10_cuda.so"
out=$(CUDA_HOME="$tmp/cuda-13.0" "$locate" "$tmp/site/torch" 2>&1)
expect "cuda_include=$tmp/site/nvidia/cu13/include"
expect "nccl_include=$tmp/site/nvidia/nccl/include"
expect "torch_cuda=$tmp/site/torch/lib"

# A version that nothing is known of, without headers beside it.
libtorch "$tmp/other/torch" 2.13.0
if out=$("$locate" "$tmp/other/torch" 2>&1); then echo "2.13.0 was taken: $out"; exit 1; fi
expect "LibTorch 2.13.0"
expect "known: 2.11.0 2.15.0"
