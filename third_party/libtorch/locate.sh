#!/usr/bin/env bash
# Prints the folder of a LibTorch (holding include/ and lib/) as its last line of standard output.
#   LIBTORCH_HOME     an unpacked LibTorch: the folder with include/ and lib/, or the one above it (libtorch/ of a zip, torch/ of a wheel)
#   LIBTORCH_VERSION  which of wheels/ to fetch otherwise (default 2.15.0): by pip, checked by hash, unpacked into the user's cache once
#   DDPOPT_ANY_LIBTORCH=1  takes a LibTorch whose version was never tried
# --cached: prints nothing and exits with 1 where wheels would have to be fetched.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly oldest=2.11 newest=2.15 default=2.15.0

fail() { echo "libtorch: $*" >&2; exit 1; }
# shellcheck source=fetch_wheels.sh
source "$here/fetch_wheels.sh"

# "2.15.0" of an unpacked LibTorch; empty if its headers don't tell.
version_of() {
  local file
  for file in "$1"/include/torch/headeronly/version.h "$1"/include/torch/csrc/api/include/torch/version.h; do
    [[ -e "$file" ]] || continue
    sed -nE 's/^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+).*/\2/p' "$file" | head -n 3 | paste -sd.
    return
  done
}

check_given() {  # FOLDER
  local home=$1 need missing version
  local told="LIBTORCH_HOME=$LIBTORCH_HOME"
  if [[ ! -e "$home/lib/libtorch_cpu.so" && -e "$home/lib/libtorch_cuda.so" ]]; then
    fail "$told holds CUDA libraries only (lib/libtorch_cuda.so, no lib/libtorch_cpu.so): a complete LibTorch is needed, also for a CUDA build"
  fi
  for need in include/ATen/core/Tensor.h lib/libtorch_cpu.so lib/libc10.so; do
    [[ -e "$home/$need" ]] || fail "$told has no $need: it must be the folder of an unpacked LibTorch, with include/ and lib/"
  done

  version=$(version_of "$home")
  if [[ -z "$version" ]]; then
    fail "$told doesn't tell its version (no torch/version.h): older than LibTorch $oldest, the oldest that ddpopt works with, or damaged"
  fi
  if [[ "${DDPOPT_ANY_LIBTORCH:-}" != 1 ]]; then
    local minor=${version%.*}
    if [[ "$(printf '%s\n' "$oldest" "$minor" | sort -V | head -n 1)" != "$oldest" ]]; then
      fail "$told is LibTorch $version, older than $oldest, the oldest that ddpopt works with"
    elif [[ "$(printf '%s\n' "$newest" "$minor" | sort -V | tail -n 1)" != "$newest" ]]; then
      fail "$told is LibTorch $version, newer than $newest, the newest that ddpopt was tried with; DDPOPT_ANY_LIBTORCH=1 takes it all the same"
    fi
  fi
  # In the older ABI, std::string is another type under the same name: it would link only in part.
  if ! grep -aqE '_ZN3c105ErrorC1[A-Za-z0-9_]*cxx11' "$home/lib/libc10.so"; then
    fail "$told is built for the pre-C++11 ABI (_GLIBCXX_USE_CXX11_ABI=0); take the download that says \"cxx11 ABI\", or a wheel of $oldest or newer"
  fi
  missing=$({ ldd "$home/lib/libtorch_cpu.so" 2>/dev/null || true; } | awk '/not found/ {print $1}' | sort -u | paste -sd' ')
  if [[ -n "$missing" ]]; then
    fail "$told needs libraries that are not found: $missing. It is a CUDA build of LibTorch: install its NVIDIA wheels beside it as pip does" \
      "(nvidia-cuda-runtime, nvidia-cuda-cupti), have them in LD_LIBRARY_PATH, or take a CPU build"
  fi
}

if [[ -n "${LIBTORCH_HOME:-}" ]]; then
  [[ -d "$LIBTORCH_HOME" ]] || fail "LIBTORCH_HOME=$LIBTORCH_HOME: no such folder"
  home=$(cd "$LIBTORCH_HOME" && pwd -P)
  for inner in libtorch torch; do
    [[ -d "$home/lib" || ! -d "$home/$inner/lib" ]] || home=$home/$inner
  done
  check_given "$home"
  echo "$home"
  exit 0
fi

version=${LIBTORCH_VERSION:-$default}
list="$here/wheels/$version.txt"
[[ -e "$list" ]] || fail "LIBTORCH_VERSION=$version is not known; known are:$(cd "$here/wheels" && printf ' %s' *.txt | sed 's/\.txt//g')." \
  "For another one, unpack it and set LIBTORCH_HOME"
[[ "$(uname -sm)" == "Linux x86_64" ]] || fail "the wheels are for Linux x86_64, and this is $(uname -sm); set LIBTORCH_HOME to an unpacked LibTorch"
final="${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/ddpopt/libtorch-$version-$(sha256sum "$list" | cut -c1-8)"
if [[ ! -e "$final/torch/lib/libtorch_cpu.so" ]]; then
  [[ "${1:-}" != --cached ]] || exit 1
  # A CPU build needs neither the CUDA libraries nor the Python files; they are two thirds of the wheel.
  fetch_wheels "$list" "$final" 'torch/include/*' 'torch/lib/libtorch_cpu.so' 'torch/lib/libc10.so' 'torch/lib/libgomp*' 'torch/lib/libgfortran*' \
    'nvidia/cu13/lib/*.so.*'
  [[ -e "$final/torch/lib/libtorch_cpu.so" ]] || fail "the torch wheel held no lib/libtorch_cpu.so"
fi
echo "$final/torch"
