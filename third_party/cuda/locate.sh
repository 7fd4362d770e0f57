#!/usr/bin/env bash
# locate.sh LIBTORCH_FOLDER: prints where the CUDA and NCCL headers are that fit this LibTorch, and its own CUDA libraries, if it has any:
#   cuda_include=FOLDER   cuda_runtime_api.h; from beside LibTorch, from CUDA_HOME, else from a wheel
#   nccl_include=FOLDER   nccl.h; from beside LibTorch, from NCCL_HOME or CUDA_HOME, else from a wheel
#   torch_cuda=FOLDER     libtorch_cuda.so and libc10_cuda.so; empty in a LibTorch without CUDA
# NCCL's headers must be of the version LibTorch was built with, to the patch: they make the layout of c10d's classes.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
home=${1:?the folder of a LibTorch}

fail() { echo "cuda: $*" >&2; exit 1; }
note() { echo "cuda: $*" >&2; }
# shellcheck source=../libtorch/fetch_wheels.sh
source "$here/../libtorch/fetch_wheels.sh"

defined() { sed -nE "s/^[[:space:]]*#[[:space:]]*define[[:space:]]+$2[[:space:]]+([0-9]+).*/\1/p" "$1" | head -n 1; }  # HEADER MACRO
version=
for header in "$home"/include/torch/headeronly/version.h "$home"/include/torch/csrc/api/include/torch/version.h; do
  [[ -e "$header" && -z "$version" ]] || continue
  version=$(defined "$header" TORCH_VERSION_MAJOR).$(defined "$header" TORCH_VERSION_MINOR).$(defined "$header" TORCH_VERSION_PATCH)
done
[[ "$version" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "$home doesn't tell its version (no torch/version.h)"

list="$here/wheels/$version.txt"
beside=$(cd "$home/.." && pwd -P)/nvidia  # where pip installs the libraries of LibTorch's wheel
pinned_nccl=
[[ ! -e "$list" ]] || pinned_nccl=$(sed -nE 's/^nvidia-nccl-[a-z0-9]+==([0-9.]+) .*/\1/p' "$list")
# The runtime that LibTorch was linked to: libcudart.so.13, or libcudart-1234abcd.so.13 in a zip.
cuda_major=$({ readelf -d "$home"/lib/libc10_cuda.so "$home"/lib/libtorch_cpu.so 2>/dev/null || true; } |
  sed -nE 's/.*NEEDED.*\[libcudart[^]]*\.so\.([0-9]+).*/\1/p' | head -n 1)
[[ -n "$cuda_major" || ! -e "$list" ]] || cuda_major=13
[[ -n "$cuda_major" ]] || fail "LibTorch $version in $home was built without CUDA, and its CUDA build is not known here (known:$(cd "$here/wheels" &&
  printf ' %s' *.txt | sed 's/\.txt//g')). Set LIBTORCH_HOME to a LibTorch with CUDA"

cuda_version_of() { local n; n=$(defined "$1/cuda.h" CUDA_VERSION); [[ -z "$n" ]] || echo "$((n / 1000)).$((n % 1000 / 10))"; }
nccl_version_of() { echo "$(defined "$1/nccl.h" NCCL_MAJOR).$(defined "$1/nccl.h" NCCL_MINOR).$(defined "$1/nccl.h" NCCL_PATCH)"; }

cuda_include=
for candidate in "$beside/cu$cuda_major/include" "$beside/cuda_runtime/include" "${CUDA_HOME:+$CUDA_HOME/include}"; do
  [[ -z "$cuda_include" && -n "$candidate" && -e "$candidate/cuda_runtime_api.h" ]] || continue
  found=$(cuda_version_of "$candidate")
  if [[ "${found%%.*}" == "$cuda_major" ]]; then cuda_include=$candidate
  else note "$candidate is CUDA ${found:-of unknown version}, and LibTorch was built with $cuda_major: passed over"; fi
done

nccl_include=
for candidate in "$beside/nccl/include" "${NCCL_HOME:+$NCCL_HOME/include}" "${CUDA_HOME:+$CUDA_HOME/include}"; do
  [[ -z "$nccl_include" && -n "$candidate" && -e "$candidate/nccl.h" ]] || continue
  found=$(nccl_version_of "$candidate")
  # What pip put beside an unlisted LibTorch is what that LibTorch asked for.
  if [[ "$found" == "$pinned_nccl" || ( -z "$pinned_nccl" && "$candidate" == "$beside"/* ) ]]; then nccl_include=$candidate
  else note "$candidate is NCCL $found, and LibTorch $version was built with ${pinned_nccl:-another}: passed over"; fi
done

if [[ -z "$cuda_include" || -z "$nccl_include" ]]; then
  [[ -e "$list" ]] || fail "no CUDA and NCCL headers that fit LibTorch $version: install its NVIDIA wheels beside it as pip does, or take one of" \
    "$(cd "$here/wheels" && printf '%s ' *.txt | sed 's/\.txt//g')"
  wheels="${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/ddpopt/cuda-headers-$version-$(sha256sum "$list" | cut -c1-8)"
  [[ -e "$wheels/nvidia/nccl/include/nccl.h" ]] || fetch_wheels "$list" "$wheels" 'nvidia/*/include/*'
  if [[ -z "$cuda_include" ]]; then
    cuda_include=$wheels/nvidia/cu$cuda_major/include
    [[ -e "$cuda_include/cuda_runtime_api.h" ]] || fail "$home was built with CUDA $cuda_major, for which no headers are fetched; set CUDA_HOME to" \
      "a toolkit of CUDA $cuda_major"
  fi
  [[ -n "$nccl_include" ]] || nccl_include=$wheels/nvidia/nccl/include
fi

echo "cuda_include=$cuda_include"
echo "nccl_include=$nccl_include"
if [[ -e "$home/lib/libtorch_cuda.so" && -e "$home/lib/libc10_cuda.so" ]]; then echo "torch_cuda=$home/lib"; else echo "torch_cuda="; fi
