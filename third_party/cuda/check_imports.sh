#!/usr/bin/env bash
# check_imports.sh LIBTORCH_FOLDER: whether a LibTorch with CUDA (lib/libtorch_cuda.so) defines everything in imports.txt.
set -euo pipefail
list="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/imports.txt"
[[ -e "${1:-}/lib/libtorch_cuda.so" ]] || { echo "check_imports: '${1:-}' is no folder of a LibTorch with lib/libtorch_cuda.so" >&2; exit 2; }
missing=0
for library in $(awk '!/^#/ {print $1}' "$list" | sort -u); do
  defined=$(nm -D --defined-only "$1/lib/$library" | awk '{print $3}')
  for symbol in $(awk -v l="$library" '$1 == l {print $2}' "$list"); do
    if ! grep -qxF "$symbol" <<<"$defined"; then echo "$1/lib/$library does not define $symbol"; missing=$((missing + 1)); fi
  done
done
echo "$missing missing"
[[ $missing -eq 0 ]]
