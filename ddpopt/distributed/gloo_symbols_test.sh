#!/usr/bin/env bash
# A binary of ours must not define a gloo:: class's tables or c10d's GlooStore: the dynamic linker could prefer them to LibTorch's, whose
# layout is another (see gloo_backend.cc). Nor may it export anything of gloo's.
set -euo pipefail

binary=$1
status=0

nm -C "$binary" | grep "U .*c10d::ProcessGroupGloo::createDeviceForHostname" >/dev/null || {
  echo "FAILED: $binary does not use c10d::ProcessGroupGloo at all, so this test shows nothing"
  status=1
}
tables=$(nm -C --defined-only "$binary" |
  grep -E ' (vtable|typeinfo|typeinfo name|VTT) for (gloo::|c10d::ProcessGroupGloo)|GlooStore' || true)
if [[ -n $tables ]]; then
  printf 'FAILED: %s defines gloo classes:\n%s\n' "$binary" "$tables"
  status=1
fi
exported=$(nm -C -D --defined-only "$binary" | grep -E 'gloo::|GlooStore|ProcessGroupGloo' || true)
if [[ -n $exported ]]; then
  printf 'FAILED: %s exports gloo symbols:\n%s\n' "$binary" "$exported"
  status=1
fi
[[ $status == 0 ]] && echo "1 passed, 0 failed: no gloo symbols in $binary"
exit $status
