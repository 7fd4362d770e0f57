#!/usr/bin/env bash
# Prints the folder of a LibTorch (holding include/ and lib/) as its last line of standard output.
# LIBTORCH_HOME wins; otherwise the wheels of wheels.txt are fetched by pip, checked by hash and unpacked into the user's cache
# folder, once. Nothing half-done is ever left under the final name.
set -euo pipefail

fail() { echo "libtorch: $*" >&2; exit 1; }

if [[ -n "${LIBTORCH_HOME:-}" ]]; then
  [[ -d "$LIBTORCH_HOME" ]] || fail "LIBTORCH_HOME=$LIBTORCH_HOME: no such folder"
  home=$(cd "$LIBTORCH_HOME" && pwd -P)
  for need in include/ATen/core/Tensor.h lib/libtorch_cpu.so lib/libc10.so; do
    [[ -e "$home/$need" ]] || fail "LIBTORCH_HOME=$LIBTORCH_HOME has no $need: it must be the folder of an unpacked LibTorch, with include/ and lib/"
  done
  echo "$home"
  exit 0
fi

list="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/wheels.txt"
cache="${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/ddpopt"
key=$(sha256sum "$list" | cut -c1-16)
final="$cache/libtorch-$key"
if [[ -e "$final/torch/lib/libtorch_cpu.so" ]]; then
  echo "$final/torch"
  exit 0
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/unpack.XXXXXX")
trap 'rm -rf "$work"' EXIT
pip=(); for candidate in pip3 pip "python3 -m pip"; do
  if $candidate --version >/dev/null 2>&1; then pip=($candidate); break; fi
done
[[ ${#pip[@]} -gt 0 ]] || fail "no pip found to fetch the wheels with; install python3-pip, or set LIBTORCH_HOME to an unpacked LibTorch"
command -v unzip >/dev/null || fail "unzip is missing; install it, or set LIBTORCH_HOME"

while read -r requirement tag hash; do
  [[ -z "$requirement" || "$requirement" == \#* ]] && continue
  echo "libtorch: fetching $requirement" >&2
  mkdir "$work/wheel"
  "${pip[@]}" download -q --no-deps --no-cache-dir --only-binary=:all: --python-version 3.11 --platform "$tag" -d "$work/wheel" "$requirement" >&2 ||
    fail "could not fetch $requirement; set LIBTORCH_HOME to an unpacked LibTorch if there is no network"
  wheel=$(echo "$work"/wheel/*.whl)
  got=$(sha256sum "$wheel" | cut -d' ' -f1)
  [[ "$got" == "$hash" ]] || fail "$requirement has sha256 $got, expected $hash"
  # A CPU build needs neither the CUDA libraries nor the Python files; they are two thirds of the wheel. unzip's 11 only says that
  # one of the patterns matched nothing in this wheel.
  rc=0
  unzip -q "$wheel" 'torch/include/*' 'torch/lib/libtorch_cpu.so' 'torch/lib/libc10.so' 'torch/lib/libgomp*' 'torch/lib/libgfortran*' \
    'nvidia/cu13/lib/*.so.*' -d "$work/tree" 2>/dev/null || rc=$?
  [[ $rc -eq 0 || $rc -eq 11 ]] || fail "could not unpack $requirement (unzip: $rc; is the disk full?)"
  rm -rf "$work/wheel"
done <"$list"
[[ -e "$work/tree/torch/lib/libtorch_cpu.so" ]] || fail "the torch wheel held no lib/libtorch_cpu.so"
mv -T "$work/tree" "$final" 2>/dev/null || [[ -e "$final/torch/lib/libtorch_cpu.so" ]] || fail "could not move LibTorch to $final"
echo "$final/torch"
